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
    """A result with its times and its index."""

    result: Any  # the result; the query of a mention's is the mention's text
    queue_ms: float  # time the request waited for its batch, milliseconds
    total_ms: float  # time from arrival at the server to the reply, milliseconds
    index: IndexRef  # the index version that answered; of a JSON answer, the one that "titles" meant

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
    """The vectors of an index."""

    method: str  # their maker: "encoder" or "sentence-transformers"
    kind: str  # search structure: "flat", "hnsw", "ivfpq" or "factory"
    dimensions: int  # length of a vector
    count: int  # number of vectors
    bytes: int  # size of their file, which is mapped
    # Share of the known items that a search keeps first; None if it was not measured
    recall: float | None = None
    usable: bool = True  # whether they can be used
    problem: str = ""  # why not; empty if they can


@dataclass(frozen=True, slots=True)
class EvidenceInfo:
    """One kind of evidence of an index."""

    kind: str  # "names", "texts", "queries" or "vectors"
    count: int  # number of titles and aliases, entities with texts, past queries, or vectors
    bytes: int  # size of its file, which is mapped
    problem: str = ""  # why it cannot be used; empty if it can


@dataclass(frozen=True, slots=True)
class RankingInfo:
    """The weights by which `auto` orders its candidates."""

    fitted: bool  # whether they were fitted to this index; otherwise the library's own are used
    fitted_with_model: bool  # whether they were fitted with the model that answers
    queries: str = ""  # source of the queries they were fitted on; empty if not fitted
    num_queries: int = 0  # number of these queries
    problem: str = ""  # why the index's own ranking cannot be used; empty if it can


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index as a server serves it."""

    name: str  # name under which requests find it
    version: str  # identifier of the version
    digest: str  # digest of the version's manifest
    num_rows: int  # number of distinct forms (titles and aliases)
    num_entities: int  # number of entities
    model: str  # name of the model that answers for it
    device: str  # device of the model
    is_default: bool = False  # whether requests without an index name go here
    # Time at which the version was loaded, seconds since the epoch; None if unknown
    loaded_at: float | None = None
    # Columns of metadata, each with its type: "string", "int", "float" or "bool"
    columns: tuple[tuple[str, str], ...] = ()
    max_title_tokens: int = 0  # tokens of the longest form, end token included
    vectors: VectorsInfo | None = None  # its vectors, if any
    evidence: tuple[EvidenceInfo, ...] = ()  # its kinds of evidence
    ranking: RankingInfo | None = None  # the weights of evidence and model for `auto`; None without evidence


@dataclass(frozen=True, slots=True)
class ReloadReply:
    """Outcome of a reload."""

    index: IndexInfo  # the index as served now
    previous_version: str  # the version that was served before
    reloaded: bool  # whether a version was loaded; not if the live version was served already
    open_ms: float  # time to open and check the new version, milliseconds
    warm_up_ms: float  # time to warm it up, milliseconds
