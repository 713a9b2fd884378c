"""Holds labelled sets, the rankings that methods answer with, and rankings as metrics judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from genret.retrieval.types import Mention

# Prefixes of the title of a relevant answer that the index lacks, and of a text that is no title.
MISSING = "missing:"
INVALID = "invalid:"


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query, or a mention in context, with its right answers."""

    query_id: str  # id, unique in its set; run files encode white space in it
    text: str  # the query, or the mention's own text
    mention: Mention | None = None  # the mention in its context, for the mention template; None for a query
    # Entity id -> grade, 0 for judged and irrelevant. A relevant answer that the index lacks has its own id
    # (`missing:` and the title) and counts as never found
    gold: Mapping[str, int] = field(default_factory=dict)
    # Sets of entity ids, each of which answers the query whole (KILT); empty: every relevant entity is a
    # set of its own
    evidence: tuple[frozenset[str], ...] = ()
    is_nil: bool = False  # whether the label says that no entity answers (a mention outside the catalogue)
    document: str | None = None  # document of the query, for bootstrap by document; None: it stands alone
    # Entity id -> the id in `gold` that it counts as. If several entities have the title of a label, the
    # first stands in `gold` and the others here
    namesakes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A set of labelled queries."""

    name: str  # name in reports
    kind: str  # "queries", "kilt" or "mentions": decides which metrics lead
    queries: tuple[LabelledQuery, ...]  # queries in the order of the files
    digest: str  # digest of the files it was read from
    num_unjudged: int = 0  # number of queries that were left out, as nothing is judged for them

    @property
    def missing(self) -> list[str]:
        """Relevant answers that the index lacks, each once a query."""
        return [e for q in self.queries for e, grade in q.gold.items() if grade > 0 and e.startswith(MISSING)]


@dataclass(frozen=True, slots=True)
class RankedEntity:
    """One answer of a ranking."""

    entity_id: str  # id in the index; "invalid:" and the text if the method wrote no title that exists
    title: str  # title of the entity, or the text that was written
    score: float  # score, higher is better; equal scores are possible
    logprob: float | None = None  # log-probability of the model; None if the method has none

    @property
    def is_valid(self) -> bool:
        """Whether it is an entity of the index."""
        return not self.entity_id.startswith(INVALID)


@dataclass(frozen=True, slots=True)
class RankedAnswers:
    """A method's answer to one query."""

    query_id: str  # id of the query in its set
    entities: tuple[RankedEntity, ...]  # answers, best first; may be empty
    seconds: float = 0.0  # wall time of the query, or its share of the batch's
    # Error that left the query without answers (a query longer than the model's positions)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MethodRun:
    """One method's answers to all queries of a set."""

    method: str  # name with settings, as the command line spells it ("disc:2", "beam:10")
    set_name: str  # name of the set
    rankings: tuple[RankedAnswers, ...]  # one ranking per query, in the set's order
    seconds: float  # wall time of all, without loading
    seed: int | None  # seed; None if the method is not random
    is_constrained: bool  # whether it can only answer with entities of the index: its invalid rate must be 0


@dataclass(frozen=True, slots=True)
class JudgedRanking:
    """A query with the answer to it."""

    query: LabelledQuery  # the query
    ranking: RankedAnswers  # the answer as the method gave it
    # Distinct answers, best first: a repetition is dropped and later answers move up, as in KILT's scripts
    # and in TREC runs. A namesake of a judged entity stands under that entity's id. Texts that are no
    # titles keep their places
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
        """The entity that is named first; None without an answer, or for a text that is no title."""
        first = self.ranking.entities[0] if self.ranking.entities else None
        return self.entity_ids[0] if first is not None and first.is_valid else None

    @property
    def is_hit(self) -> bool:
        """Whether the entity named first is a right answer."""
        return self.prediction is not None and self.query.gold.get(self.prediction, 0) > 0


def judge(labelled: LabelledSet, run: MethodRun) -> list[JudgedRanking]:
    """Put every ranking of a run of this set beside its query."""
    judged = []
    for query, ranking in zip(labelled.queries, run.rankings, strict=True):
        named = (query.namesakes.get(e.entity_id, e.entity_id) for e in ranking.entities)
        judged.append(JudgedRanking(query, ranking, tuple(dict.fromkeys(named))))
    return judged
