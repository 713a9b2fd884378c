"""Replies of a server as a client sees them, and descriptions of indexes, which servers make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from genret.retrieval.answers.answer_types import AnswerResult
from genret.retrieval.complete_types import CompleteResult
from genret.retrieval.score_types import ScoreResult
from genret.retrieval.tables import Shown, plain
from genret.retrieval.types import RetrievalResult


@dataclass(frozen=True, slots=True)
class IndexRef:
    """The index version that answered."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True, repr=False)
class TimedReply(Shown):
    """A result with its times and its index.

    Attributes:
        result: The result; the query of a mention's is the mention's text.
        queue_ms: Time the request waited for its batch, milliseconds.
        total_ms: Time from arrival at the server to the reply, milliseconds.
        index: The index version that answered; of a JSON answer, the one that "titles" meant.
    """

    result: Any
    queue_ms: float
    total_ms: float
    index: IndexRef

    _told: ClassVar[tuple[str, ...]] = ("result.query", "total_ms", "index.name")

    def to_dict(self) -> dict[str, Any]:
        """Return the result with its times and its index, as the HTTP API does."""
        found = self.result.to_dict()
        times = {**found["timings"], "queue_ms": self.queue_ms, "total_ms": self.total_ms}
        return {**found, "timings": times, "index": plain(self.index)}


@dataclass(frozen=True, slots=True, repr=False)
class Reply(TimedReply):
    """The answer to a query."""

    result: RetrievalResult

    _rows, _has_ranks = "result.candidates", True


@dataclass(frozen=True, slots=True, repr=False)
class AnswerReply(TimedReply):
    """A JSON answer."""

    result: AnswerResult

    _told = ("result.query", "result.text", "total_ms", "index.name")


@dataclass(frozen=True, slots=True, repr=False)
class ScoreReply(TimedReply):
    """Scores of titles."""

    result: ScoreResult

    _rows = "result.scores"


@dataclass(frozen=True, slots=True, repr=False)
class CompleteReply(TimedReply):
    """Completions of a prefix."""

    result: CompleteResult

    _told = ("result.prefix", "total_ms", "index.name")
    _rows, _has_ranks = "result.completions", True


@dataclass(frozen=True, slots=True)
class VectorsInfo:
    """The vectors of an index.

    Attributes:
        method: Their maker: "encoder" or "sentence-transformers".
        kind: Search structure: "flat", "hnsw", "ivfpq" or "factory".
        dimensions: Length of a vector.
        count: Number of vectors.
        bytes: Size of their file, which is mapped.
        recall: Share of the known items that a search keeps first; None if it was not measured.
        usable: Whether they can be used.
        problem: Why not; empty if they can.
    """

    method: str
    kind: str
    dimensions: int
    count: int
    bytes: int
    recall: float | None = None
    usable: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceInfo:
    """One kind of evidence of an index.

    Attributes:
        kind: "names", "texts", "queries" or "vectors".
        count: Number of titles and aliases, entities with texts, past queries, or vectors.
        bytes: Size of its file, which is mapped.
        problem: Why it cannot be used; empty if it can.
    """

    kind: str
    count: int
    bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class RankingInfo:
    """The weights by which `auto` orders its candidates.

    Attributes:
        fitted: Whether they were fitted to this index; otherwise the library's own are used.
        fitted_with_model: Whether they were fitted with the model that answers.
        queries: Source of the queries they were fitted on; empty if not fitted.
        num_queries: Number of these queries.
        problem: Why the index's own ranking cannot be used; empty if it can.
    """

    fitted: bool
    fitted_with_model: bool
    queries: str = ""
    num_queries: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index as a server serves it.

    Attributes:
        name: Name under which requests find it.
        version: Identifier of the version.
        digest: Digest of the version's manifest.
        num_rows: Number of distinct forms (titles and aliases).
        num_entities: Number of entities.
        model: Name of the model that answers for it.
        device: Device of the model.
        is_default: Whether requests without an index name go here.
        loaded_at: Time at which the version was loaded, seconds since the epoch; None if unknown.
        columns: Columns of metadata, each with its type: "string", "int", "float" or "bool".
        max_title_tokens: Tokens of the longest form, end token included.
        vectors: Its vectors, if any.
        evidence: Its kinds of evidence.
        ranking: The weights of evidence and model for `auto`; None without evidence.
    """

    name: str
    version: str
    digest: str
    num_rows: int
    num_entities: int
    model: str
    device: str
    is_default: bool = False
    loaded_at: float | None = None
    columns: tuple[tuple[str, str], ...] = ()
    max_title_tokens: int = 0
    vectors: VectorsInfo | None = None
    evidence: tuple[EvidenceInfo, ...] = ()
    ranking: RankingInfo | None = None


@dataclass(frozen=True, slots=True)
class ReloadReply:
    """Outcome of a reload.

    Attributes:
        index: The index as served now.
        previous_version: The version that was served before.
        reloaded: Whether a version was loaded; not if the live version was served already.
        open_ms: Time to open and check the new version, milliseconds.
        warm_up_ms: Time to warm it up, milliseconds.
    """

    index: IndexInfo
    previous_version: str
    reloaded: bool
    open_ms: float
    warm_up_ms: float
