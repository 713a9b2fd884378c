"""Rankings as metrics see them: each answer once, namesakes of an answer under its id."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.errors import InputError
from retrieval.evaluation.types import MISSING, LabelledQuery, LabelledSet, MethodRun, Ranking


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """A query with what was answered to it.

    Attributes:
        query: The query.
        ranking: The answer as the method gave it.
        entity_ids: The answer, best first, distinct: what is said twice counts where it is said first and
            later answers move up, as in KILT's scripts and as TREC runs demand. A namesake of a judged entity
            stands under that entity's id. Texts that are no titles keep their places.
    """

    query: LabelledQuery
    ranking: Ranking
    entity_ids: tuple[str, ...]

    @property
    def is_judged(self) -> bool:
        """Whether anything is judged: ranking metrics have no meaning for a mention labelled NIL."""
        return bool(self.query.gold)

    @property
    def is_answerable(self) -> bool:
        """Whether the index has a right answer."""
        return any(grade > 0 and not name.startswith(MISSING) for name, grade in self.query.gold.items())

    @property
    def prediction(self) -> str | None:
        """The entity that is named first; None: no answer, or a text that is no title."""
        first = self.ranking.entities[0] if self.ranking.entities else None
        return self.entity_ids[0] if first is not None and first.is_valid else None

    @property
    def is_hit(self) -> bool:
        """Whether the entity named first is a right answer."""
        return self.prediction is not None and self.query.gold.get(self.prediction, 0) > 0


def judge(labelled: LabelledSet, run: MethodRun) -> list[JudgedRanking]:
    """Put every ranking beside its query.

    Raises:
        InputError: the run is not one of this set: there are more or fewer rankings, or others.
    """
    if len(run.rankings) != len(labelled.queries):
        raise InputError(
            "run",
            f"expected {len(labelled.queries)} rankings, one per query of {labelled.name}, "
            f"got {len(run.rankings)}",
        )
    judged = []
    for number, (query, ranking) in enumerate(zip(labelled.queries, run.rankings, strict=True)):
        if query.query_id != ranking.query_id:
            raise InputError(
                f"run.rankings[{number}]",
                f"expected the query {query.query_id!r} of {labelled.name}, got {ranking.query_id!r}",
            )
        named = (query.namesakes.get(e.entity_id, e.entity_id) for e in ranking.entities)
        judged.append(JudgedRanking(query, ranking, tuple(dict.fromkeys(named))))
    return judged
