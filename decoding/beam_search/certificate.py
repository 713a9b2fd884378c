"""Keeps what has to be proven of a query, and the open prefixes that keep it from being proven.

Who ranks rows wants the k best of them, and a search is over when nothing open can beat the k-th. Who makes
something else of rows, say entities with several rows each, may need fewer of them or many more, and only he
can tell. He says so through a goal, which an exact search asks as it goes on. Open are the prefixes that the
search dropped and may still go on from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from decoding.params import BeamParams


class FinishedRows(NamedTuple):
    """The rows of one query found so far, best score first. On the host.

    Attributes:
        row: Ranks in the constraint, -1 where it has no ranks. Shape: (n,), int64.
        logprob: log P_L of the rows. Shape: (n,), float64.
        length: In tokens, the end token included. Shape: (n,), int64.
    """

    row: npt.NDArray[np.int64]
    logprob: npt.NDArray[np.float64]
    length: npt.NDArray[np.int64]


class Goal(Protocol):
    """What one query is searched for. It must hold for good once it holds."""

    @property
    def num_rows(self) -> int:
        """Most rows that are kept for it, at least k."""

    def reached(self, rows: FinishedRows, unseen: float) -> bool:
        """Return whether what is wanted is proven.

        Args:
            rows: The best rows found, `num_rows` at most.
            unseen: No row that has not been among `rows`, now or before, has a larger score.
        """


class Goals:
    """The goals of Q queries. Each is asked only when what it is told has changed.

    Args:
        goals: None: the k best rows.
        params: One per query.

    Attributes:
        num_rows: Rows kept for each query: as many as its goal wants, k without one. Length Q.

    Raises:
        ValueError: there is not one entry per query; a query with a goal is not exact, or its goal wants
            fewer rows than k.
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
        """Those with a goal that is not known to be reached."""
        return [query for query, answer in self._answers.items() if not answer]

    def reached(self, query: int) -> bool:
        """Return what the goal of a query said last; False without one or before it has been asked."""
        return self._answers.get(query, False)

    def ask(self, query: int, rows: FinishedRows, unseen: float) -> None:
        """Ask the goal of a query, if it has not been told the same before."""
        goal = self._goals[query]
        told = (unseen, rows.row.tobytes() + rows.logprob.tobytes())
        if goal is not None and self._told.get(query) != told:
            self._told[query] = told
            self._answers[query] = goal.reached(rows, unseen)


_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


class Nodes(NamedTuple):
    """Prefixes of one query that have not been computed.

    Attributes:
        depth: Tokens, the last included. Shape: (n,), int64.
        parent: Number, on its level, of the branch that the last token continues. Shape: (n,), int64.
        token: The last token. Shape: (n,), int64.
        state: Constraint state after it. Shape: (n,), int64.
        logprob: log P_L of the prefix. Shape: (n,), float64.
        optimistic: No row below it has a larger score. Shape: (n,), float64.
    """

    depth: _Ints
    parent: _Ints
    token: _Ints
    state: _Ints
    logprob: _Floats
    optimistic: _Floats

    def take(self, which: npt.NDArray[np.bool_] | _Ints) -> Nodes:
        """Return some of them, by mask or by number."""
        return Nodes(
            self.depth[which],
            self.parent[which],
            self.token[which],
            self.state[which],
            self.logprob[which],
            self.optimistic[which],
        )


_NO_INTS = np.zeros(0, dtype=np.int64)
_NO_FLOATS = np.zeros(0)
NO_NODES = Nodes(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_FLOATS)


class OpenNodes:
    """The open prefixes of one query, on the host and bounded in number.

    When there are too many the worst are forgotten; how good they could have been is not, so what is said of
    the list stays true. With room for as many as the search may still compute nothing is lost by it: whoever
    has to compute the first one forgotten has to compute all that were kept before it.

    Args:
        max_depth: A prefix of so many tokens cannot be continued: it counts as forgotten at once.
        most: Most prefixes kept, at 48 bytes each.

    Attributes:
        nodes: The prefixes, in the order they were added.
        forgotten: The best score that anything forgotten could have had; -inf when nothing was.
    """

    def __init__(self, max_depth: int, most: int) -> None:
        self._max_depth = max_depth
        self._most = most
        self.nodes = NO_NODES
        self.forgotten = -math.inf

    def add(self, new: Nodes, last_score: float) -> None:
        """Add prefixes, but for those which the list has beaten.

        Args:
            new: Some of one length.
            last_score: Score of the last row of the list, -inf while it is not full.
        """
        self._forget(new.optimistic[new.depth >= self._max_depth])
        new = new.take(new.depth < self._max_depth)
        self.nodes = Nodes(*(np.concatenate(columns) for columns in zip(self.nodes, new, strict=True)))
        self.purge(last_score)
        surplus = len(self.nodes.optimistic) - self._most
        if surplus > 0:
            # Of equals the first stay: a stable order makes the choice a function of the search alone.
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
        """Best score that anything open or forgotten may have, -inf when there is nothing."""
        return max(self.forgotten, float(self.nodes.optimistic.max(initial=-math.inf)))

    def best(self, count: int) -> _Ints:
        """Numbers of the `count` most promising prefixes, best first; of equals the first added."""
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
