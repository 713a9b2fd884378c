"""Makes draws of DISC with static shapes and no host synchronisation per step, for CUDA.

Every draw keeps its place in a rectangle (Q, D) to the end, with a branch of its own from the first token on;
ended draws and padding are carried along, and every branch has as many children as the widest node of its
depth. So a step is a fixed sequence of operations on shapes that do not depend on values: it can be compiled
whole or captured in a CUDA graph. Compared with `TreeProposer`, equal draws are computed once each, in
parallel; several waits per step are saved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from genret.decoding.constraints import MAX_CELLS, StaticConstraint
from genret.decoding.counter_rng import uniforms
from genret.decoding.disc.draws import DrawBatch, Draws, Proposer
from genret.decoding.late_flag import LateFlag, goes_on

# Most logits of one forward, at 4 bytes each: more draws than fit, but for one of each query, are made in
# several walks.
_MAX_LOGITS = 1 << 28

# Steps whose random numbers are made at once; hashing those of one step takes some 60 small kernels.
_STEPS_AHEAD = 16

# Place of broken logits, for their error.
_BROKEN = "a branch that was being written"


class StaticProposer(Proposer):
    """Draws by ancestral sampling among the valid tokens.

    It makes the same draws as `TreeProposer`, since the same random numbers go to the same tokens.
    """

    def __init__(self, batch: DrawBatch) -> None:
        assert isinstance(batch.constraint, StaticConstraint)  # see `suits`
        super().__init__(batch)
        self._constraint: StaticConstraint = batch.constraint

    @staticmethod
    def suits(batch: DrawBatch) -> bool:
        """Whether a batch can be drawn without waiting for the device, and gains by it."""
        plain = not batch.params[0].adaptive and batch.params[0].beam_size == 1
        return plain and batch.device.type == "cuda" and isinstance(batch.constraint, StaticConstraint)

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends; see `Proposer.run`."""
        columns: Counter[int] = Counter()
        passes: dict[int, list[tuple[int, int, int]]] = {}
        owners: list[int] = draws.query.tolist()
        vocab = self._batch.session.root_logits.shape[1]
        most = max(1, _MAX_LOGITS // (max(1, len(set(owners))) * vocab))
        for member, query in enumerate(owners):
            number, column = divmod(columns[query], most)
            passes.setdefault(number, []).append((query, column, member))
            columns[query] += 1
        threshold = torch.full_like(draws.log_weight, -math.inf) if log_threshold is None else log_threshold
        for members in passes.values():
            self._run_some(draws, members, stream, threshold + draws.log_bound)

    def _run_some(
        self, draws: Draws, members: Sequence[tuple[int, int, int]], stream: int, log_threshold: Tensor
    ) -> None:
        """Walk some draws to their ends: (query, column in the rectangle, index among all draws)."""
        queries = sorted({query for query, _, _ in members})
        batch = self._batch.unwritten(queries)
        walking = _Walking(self._constraint, batch, queries, members, draws, stream, log_threshold)
        flag = LateFlag(2, batch.device)
        self._walk(walking, flag)
        goes_on(flag.last(), _BROKEN)  # raises for broken logits that the loop ended too early to see
        self._batch.stop.absorb(batch.stop, queries)
        walking.collect(draws)
        self._nodes[batch.numbers] += walking.num_nodes
        if walking.log_root_mass is not None:
            self._log_root_mass[batch.numbers] = walking.log_root_mass

    def _walk(self, walking: _Walking, flag: LateFlag) -> None:
        """Take steps until all draws have ended; waits only for a flag of several steps ago."""
        logits = walking.batch.session.root_logits.unsqueeze(1)  # (Q, 1, V)
        for depth in range(self._constraint.max_depth):
            step = walking.take(logits, depth)
            flag.put(step.flags)
            if not goes_on(flag.latest(), _BROKEN) or depth + 1 == self._constraint.max_depth:
                break
            logits = walking.batch.session.step(step.parents, step.token_ids)
            walking.num_nodes += step.num_running
            self.num_steps += 1


class _Walking:
    """One walk of a rectangle of draws, (Q, D), with all inputs uploaded beforehand.

    `members` are those of `StaticProposer._run_some`, of the batch's `queries`.
    """

    def __init__(
        self,
        constraint: StaticConstraint,
        batch: DrawBatch,
        queries: Sequence[int],
        members: Sequence[tuple[int, int, int]],
        draws: Draws,
        stream: int,
        log_threshold: Tensor,
    ) -> None:
        self._constraint, self.batch = constraint, batch
        self._shape = (len(queries), 1 + max(column for _, column, _ in members))
        row = {query: place for place, query in enumerate(queries)}
        at = [(row[query] * self._shape[1] + column, member) for query, column, member in members]
        self._places, self._members = torch.tensor(at, dtype=torch.int64, device=batch.device).T
        self._log_threshold = self._spread(log_threshold, -math.inf)
        self._seed = batch.seed.unsqueeze(1)
        self._coordinates = (stream, self._spread(draws.sample, 0), self._spread(draws.number, 0))
        self._ahead = torch.arange(_STEPS_AHEAD, device=batch.device)[:, None, None]
        self._uniforms = self._ahead
        self.walk = DrawWalk(
            state=constraint.start(batch.numbers).unsqueeze(1).expand(self._shape).contiguous(),
            log_weight=self._spread(draws.log_weight, -math.inf),
            logprob=self._spread(draws.logprob, 0.0),
            running=self._spread(draws.running, False),
            finished=self._spread(draws.finished, False),
            broken=torch.zeros((), dtype=torch.bool, device=batch.device),
        )
        self.tokens: list[Tensor] = []
        self.num_nodes = torch.zeros(len(queries), dtype=torch.int64, device=batch.device)
        self.log_root_mass: Tensor | None = None

    def _spread(self, column: Tensor, padding: float) -> Tensor:
        """Return one value per place from one value per draw. Shapes: (Q, D) from (all draws,)."""
        cells = column.new_full((self._shape[0] * self._shape[1],), padding)
        cells[self._places] = column[self._members]
        return cells.view(self._shape)

    def take(self, logits: Tensor, depth: int) -> Step:
        """Write one more token on every running draw, `depth` written so far. `logits`: (Q, B, V)."""
        if depth % _STEPS_AHEAD == 0:
            self._uniforms = uniforms(self._seed, *self._coordinates, self._ahead + depth)
        step = static_step(
            self._constraint,
            self.walk,
            logits,
            self._uniforms[depth % _STEPS_AHEAD],
            self.batch.stop.dropped_queries(depth),
            self._log_threshold,
            self.batch.temperature,
            max(1, self._constraint.width_at(depth)),
            self.batch.top_m,
        )
        if depth == 0:
            self.log_root_mass = step.log_mass.squeeze(1)
        self.walk = step.walk
        self.tokens.append(step.token)
        return step

    def collect(self, draws: Draws) -> None:
        """Copy the walk and its tokens into all draws; those outside the rectangle stay as they are."""
        tokens = self.tokens
        for name in ("state", "log_weight", "logprob", "running", "finished"):
            column = getattr(draws, name).clone()
            column[self._members] = getattr(self.walk, name).flatten()[self._places]
            setattr(draws, name, column)
        unwritten = torch.full_like(draws.state, -1)
        draws.tokens.extend(unwritten.clone() for _ in range(len(tokens) - len(draws.tokens)))
        if tokens:
            written = torch.stack([step.flatten() for step in tokens])[:, self._places]
            for step, column in zip(draws.tokens, written, strict=False):
                step[self._members] = column


class DrawWalk(NamedTuple):
    """State of D draws of each of Q queries."""

    state: Tensor  # Constraint state reached. Shape: (Q, D), int64
    log_weight: Tensor  # log of the product of the valid masses met. Shape: (Q, D), float64
    logprob: Tensor  # log P_L of the written tokens. Shape: (Q, D), float64
    running: Tensor  # Not at its end yet; False for padding. Shape: (Q, D), bool
    finished: Tensor  # At its end, with a whole row. Shape: (Q, D), bool
    # Whether the logits of a live branch were ever NaN, +inf, or -inf everywhere; the draws are then
    # meaningless. Shape: (), bool.
    broken: Tensor


class Step(NamedTuple):
    """The outcome of one step."""

    walk: DrawWalk  # The draws after it
    token: Tensor  # Token written by each draw, -1 for none. Shape: (Q, D), int64
    log_mass: Tensor  # log of the valid mass at each branch, -inf if nothing is valid. Shape: (Q, B), float64
    # For the next forward: every running draw grows its own branch, -1 for the others. Shape: (Q, D), int64.
    parents: Tensor
    token_ids: Tensor  # For the next forward: `token`, 0 for padding. Shape: (Q, D), int64
    num_running: Tensor  # Running draws of each query. Shape: (Q,), int64
    flags: Tensor  # Whether any draw is running, and `walk.broken`. Shape: (2,), bool


class _Picked(NamedTuple):
    """The edge each draw takes from its branch, n branches with k draws each."""

    token: Tensor  # Shape: (n, k), int64
    next_state: Tensor  # Shape: (n, k), int64; -1 from a branch where nothing is valid
    logprob: Tensor  # Shape: (n, k), float64
    log_mass: Tensor  # Shape: (n, 1), float64


def static_step(
    constraint: StaticConstraint,
    walk: DrawWalk,
    logits: Tensor,
    u: Tensor,
    dropped: Tensor,
    log_threshold: Tensor,
    temperature: Tensor | None,
    width: int,
    top_m: int | None,
) -> Step:
    """Write one token on every running draw.

    Draws of a query that share a branch are in one state, or not running: all draws of a query share B = 1
    branch, or each has its own, B = D. No branch has more than `width` children, of which `MAX_CELLS` are
    handled in one piece. With `top_m` only the M likeliest tokens of a branch are verified, and its exact
    children listed if none is valid.

    Shapes: logits (Q, B, V); u, uniforms, (Q, D), float64; dropped, queries that may not write on, (Q,),
    bool; log_threshold, the least log weight of a draw that goes on, (Q, D), float64; temperature (Q,),
    float32.
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
    rows = max(1, MAX_CELLS // (width + (top_m or 0)))
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
    walk: DrawWalk,
    running: Tensor,
    broken: Tensor,
    log_threshold: Tensor,
    picked: _Picked,
) -> tuple[DrawWalk, Tensor]:
    """Return the draws after they took their edges, and the token each wrote."""
    shape = running.shape
    log_mass = picked.log_mass.expand(picked.token.shape).reshape(shape)
    moves = running & torch.isfinite(log_mass)  # if nothing is valid the weight becomes zero
    log_weight = torch.where(moves, walk.log_weight + log_mass, walk.log_weight)
    log_weight = torch.where(walk.running & ~moves, -math.inf, log_weight)
    state = torch.where(moves, picked.next_state.view(shape), walk.state)
    done = moves & constraint.is_final(state.flatten()).view(shape)
    after = DrawWalk(
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

    Shapes: `nodes` (n,), -1 for none; `logits` (n, V); `normaliser` (n,); `u` (n, k), float64.
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
    # A parallel sum need not grow by exactly each term: once in some 2**50 draws the search can stop at an
    # edge of probability zero.
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
    """The candidate tokens and the states behind them, -1 if not valid. Shapes: (n, W), int64."""
    if top_m is None:
        return constraint.padded_children(nodes, width)
    top = logits.topk(min(top_m, logits.shape[1]), dim=-1).indices
    following = constraint.verify(nodes, top)
    # A branch whose valid tokens are all below the top M would have mass zero and no way on (0/0). Those
    # branches are unknown to the host, so exact children are listed for all and left empty elsewhere.
    stuck = (following < 0).all(dim=1)
    token, next_state = constraint.padded_children(torch.where(stuck, nodes, -1), width)
    return torch.cat([top, token], dim=1), torch.cat([following, next_state], dim=1)
