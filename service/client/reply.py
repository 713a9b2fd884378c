"""What a server answers, as a client sees it."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.answers.answer_types import AnswerResult
from retrieval.score_types import ScoreResult
from retrieval.types import RetrievalResult


@dataclass(frozen=True, slots=True)
class IndexRef:
    """Which index version answered."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as a client sees it.

    Attributes:
        result: The answer.
        queue_ms: Time the request waited for its batch, milliseconds.
        total_ms: Time from arrival at the server to the reply, milliseconds.
        index: Which index version answered.
    """

    result: RetrievalResult
    queue_ms: float
    total_ms: float
    index: IndexRef


@dataclass(frozen=True, slots=True)
class AnswerReply:
    """A JSON answer as a client sees it.

    Attributes:
        result: The answer.
        queue_ms: Time the request waited for its batch, milliseconds.
        total_ms: Time from arrival at the server to the reply, milliseconds.
        index: Which index version "titles" meant.
    """

    result: AnswerResult
    queue_ms: float
    total_ms: float
    index: IndexRef


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """Scores of titles as a client sees them.

    Attributes:
        result: The scores; of a mention its query is the mention's text.
        queue_ms: Time the request waited for its batch, milliseconds.
        total_ms: Time from arrival at the server to the reply, milliseconds.
        index: Which index version answered.
    """

    result: ScoreResult
    queue_ms: float
    total_ms: float
    index: IndexRef


@dataclass(frozen=True, slots=True)
class VectorsInfo:
    """The vectors of an index as a server has them.

    Attributes:
        method: What made them: "encoder" or "sentence-transformers".
        kind: How they are searched: "flat", "hnsw", "ivfpq" or "factory".
        dimensions: Length of a vector.
        count: Number of vectors.
        bytes: Size of their file, which is mapped.
        recall: Share of the known items that a search keeps first; None where nobody measured.
        usable: Whether they can be used.
        problem: Why not; empty where they can.
    """

    method: str
    kind: str
    dimensions: int
    count: int
    bytes: int
    recall: float | None
    usable: bool
    problem: str


@dataclass(frozen=True, slots=True)
class EvidenceInfo:
    """One kind of evidence of an index as a server has it.

    Attributes:
        kind: "names", "texts", "queries" or "vectors".
        count: Titles and aliases, entities with texts, past queries, or vectors.
        bytes: Size of its file, which is mapped.
        problem: Why it cannot be used; empty where it can.
    """

    kind: str
    count: int
    bytes: int
    problem: str


@dataclass(frozen=True, slots=True)
class RankingInfo:
    """The weights by which `auto` orders its candidates.

    Attributes:
        fitted: Whether they were fitted to this index; the library's own weights are used otherwise.
        fitted_with_model: Whether they were fitted with the model that answers.
        queries: What they were fitted on; empty where nothing was fitted.
        num_queries: Number of these queries.
        problem: Why the index's own ranking cannot be used; empty where it can.
    """

    fitted: bool
    fitted_with_model: bool
    queries: str
    num_queries: int
    problem: str


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index as a server serves it.

    Attributes:
        name: Name under which requests find it.
        version: Identifier of the version that is served.
        digest: Digest of the version's manifest.
        num_rows: Distinct surface forms (titles and aliases).
        num_entities: Entities.
        model: Name of the model that answers for it.
        device: Where the model runs.
        is_default: Whether requests without an index name go here.
        loaded_at: When the version was taken into service, seconds since the epoch; None where unknown.
        columns: Columns of metadata, each with its type: "string", "int", "float" or "bool".
        max_title_tokens: Tokens of the longest surface form, end token included.
        vectors: Its vectors; None where it has none.
        evidence: What proposes entities, one for each kind.
        ranking: How `auto` weighs evidence and model; None where there is no evidence.
    """

    name: str
    version: str
    digest: str
    num_rows: int
    num_entities: int
    model: str
    device: str
    is_default: bool
    loaded_at: float | None
    columns: tuple[tuple[str, str], ...]
    max_title_tokens: int
    vectors: VectorsInfo | None = None
    evidence: tuple[EvidenceInfo, ...] = ()
    ranking: RankingInfo | None = None


@dataclass(frozen=True, slots=True)
class ReloadReply:
    """What became of a reload.

    Attributes:
        index: What is served now.
        previous_version: The version that was served before.
        reloaded: Whether something was loaded: not when the live version was served already.
        open_ms: Time to open the new version and to check it, milliseconds.
        warm_up_ms: Time to warm it up, milliseconds.
    """

    index: IndexInfo
    previous_version: str
    reloaded: bool
    open_ms: float
    warm_up_ms: float
