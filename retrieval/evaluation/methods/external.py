"""Rankings that another system made, read from a TREC run file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from retrieval.evaluation.catalogue import IndexTitles
from retrieval.evaluation.types import LabelledQuery, RankedEntity, Ranking


class RunFileMethod:
    """Answers what a run file says; queries it does not name have no answer, and no time is known.

    Args:
        name: As the command line spells it.
        file: The run file; read when it is first asked.
        k: Entities taken per query.
        titles: Of the index.
    """

    is_constrained = False
    is_random = False

    def __init__(self, name: str, file: str, k: int, titles: IndexTitles) -> None:
        self.name = name
        self._file = Path(file)
        self._k = k
        self._titles = titles

    def answer(
        self, queries: Sequence[LabelledQuery], seed: int, report: Callable[[int], None]
    ) -> list[Ranking]:
        """Return a ranking per query, in order. What the index lacks is an answer that does not exist.

        Raises:
            SourceError: the file is missing or malformed.
        """
        from retrieval.evaluation.run_files import read_run

        run = read_run(self._file)
        rankings = []
        for query in queries:
            listed = [self._checked(entity) for entity in run.get(query.query_id, ())[: self._k]]
            rankings.append(Ranking(query.query_id, tuple(listed)))
        report(len(rankings))
        return rankings
