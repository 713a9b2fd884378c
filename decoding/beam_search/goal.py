"""What a caller wants to have proven of a query, where that is something else than its list of rows.

Who ranks rows wants the k best of them, and a search is over when nothing open can beat the k-th. Who makes
something else of rows, say entities with several rows each, may need fewer of them or many more, and only he
can tell. He says so through a goal, which an exact search asks as it goes on.
"""

from __future__ import annotations

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
