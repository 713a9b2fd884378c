"""What decoders and constraints exchange: ragged children, the constraint protocol, results.

A constraint is a batched state machine over token ids. Decoders know only this protocol, so a trie of
titles, a filtered trie and a JSON grammar all decode the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Children(NamedTuple):
    """All continuations of a batch of states, ragged, grouped by owner in ascending order.

    Attributes:
        owner: Index into the batch of states. Shape: (E,), int64, non-decreasing.
        token: Token id of the edge. Shape: (E,), int64, ascending within one owner.
        next_state: State after the edge. Shape: (E,), int64.
    """

    owner: Tensor
    token: Tensor
    next_state: Tensor


class PaddedChildren(NamedTuple):
    """All continuations of a batch of states in a fixed number of columns.

    Attributes:
        token: Token id of the edge, -1 where there is none. Ascending within a row but for the gaps that
            edges which are not allowed leave. Shape: (n, width), int64.
        next_state: State after the edge, -1 where there is none. Shape: (n, width), int64.
    """

    token: Tensor
    next_state: Tensor


class Constraint(Protocol):
    """A batched state machine over token ids. States are non-negative int64; -1 is "no such state".

    A state is final when a whole sequence has been written, its end token included; final states of a
    title trie have no children.
    """

    @property
    def max_depth(self) -> int:
        """Length in tokens of the longest sequence, end token included."""

    def start(self, queries: Tensor) -> Tensor:
        """Return a start state for each entry; what may be written can differ from query to query.

        Args:
            queries: Number, in the batch, of the query each state is for. Shape: (n,), int64.

        Returns:
            Shape: (n,), int64.
        """

    def children(self, states: Tensor) -> Children:
        """Return every allowed continuation of every state. `states` shape: (n,), int64."""

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidate tokens per state (parallel prefix verification).

        Args:
            states: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.

        Returns:
            Next state, or -1 where the token does not continue the prefix. Shape: (n, M), int64.
        """

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state: `verify` with M = 1, flattened. Shape: (n,), int64."""

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole sequence has been written. Shape: (n,), bool."""

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of the row a final state stands for, -1 without ranks. Shape: (n,), int64."""


@runtime_checkable
class StaticConstraint(Constraint, Protocol):
    """A constraint whose every step can have static shapes and ask the device nothing.

    `verify`, `advance`, `is_final` and `padded_children` can be traced by `torch.compile` and captured in a
    CUDA graph; `children`, whose answer's size depends on the states, cannot.
    """

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """Return every allowed continuation of every state in `width` columns.

        Args:
            states: Shape: (n,), int64.
            width: At least `width_at` of each state's depth; children behind it would be left out.

        Raises:
            ValueError: a state has more children and looking costs no waiting.
        """

    def width_at(self, depth: int) -> int:
        """Return the most columns any state needs that is `depth` tokens deep; the host knows it."""


@runtime_checkable
class WideConstraint(Constraint, Protocol):
    """A constraint that lets through most tokens of most states: free text, the strings of a grammar.

    Listing children would cost more than the model's own softmax; beam search checks the likeliest tokens
    instead, and lists only where too few of them are allowed.
    """

    @property
    def is_wide(self) -> bool:
        """Whether that is so; False: children are listed as with any other constraint."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One finished sequence.

    Attributes:
        token_ids: The written row, end token included.
        row: Rank of the row in the constraint, -1 where the constraint has no ranks.
        logprob: log P_L(row | prompt), natural logarithm, temperature 1 unless a temperature was asked.
    """

    token_ids: tuple[int, ...]
    row: int
    logprob: float

    def score(self, length_penalty: float = 0.0) -> float:
        """Return logprob / length ** length_penalty, what beam search ranks by."""
        return self.logprob / math.pow(len(self.token_ids), length_penalty)
