"""Holds labelled sets, the rankings that methods answer with, and rankings as metrics judge them.

To a metric an answer counts once, and namesakes of a judged entity stand under its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from retrieval.errors import InputError
from retrieval.types import Mention

# What stands before the title of a relevant answer that the index lacks, and before a text that is no title.
MISSING = "missing:"
INVALID = "invalid:"


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query, or a mention in context, and what answers it.

    Attributes:
        query_id: Unique in its set, as the set has it; run files encode white space in it.
        text: The query; of a mention, the mention's own text.
        mention: The mention in its context, for the mention template; None: a query.
        gold: Entity id -> grade, 0 for judged and irrelevant. Relevant answers that the index lacks are here
            too, under ids of their own (`missing:` and the title): they count as never found.
        evidence: Sets of entity ids, each of which answers the query whole (KILT); empty: every relevant
            entity is a set of its own.
        is_nil: Whether the label says that no entity answers (a mention outside the catalogue).
        document: What the query is part of, for bootstrap by document; None: it stands alone.
        namesakes: Entity id -> the id in `gold` that it is as good as. Where a label is a title that several
            entities have, the first of them stands in `gold` and the others here: metrics take each of them
            for that one, and do not ask for all.
    """

    query_id: str
    text: str
    mention: Mention | None = None
    gold: Mapping[str, int] = field(default_factory=dict)
    evidence: tuple[frozenset[str], ...] = ()
    is_nil: bool = False
    document: str | None = None
    namesakes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set of labelled queries.

    Attributes:
        name: How reports call it.
        kind: "queries", "kilt" or "mentions": decides which metrics lead.
        queries: In the order of the files.
        num_missing: Relevant answers that the index lacks.
        digest: Of the files it was read from.
        primary: The metric that leads, e.g. "nDCG@10", "Rprec(KILT)", "F1(InKB)".
        num_unjudged: Queries of the files that nothing is judged for; they are left out.
    """

    name: str
    kind: str
    queries: tuple[LabelledQuery, ...]
    num_missing: int
    digest: str
    primary: str
    num_unjudged: int = 0


@dataclass(frozen=True, slots=True)
class RankedEntity:
    """One answer of a ranking.

    Attributes:
        entity_id: In the index; "invalid:" and the text where a method wrote no title that exists.
        title: Its title, or the text that was written.
        score: Higher is better; equal scores are possible.
        logprob: The model's log-probability; None where the method has none.
    """

    entity_id: str
    title: str
    score: float
    logprob: float | None = None

    @property
    def is_valid(self) -> bool:
        """Whether it is an entity of the index."""
        return not self.entity_id.startswith(INVALID)


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """What a method answered to one query.

    Attributes:
        query_id: Of the set.
        entities: Best first; empty: no answer.
        seconds: Wall time of the query: its own where it was asked alone, its share of the batch otherwise.
        error: Why there is no answer, where that was an error (a query longer than the model's positions).
    """

    query_id: str
    entities: tuple[RankedEntity, ...]
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MethodRun:
    """What one method answered to all queries of a set.

    Attributes:
        method: Its name with its settings, as the command line spells it ("disc:2", "beam:10").
        set_name: The set.
        rankings: In the set's order, one per query.
        seconds: Wall time of all, loading left out.
        seed: Of its randomness; None: it has none.
        is_constrained: Whether it can only answer what exists: its invalid rate must be 0.
    """

    method: str
    set_name: str
    rankings: tuple[RankedAnswers, ...]
    seconds: float
    seed: int | None
    is_constrained: bool


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
    ranking: RankedAnswers
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
