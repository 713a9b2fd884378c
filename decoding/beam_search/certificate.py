"""Keeps the goal of each query and the open prefixes that keep it from being proven.

By default a query wants its k best rows and is done when nothing open can beat the k-th. A caller that makes
something else of rows, such as entities with several rows each, may need fewer or many more; it passes a
goal, which an exact search asks as it goes on. Open prefixes are those that the search dropped and may still
continue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from genret.decoding.params import BeamParams


class FinishedRows(NamedTuple):
    """The rows of one query found so far, best score first. On the host."""

    row: npt.NDArray[np.int64]  # Ranks in the constraint, -1 where it has no ranks. Shape: (n,), int64
    logprob: npt.NDArray[np.float64]  # log P_L of the rows. Shape: (n,), float64
    length: npt.NDArray[np.int64]  # In tokens, the end token included. Shape: (n,), int64


class Goal(Protocol):
    """The aim of one query's search. Once it is reached it must stay reached."""

    @property
    def num_rows(self) -> int:
        """Most rows kept for it, at least k."""

    def reached(self, rows: FinishedRows, unseen: float) -> bool:
        """Return whether the aim is proven.

        Args:
            rows: The best rows found, `num_rows` at most.
            unseen: No row that has not been among `rows`, now or before, has a larger score.
        """


class Goals:
    """The goals of Q queries; None: the k best rows. Each is asked only when its arguments have changed.

    `num_rows` are the rows kept for each query: as many as its goal wants, k without one.

    Raises:
        ValueError: the lengths differ; a query with a goal is not exact, or its goal wants fewer rows than k.
    """

    def __init__(self, goals: Sequence[Goal | None] | None, params: Sequence[BeamParams]) -> None:
        self._goals = list(goals) if goals is not None else [None] * len(params)
        if len(self._goals) != len(params):
            raise ValueError(f"goals must have one entry per query ({len(params)}), got {len(self._goals)}")
        self.num_rows: list[int] = []
        for query, (goal, mine) in enumerate(zip(self._goals, params, strict=True)):
            if goal is not None and not mine.exact:
                raise ValueError(f"goals[{query}]: only a query that is exact can have a goal")
            num_rows = mine.k if goal is None else goal.num_rows
            if num_rows < mine.k:
                raise ValueError(f"goals[{query}].num_rows must be at least k ({mine.k}), got {num_rows}")
            self.num_rows.append(num_rows)
        self._answers = {query: False for query, goal in enumerate(self._goals) if goal is not None}
        self._told: dict[int, tuple[float, bytes]] = {}

    @property
    def queries(self) -> list[int]:
        """Queries with a goal that is not known to be reached."""
        return [query for query, answer in self._answers.items() if not answer]

    def reached(self, query: int) -> bool:
        """Return the last answer of a query's goal; False without one or before it was asked."""
        return self._answers.get(query, False)

    def ask(self, query: int, rows: FinishedRows, unseen: float) -> None:
        """Ask the goal of a query, unless it was asked the same before."""
        goal = self._goals[query]
        told = (unseen, rows.row.tobytes() + rows.logprob.tobytes())
        if goal is not None and self._told.get(query) != told:
            self._told[query] = told
            self._answers[query] = goal.reached(rows, unseen)


_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Nodes(NamedTuple):
    """Prefixes of one query that have not been computed."""

    depth: _Ints  # Tokens, the last included. Shape: (n,), int64
    parent: _Ints  # Number, at its depth, of the branch that the last token continues. Shape: (n,), int64
    token: _Ints  # The last token. Shape: (n,), int64
    state: _Ints  # Constraint state after it. Shape: (n,), int64
    logprob: _Floats  # log P_L of the prefix. Shape: (n,), float64
    optimistic: _Floats  # No row below it has a larger score. Shape: (n,), float64

    def take(self, which: npt.NDArray[np.bool_] | _Ints) -> Nodes:
        """Return some of them, by mask or by number."""
        return Nodes._make(column[which] for column in self)


_NO_INTS = np.zeros(0, dtype=np.int64)
_NO_FLOATS = np.zeros(0)
NO_NODES = Nodes(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_FLOATS)


class OpenNodes:
    """The open prefixes of one query, on the host and bounded in number.

    When there are too many the worst are forgotten, but the best score they could have reached is kept, so
    what is said of the list stays true. If `most` is what the search may still compute, nothing is lost:
    computing the first forgotten prefix requires computing all kept ones before.

    `max_depth`: a prefix of this many tokens cannot be continued and counts as forgotten at once. `most`:
    most prefixes kept, at 48 bytes each.
    """

    def __init__(self, max_depth: int, most: int) -> None:
        self._max_depth = max_depth
        self._most = most
        self.nodes = NO_NODES  # The prefixes, in the order they were added
        self.forgotten = -math.inf  # Best score that anything forgotten could have had, -inf if nothing was

    def add(self, new: Nodes, last_score: float) -> None:
        """Add prefixes, except those that the list has beaten.

        `new`: prefixes of one length. `last_score`: score of the last row of the list, -inf while it is not
        full.
        """
        self._forget(new.optimistic[new.depth >= self._max_depth])
        new = new.take(new.depth < self._max_depth)
        self.nodes = Nodes(*(np.concatenate(columns) for columns in zip(self.nodes, new, strict=True)))
        self.purge(last_score)
        surplus = len(self.nodes.optimistic) - self._most
        if surplus > 0:
            # Among equals the first stay: a stable order makes the choice a function of the search alone.
            order = np.argsort(-self.nodes.optimistic, kind="stable")
            self._forget(self.nodes.optimistic[order[self._most :]])
            self.nodes = self.nodes.take(np.sort(order[: self._most]))

    def purge(self, last_score: float) -> None:
        """Forget the prefixes that the list has beaten. Scores of lists only rise, so they stay beaten."""
        beaten = self.nodes.optimistic <= last_score
        if beaten.any():
            self._forget(self.nodes.optimistic[beaten])
            self.nodes = self.nodes.take(~beaten)

    def bound(self) -> float:
        """Best score that anything open or forgotten may have, -inf if there is nothing."""
        return max(self.forgotten, float(self.nodes.optimistic.max(initial=-math.inf)))

    def best(self, count: int) -> _Ints:
        """Numbers of the `count` most promising prefixes, best first; among equals the first added."""
        scores = self.nodes.optimistic
        if len(scores) <= count:
            return np.argsort(-scores, kind="stable")
        last = np.partition(scores, len(scores) - count)[len(scores) - count]
        (promising,) = np.nonzero(scores >= last)
        return promising[np.argsort(-scores[promising], kind="stable")[:count]]

    def remove(self, numbers: _Ints) -> Nodes:
        """Take prefixes out and return them."""
        taken = self.nodes.take(numbers)
        stay = np.ones(len(self.nodes.depth), dtype=bool)
        stay[numbers] = False
        self.nodes = self.nodes.take(stay)
        return taken

    def _forget(self, optimistic: _Floats) -> None:
        self.forgotten = max(self.forgotten, float(optimistic.max(initial=-math.inf)))
