"""Rankings that another system made, read from a TREC run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retrieval.evaluation.catalogue import IndexTitles
from retrieval.evaluation.types import INVALID, LabelledQuery, RankedEntity, Ranking
from retrieval.types import Entity


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
        listed = [run.get(query.query_id, ())[: self._k] for query in queries]
        known = self._titles.entities(list({entity.entity_id for found in listed for entity in found}))
        rankings = [
            Ranking(query.query_id, tuple(_checked(entity, known) for entity in found))
            for query, found in zip(queries, listed, strict=True)
        ]
        report(len(rankings))
        return rankings


def _checked(answer: RankedEntity, known: Mapping[str, Entity]) -> RankedEntity:
    entity = known.get(answer.entity_id)
    if entity is None:
        return replace(answer, entity_id=INVALID + answer.entity_id)
    return replace(answer, title=entity.title)
