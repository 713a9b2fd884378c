"""What evaluation exchanges: labelled queries, rankings, and everything one method did on one set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class Ranking:
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
    rankings: tuple[Ranking, ...]
    seconds: float
    seed: int | None
    is_constrained: bool
