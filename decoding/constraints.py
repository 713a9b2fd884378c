"""Defines the constraint protocol; lists, weighs and samples the edges allowed in one decode step.

Decoders know only this protocol, so a trie of titles, a filtered trie and a JSON grammar all decode the same
way. Only the logits of allowed tokens are gathered; the softmax over the vocabulary is one log-sum-exp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from genret.decoding.errors import InvalidLogitsError


class Children(NamedTuple):
    """All continuations of a batch of states, ragged, grouped by owner in ascending order."""

    owner: Tensor  # Index into the batch of states. Shape: (E,), int64, non-decreasing
    token: Tensor  # Token id of the edge. Shape: (E,), int64, ascending within one owner
    next_state: Tensor  # State after the edge. Shape: (E,), int64


class PaddedChildren(NamedTuple):
    """All continuations of a batch of states in a fixed number of columns."""

    # Token id of the edge, -1 for none. Ascending within a row, with gaps for edges that are not allowed.
    # Shape: (n, width), int64.
    token: Tensor
    next_state: Tensor  # State after the edge, -1 for none. Shape: (n, width), int64


class Constraint(Protocol):
    """A batched state machine over token ids. States are non-negative int64; -1 is "no such state".

    A state is final once a whole sequence, end token included, has been written; final states of a title trie
    have no children.
    """

    @property
    def max_depth(self) -> int:
        """Length in tokens of the longest sequence, end token included."""

    def start(self, queries: Tensor) -> Tensor:
        """Return a start state for each entry; queries may differ in what is allowed. Shapes: (n,), int64.

        Args:
            queries: Number, in the batch, of the query each state is for.
        """

    def children(self, states: Tensor) -> Children:
        """Return every allowed continuation of every state. `states` shape: (n,), int64."""

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidates per state (parallel prefix verification); -1 if one does not continue it.

        Shapes: states (n,), token_ids (n, M); returns (n, M), int64.
        """

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state: `verify` with M = 1, flattened. Shape: (n,), int64."""

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole sequence has been written. Shape: (n,), bool."""

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of a final state's row, -1 without ranks. Shape: (n,), int64."""


@runtime_checkable
class StaticConstraint(Constraint, Protocol):
    """A constraint whose every step can have static shapes and never waits for the device.

    `verify`, `advance`, `is_final` and `padded_children` can be traced by `torch.compile` and captured in a
    CUDA graph; `children`, whose size depends on the states, cannot.
    """

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """Return every allowed continuation of every state in `width` columns.

        Args:
            states: Shape: (n,), int64.
            width: At least `width_at` of each state's depth; further children would be left out.

        Raises:
            ValueError: a state has more children; checked only if that does not wait for a device.
        """

    def width_at(self, depth: int) -> int:
        """Return the most columns that a state at this depth needs; known to the host."""


@runtime_checkable
class WideConstraint(Constraint, Protocol):
    """A constraint that may allow most tokens in most states: free text, the strings of a grammar.

    Listing children would cost more than the model's own softmax; beam search checks the likeliest tokens
    instead, and lists children only if too few of them are allowed.
    """

    @property
    def is_wide(self) -> bool:
        """Whether most tokens are allowed; False: children are listed as with other constraints."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One finished sequence."""

    token_ids: tuple[int, ...]  # The written row, end token included
    row: int  # Rank of the row in the constraint, -1 if it has no ranks
    logprob: float  # log P_L(row | prompt), natural logarithm, at temperature 1 unless another was given

    def score(self, length_penalty: float = 0.0) -> float:
        """Return logprob / length ** length_penalty, the score of beam search."""
        return self.logprob / math.pow(len(self.token_ids), length_penalty)


# Logits whose normalisers a CPU computes at once: their exponentials stay in its cache, and no second array
# of the size of all logits is made.
_PIECE = 1 << 19
# Children that padded listings handle in one piece, at about 60 bytes each; a catalogue's root can have tens
# of thousands.
MAX_CELLS = 1 << 22


class Edges(NamedTuple):
    """Allowed continuations of n branches, ragged, grouped by branch."""

    owner: Tensor  # Branch of each edge. Shape: (E,), int64, non-decreasing
    token: Tensor  # Shape: (E,), int64
    next_state: Tensor  # Shape: (E,), int64
    logprob: Tensor  # log P_L(token | branch), normalised over the whole vocabulary. Shape: (E,), float64


def expand(
    constraint: Constraint,
    states: Tensor,
    logits: Tensor,
    temperature: Tensor | None = None,
    top_m: int | None = None,
) -> Edges:
    """List the allowed edges out of every branch.

    Args:
        constraint: The constraint.
        states: State of each branch, -1 for none. Shape: (n,), int64.
        logits: Next-token logits of each branch. Shape: (n, V), float32.
        temperature: Per-branch divisor of the logits; None: 1. Shape: (n,), float32.
        top_m: Verify only the M likeliest tokens of each branch (PPV); a branch with none valid among them
            falls back to its exact children. None: exact children.

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
        top = logits.topk(min(top_m, logits.shape[-1]), dim=-1).indices  # (n, M)
        following = constraint.verify(states, top)
        # A branch whose valid tokens are all below the top M would have mass zero and no way on (0/0).
        stuck = (following < 0).all(dim=1)
        children = verified_children(constraint, states, top, following, stuck)
    logprob = logits[children.owner, children.token].double() - normaliser[children.owner].double()
    return Edges(children.owner, children.token, children.next_state, logprob)


def check_normalisers(normaliser: Tensor, states: Tensor) -> None:
    """Raise InvalidLogitsError if a branch with a state has a broken normaliser. Shapes: (n,). Waits."""
    broken = ~torch.isfinite(normaliser) & (states >= 0)
    if bool(broken.any()):
        raise InvalidLogitsError(
            f"the model returned NaN or infinite logits on {int(broken.sum())} of {len(states)} branches"
        )


def log_normalisers(logits: Tensor, states: Tensor | None = None, most_at_once: int | None = None) -> Tensor:
    """Return log sum exp of every row of logits, (n, V), in float32 at least. Shape: (n,).

    Args:
        logits: Logits of any floating point type.
        states: -1 for branches that do not exist: on a CPU such rows are skipped and get zero. None computes
            all rows, without waiting for the device.
        most_at_once: Most logits that another device than a CPU computes together; None without bound.
    """
    piece = _PIECE if logits.is_cpu else most_at_once or logits.numel()
    size = max(1, piece // max(1, logits.shape[1]))
    live = None if states is None or not logits.is_cpu else torch.nonzero(states >= 0).flatten()
    if live is None or len(live) == len(logits):
        return torch.cat([_log_sums(part) for part in torch.split(logits, size)])
    normaliser = logits.new_zeros(len(logits), dtype=torch.promote_types(logits.dtype, torch.float32))
    for rows in torch.split(live, size):
        normaliser[rows] = _log_sums(logits.index_select(0, rows))
    return normaliser


def _log_sums(logits: Tensor) -> Tensor:
    return torch.logsumexp(at_least_float32(logits), dim=-1)


def at_least_float32(logits: Tensor) -> Tensor:
    """Convert logits to a type that probabilities can be computed in."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def verified_children(
    constraint: Constraint, states: Tensor, tokens: Tensor, following: Tensor, exact: Tensor
) -> Children:
    """List the verified tokens of every state, or all of its children where `exact`, (n,), is true.

    `following` are the states behind `tokens`, -1 where one is not valid. Shapes: (n, M), int64.
    """
    listed = constraint.children(torch.where(exact, states, -1))
    owner, column = torch.nonzero((following >= 0) & ~exact.unsqueeze(1), as_tuple=True)
    owners = torch.cat([owner, listed.owner])
    order = torch.argsort(owners, stable=True)
    token = torch.cat([tokens[owner, column], listed.token])
    state = torch.cat([following[owner, column], listed.next_state])
    return Children(owners[order], token[order], state[order])


class EdgeChooser:
    """Samples among ragged edges by inverse transform, many draws per node."""

    def __init__(self, edges: Edges, num_nodes: int) -> None:
        device = edges.logprob.device
        counts = torch.bincount(edges.owner, minlength=num_nodes)
        self._end = counts.cumsum(0)  # (n,) one past a node's last edge
        self._begin = self._end - counts
        largest = torch.full((num_nodes,), -math.inf, dtype=torch.float64, device=device)
        largest = largest.scatter_reduce(0, edges.owner, edges.logprob, "amax")
        base = torch.where(torch.isfinite(largest), largest, 0.0)
        weight = torch.exp(edges.logprob - base[edges.owner])
        self._cumulative = torch.cat([weight.new_zeros(1), weight.cumsum(0)])  # (E + 1,)
        total = torch.zeros_like(base).scatter_add(0, edges.owner, weight)
        self.log_mass = torch.log(total) + base  # (n,) log of the valid mass; -inf when nothing is valid
        # Rounding must never carry the log of a probability above zero.
        self.log_mass = self.log_mass.clamp(max=0.0)

    def choose(self, node: Tensor, u: Tensor) -> Tensor:
        """Return one edge per node, (D,), and uniform, (D,); in range but meaningless without valid mass."""
        low = self._cumulative[self._begin[node]]
        high = self._cumulative[self._end[node]]
        # Strictly below the end of the run, so that the search reaches neither the next node's edges nor an
        # edge of probability zero at the end.
        target = torch.minimum(low + u * (high - low), torch.nextafter(high, low))
        edge = torch.searchsorted(self._cumulative[1:], target, right=True)
        last = (len(self._cumulative) - 2) if len(self._cumulative) > 1 else 0
        return torch.minimum(edge.clamp(max=last), (self._end[node] - 1).clamp(min=0))
