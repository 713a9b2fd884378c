"""One decode step under a constraint: the allowed edges out of every branch, with their log-probabilities.

Shared by beam search and DISC. Only the logits of allowed tokens are gathered; the softmax over the
vocabulary is one log-sum-exp.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from decoding.errors import InvalidLogitsError
from decoding.types import Children, Constraint

# Logits whose normalisers a CPU computes at once: their exponentials stay in its cache, and no second array
# of the size of all logits is made.
_PIECE = 1 << 19


class Edges(NamedTuple):
    """Allowed continuations of n branches, ragged, grouped by branch.

    Attributes:
        owner: Branch of each edge. Shape: (E,), int64, non-decreasing.
        token: Shape: (E,), int64.
        next_state: Shape: (E,), int64.
        logprob: log P_L(token | branch), normalised over the whole vocabulary. Shape: (E,), float64.
    """

    owner: Tensor
    token: Tensor
    next_state: Tensor
    logprob: Tensor


def expand(
    constraint: Constraint,
    states: Tensor,
    logits: Tensor,
    temperature: Tensor | None = None,
    top_m: int | None = None,
) -> Edges:
    """List the allowed edges out of every branch.

    Args:
        constraint: What may be written.
        states: State of each branch, -1 for none. Shape: (n,), int64.
        logits: Next-token logits of each branch. Shape: (n, V), float32.
        temperature: Per-branch divisor of the logits; None: 1. Shape: (n,), float32.
        top_m: Verify only the M likeliest tokens of each branch (PPV); a branch with none valid among
            them falls back to its exact children. None: exact children.

    Raises:
        InvalidLogitsError: logits of a live branch hold NaN or +inf, or are -inf everywhere.
    """
    if temperature is not None:
        logits = logits / temperature.unsqueeze(1)
    normaliser = log_normalisers(logits, states)
    check_normalisers(normaliser, states)
    if top_m is None:
        children = constraint.children(states)
    else:
        children = _verified_children(constraint, states, logits, min(top_m, logits.shape[-1]))
    logprob = logits[children.owner, children.token].double() - normaliser[children.owner].double()
    return Edges(children.owner, children.token, children.next_state, logprob)


def check_normalisers(normaliser: Tensor, states: Tensor) -> None:
    """Refuse what a model must not return. Asks the device.

    Args:
        normaliser: log sum exp of the logits of each branch. Shape: (n,).
        states: State of each branch, -1 for none. Shape: (n,), int64.

    Raises:
        InvalidLogitsError: logits of a live branch hold NaN or +inf, or are -inf everywhere.
    """
    broken = ~torch.isfinite(normaliser) & (states >= 0)
    if bool(broken.any()):
        raise InvalidLogitsError(
            f"the model returned NaN or infinite logits on {int(broken.sum())} of {len(states)} branches"
        )


def log_normalisers(logits: Tensor, states: Tensor | None = None) -> Tensor:
    """Return log sum exp of every row.

    Args:
        logits: Shape: (n, V).
        states: State of each branch, -1 for none: on a CPU such rows are not looked at, and have zero. None
            is for callers that may not ask how many these are. Shape: (n,), int64.

    Returns:
        Shape: (n,).
    """
    if not logits.is_cpu:
        return torch.logsumexp(logits, dim=-1)
    size = max(1, _PIECE // max(1, logits.shape[1]))
    live = None if states is None else torch.nonzero(states >= 0).flatten()
    if live is None or len(live) == len(logits):
        starts = range(0, max(1, len(logits)), size)
        return torch.cat([torch.logsumexp(logits[start : start + size], dim=-1) for start in starts])
    normaliser = logits.new_zeros(len(logits))
    for rows in torch.split(live, size):
        normaliser[rows] = torch.logsumexp(logits.index_select(0, rows), dim=-1)
    return normaliser


def _verified_children(constraint: Constraint, states: Tensor, logits: Tensor, top_m: int) -> Children:
    top = logits.topk(top_m, dim=-1).indices  # (n, M)
    following = constraint.verify(states, top)
    # A branch whose valid tokens are all below the top M would have mass zero and no way on (0/0).
    stuck = (following < 0).all(dim=1) & (states >= 0)
    exact = constraint.children(torch.where(stuck, states, -1))
    owner, column = torch.nonzero(following >= 0, as_tuple=True)
    owners = torch.cat([owner, exact.owner])
    order = torch.argsort(owners, stable=True)
    tokens = torch.cat([top[owner, column], exact.token])
    states_after = torch.cat([following[owner, column], exact.next_state])
    return Children(owners[order], tokens[order], states_after[order])
