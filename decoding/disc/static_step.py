"""One step of DISC's draws as a pure function of tensors whose shapes do not depend on their values.

Every draw has a place in a rectangle (Q, D), Q queries with up to D draws each, and is carried along when
it has ended or never was. So a step is a fixed sequence of operations: nothing is read back, and it can be
compiled whole or captured in a CUDA graph. Where no candidate is valid, both ways on are computed and one is
taken.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.types import StaticConstraint

# Children looked at in one piece, at about 60 bytes each. The root of a catalogue can have tens of thousands.
MAX_CELLS = 1 << 22


class Walk(NamedTuple):
    """What D draws of each of Q queries have done so far.

    Attributes:
        state: Constraint state reached. Shape: (Q, D), int64.
        log_weight: log of the product of the valid masses met. Shape: (Q, D), float64.
        logprob: log P_L of what was written. Shape: (Q, D), float64.
        running: Not at its end yet; False for padding. Shape: (Q, D), bool.
        finished: At its end, with a whole row. Shape: (Q, D), bool.
        broken: Whether the logits of a live branch were ever NaN, +inf, or -inf everywhere; what the draws
            say is then meaningless. Shape: (), bool.
    """

    state: Tensor
    log_weight: Tensor
    logprob: Tensor
    running: Tensor
    finished: Tensor
    broken: Tensor


class Step(NamedTuple):
    """The outcome of one step.

    Attributes:
        walk: After it.
        token: What each draw wrote, -1 where it wrote nothing. Shape: (Q, D), int64.
        log_mass: log of the valid mass at each branch, -inf where nothing is valid. Shape: (Q, B), float64.
        parents: For the next forward: every running draw grows its own branch, -1 for the others.
            Shape: (Q, D), int64.
        token_ids: For the next forward: `token`, 0 for padding. Shape: (Q, D), int64.
        num_running: Running draws of each query. Shape: (Q,), int64.
        flags: Whether any draw is running, and `walk.broken`. Shape: (2,), bool.
    """

    walk: Walk
    token: Tensor
    log_mass: Tensor
    parents: Tensor
    token_ids: Tensor
    num_running: Tensor
    flags: Tensor


class _Picked(NamedTuple):
    """The edge each draw takes from its branch, n branches with k draws each.

    Attributes:
        token: Shape: (n, k), int64.
        next_state: Shape: (n, k), int64; -1 from a branch where nothing is valid.
        logprob: Shape: (n, k), float64.
        log_mass: Shape: (n, 1), float64.
    """

    token: Tensor
    next_state: Tensor
    logprob: Tensor
    log_mass: Tensor


def static_step(
    constraint: StaticConstraint,
    walk: Walk,
    logits: Tensor,
    u: Tensor,
    dropped: Tensor,
    log_threshold: Tensor,
    temperature: Tensor | None,
    width: int,
    top_m: int | None,
    max_cells: int = MAX_CELLS,
) -> Step:
    """Write one token on every running draw.

    Args:
        constraint: What may be written.
        walk: Before the step. The draws of a query that share a branch are in one state, or not running.
        logits: Next-token logits of the branches: all draws of a query share B = 1, or each has its own,
            B = D. Shape: (Q, B, V), float32 or float64.
        u: A uniform in (0, 1) for each draw. Shape: (Q, D), float64.
        dropped: Queries that may not write another token. Shape: (Q,), bool.
        log_threshold: A draw whose log weight falls below it is stopped. Shape: (Q, D), float64.
        temperature: Divides the logits, None: 1. Shape: (Q,), float32.
        width: No branch has more children.
        top_m: Verify only the M likeliest tokens of a branch; its exact children where none is valid. None:
            exact children.
        max_cells: Children looked at in one piece.
    """
    queries, branches, vocab = logits.shape
    num_draws = u.shape[1]
    running = walk.running & ~dropped.unsqueeze(1)
    live = torch.where(running, walk.state, -1)
    nodes = live.view(queries, branches, num_draws // branches).amax(2).flatten()
    if temperature is not None:
        logits = logits / temperature[:, None, None]
    logits = logits.reshape(-1, vocab)
    normaliser = torch.logsumexp(logits, dim=-1)  # (Q * B,)
    broken = walk.broken | (~torch.isfinite(normaliser) & (nodes >= 0)).any()
    targets = u.reshape(len(nodes), -1)
    rows = max(1, max_cells // (width + (top_m or 0)))
    pieces = [
        _pick(constraint, nodes[here], logits[here], normaliser[here], targets[here], width, top_m)
        for here in (slice(first, first + rows) for first in range(0, len(nodes), rows))
    ]
    picked = _Picked(*(torch.cat(column) for column in zip(*pieces, strict=True)))
    after, token = _move(constraint, walk, running, broken, log_threshold, picked)
    return Step(
        walk=after,
        token=token,
        log_mass=picked.log_mass.view(queries, branches),
        parents=torch.where(after.running, torch.arange(num_draws, device=u.device), -1),
        token_ids=torch.where(after.running, token, 0),
        num_running=after.running.sum(dim=1),
        flags=torch.stack([after.running.any(), broken]),
    )


def _move(
    constraint: StaticConstraint,
    walk: Walk,
    running: Tensor,
    broken: Tensor,
    log_threshold: Tensor,
    picked: _Picked,
) -> tuple[Walk, Tensor]:
    """Return the draws after they took their edges, and the token each wrote."""
    shape = running.shape
    log_mass = picked.log_mass.expand(picked.token.shape).reshape(shape)
    moves = running & torch.isfinite(log_mass)  # where nothing is valid the weight becomes zero
    log_weight = torch.where(moves, walk.log_weight + log_mass, walk.log_weight)
    log_weight = torch.where(walk.running & ~moves, -math.inf, log_weight)
    state = torch.where(moves, picked.next_state.view(shape), walk.state)
    done = moves & constraint.is_final(state.flatten()).view(shape)
    after = Walk(
        state=state,
        log_weight=log_weight,
        logprob=walk.logprob + torch.where(moves, picked.logprob.view(shape), 0.0),
        running=moves & ~done & (log_weight >= log_threshold),
        finished=walk.finished | done,
        broken=broken,
    )
    return after, torch.where(moves, picked.token.view(shape), -1)


def _pick(
    constraint: StaticConstraint,
    nodes: Tensor,
    logits: Tensor,
    normaliser: Tensor,
    u: Tensor,
    width: int,
    top_m: int | None,
) -> _Picked:
    """Choose an edge per draw by inverse transform.

    Args:
        constraint: What may be written.
        nodes: State of each branch, -1 for none. Shape: (n,), int64.
        logits: Shape: (n, V).
        normaliser: Shape: (n,).
        u: Uniforms of the draws at each branch. Shape: (n, k), float64.
        width: No branch has more children.
        top_m: See `static_step`.
    """
    token, next_state = _support(constraint, nodes, logits, width, top_m)
    logprob = logits.gather(1, token.clamp(min=0)).double() - normaliser.double().unsqueeze(1)
    logprob = torch.where(next_state >= 0, logprob, -math.inf)
    largest, likeliest = logprob.max(dim=1, keepdim=True)
    base = torch.where(torch.isfinite(largest), largest, 0.0)
    cumulative = torch.exp(logprob - base).cumsum(1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that the search stays clear of padding at the end.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    edge = torch.searchsorted(cumulative, target, right=True).clamp(max=cumulative.shape[1] - 1)
    # A parallel sum need not grow from one term to the next by exactly the term: the search can, once in
    # some 2**50 draws, stop at an edge of probability zero.
    edge = torch.where(torch.isfinite(logprob.gather(1, edge)), edge, likeliest)
    return _Picked(
        token=token.gather(1, edge),
        next_state=next_state.gather(1, edge),
        logprob=logprob.gather(1, edge),
        # Rounding must never carry the log of a probability above zero.
        log_mass=(torch.log(total) + base).clamp(max=0.0),
    )


def _support(
    constraint: StaticConstraint, nodes: Tensor, logits: Tensor, width: int, top_m: int | None
) -> tuple[Tensor, Tensor]:
    """Return the tokens to look at and the states behind them, -1 where not valid. Shapes: (n, W), int64."""
    if top_m is None:
        token, next_state = constraint.padded_children(nodes, width)
        return token, next_state
    top = logits.topk(min(top_m, logits.shape[1]), dim=-1).indices
    following = constraint.verify(nodes, top)
    # A branch whose valid tokens are all below the top M would have mass zero and no way on (0/0). Which
    # branches those are is not known here, so exact children are listed for all and left empty elsewhere.
    stuck = (following < 0).all(dim=1)
    token, next_state = constraint.padded_children(torch.where(stuck, nodes, -1), width)
    return torch.cat([top, token], dim=1), torch.cat([following, next_state], dim=1)
