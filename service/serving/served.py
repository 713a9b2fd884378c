"""Defines what serving needs of a retriever and of its opener, and keeps the table of served indexes.

A retriever may tell of its caches: what they did and what they hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from decoding.cancellation import CancelToken
from decoding.errors import DecodingError
from retrieval.answers.answer_types import AnswerRequest, AnswerResult
from retrieval.errors import GenretError
from retrieval.score_types import ScoreRequest, ScoreResult
from retrieval.types import Mention, RetrievalResult, RetrieveRequest
from service.configuration.server_config import IndexSpec
from service.errors import UnknownIndexError

Request = RetrieveRequest | AnswerRequest | ScoreRequest
Result = RetrievalResult | AnswerResult | ScoreResult
Outcome = Result | GenretError | DecodingError
# Answers requests of one kind, in order, each with a token that is polled; errors of single requests are
# values. Blocks.
BatchCall = Callable[[Sequence[Any], Sequence[CancelToken]], Sequence[Outcome]]


class ServedRetriever(Protocol):
    """The part of `retrieval.Retriever` that a server uses."""

    @property
    def retrieve_batch(self) -> BatchCall:
        """Answers `RetrieveRequest`s with titles."""

    @property
    def score_batch(self) -> BatchCall:
        """Answers `ScoreRequest`s."""

    @property
    def answer_batch(self) -> BatchCall:
        """Answers `AnswerRequest`s with JSON."""

    def prompt_tokens(self, request: RetrieveRequest) -> int:
        """Return the length of the request's prompt; raises InputError for what cannot be answered."""

    def mention_request(self, mention: Mention, asked: RetrieveRequest) -> RetrieveRequest:
        """Return the request that links a mention with the model's template for mentions.

        Args:
            mention: The mention and its context.
            asked: What else is asked; its query is a placeholder.

        Raises:
            InputError: the mention is blank.
        """

    def prepare_answer(self, request: AnswerRequest) -> int:
        """Compile the request's schema, unless it is known, and return the length of its prompt.

        May take as long as compiling may; raises InputError for what cannot be answered.
        """

    def warm_up_steps(self) -> Iterable[Callable[[], object]]:
        """Return what makes a first request slower than the next, in pieces that each block for a while.

        Other requests may be answered between two of them.
        """

    def trial(self, num_requests: int) -> tuple[int, float]:
        """Answer so many plain requests, and return their work in tokens and how long they took. Blocks."""


@dataclass(frozen=True, slots=True)
class VectorsDescription:
    """The vectors of an index version as they are served.

    Attributes:
        method: What made them: "encoder" or "sentence-transformers".
        kind: How they are searched: "flat", "hnsw", "ivfpq" or "factory".
        dimensions: Length of a vector.
        count: Number of vectors.
        bytes: Size of their file, which is mapped.
        recall: Share of the known items that a search keeps first; None where nobody measured.
        problem: Why they cannot be used; None where they can.
    """

    method: str
    kind: str
    dimensions: int
    count: int
    bytes: int
    recall: float | None = None
    problem: GenretError | None = None


@dataclass(frozen=True, slots=True)
class EvidenceDescription:
    """One kind of evidence of an index version as it is served.

    Attributes:
        kind: "names", "texts", "queries" or "vectors".
        count: Titles and aliases, entities with texts, past queries, or vectors.
        bytes: Size of its file, which is mapped.
        problem: Why it cannot be used; None where it can.
    """

    kind: str
    count: int
    bytes: int
    problem: GenretError | None = None


@dataclass(frozen=True, slots=True)
class RankingDescription:
    """The weights by which `auto` orders its candidates.

    Attributes:
        fitted: Whether they were fitted to this index; the library's own weights are used otherwise.
        fitted_with_model: Whether they were fitted with the model that answers.
        queries: What they were fitted on; empty where nothing was fitted.
        num_queries: Number of these queries.
        problem: Why the index's own ranking cannot be used; None where it can.
    """

    fitted: bool
    fitted_with_model: bool
    queries: str = ""
    num_queries: int = 0
    problem: GenretError | None = None


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """An index version as it is served.

    Attributes:
        name: Name under which requests find it.
        version: Identifier of the version.
        digest: Digest of the version's manifest.
        num_rows: Distinct surface forms.
        num_entities: Entities.
        model: Name of the model that answers for it.
        device: Where the model runs.
        loaded_at: When the version was taken into service, seconds since the epoch; 0 where nobody noted it.
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
    loaded_at: float = 0.0
    columns: tuple[tuple[str, str], ...] = ()
    max_title_tokens: int = 0
    vectors: VectorsDescription | None = None
    evidence: tuple[EvidenceDescription, ...] = ()
    ranking: RankingDescription | None = None

    def scored_forms(self, request: RetrieveRequest) -> int:
        """Return how many surface forms a request has scored, about: 0 where there is no shortlist to score.

        A filter that allows few entities has them scored without evidence, too; nobody counts those here.
        """
        if not request.proposals:
            return 0
        can_propose = any(evidence.problem is None for evidence in self.evidence)
        if not can_propose and self.num_entities > request.proposals:
            return 0
        entities = min(request.proposals, self.num_entities)
        return math.ceil(entities * self.num_rows / max(self.num_entities, 1))


@dataclass(frozen=True, slots=True, eq=False)
class ServedIndex:
    """An open index with the retriever that answers for it.

    Requests keep the object they were admitted with, so a table entry can be replaced while they run.
    """

    description: IndexDescription
    retriever: ServedRetriever


class IndexTable:
    """The indexes of a server by name. The first one added is the default. Lives on one event loop."""

    def __init__(self) -> None:
        self._served: dict[str, ServedIndex] = {}
        self._users: Counter[ServedIndex] = Counter()
        self._free: Callable[[ServedIndex], None] = _keep

    def on_free(self, tell: Callable[[ServedIndex], None]) -> None:
        """Have `tell` called with every index that was replaced, when its last request has left."""
        self._free = tell

    def put(self, served: ServedIndex) -> None:
        """Add an index, or replace the one of the same name; its place stays."""
        replaced = self._served.get(served.description.name)
        self._served[served.description.name] = served
        if replaced is not None and replaced is not served and replaced not in self._users:
            self._free(replaced)

    def resolve(self, name: str) -> ServedIndex:
        """Return the index called `name`, the default one for an empty name.

        Raises:
            UnknownIndexError: there is none.
        """
        if not name and self._served:
            return next(iter(self._served.values()))
        if name not in self._served:
            raise UnknownIndexError(name, list(self._served))
        return self._served[name]

    @contextmanager
    def use(self, name: str) -> Iterator[ServedIndex]:
        """Resolve an index for the length of a request, which keeps its version open.

        Raises:
            UnknownIndexError: there is none.
        """
        served = self.resolve(name)
        self._users[served] += 1
        try:
            yield served
        finally:
            self._users[served] -= 1
            if not self._users[served]:
                del self._users[served]
                if self._served[served.description.name] is not served:
                    self._free(served)

    @property
    def num_replaced(self) -> int:
        """Indexes that were replaced and are still used by requests."""
        return sum(self._served[served.description.name] is not served for served in self._users)

    def describe(self) -> list[IndexDescription]:
        """Return every index, the default one first."""
        return [served.description for served in self._served.values()]

    def __len__(self) -> int:
        return len(self._served)


def _keep(served: ServedIndex) -> None:
    """Let whoever holds an index do with it as they like."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a cache did and holds.

    Attributes:
        hits: Requests it answered.
        misses: Requests it did not.
        evictions: Entries given up for others.
        held_bytes: Memory of what it holds, bytes.
    """

    hits: int
    misses: int
    evictions: int
    held_bytes: int


@runtime_checkable
class CachingRetriever(Protocol):
    """A retriever that tells of its caches. Both counts are cheap, and from any thread."""

    def filter_cache(self) -> CacheCounts:
        """Return the counts of the filters kept of its index."""

    def grammar_cache(self) -> CacheCounts:
        """Return the counts of the grammars kept of its model."""


class Opener(Protocol):
    """Opens versions of indexes. What blocks is called on a thread of its own, one call at a time."""

    def live_version(self, spec: IndexSpec) -> str:
        """Return the version that an index directory holds now. Blocks for a look at a small file.

        Raises:
            GenretError: there is no index.
        """

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open the live version of an index and check that it can be served. Blocks for as long as it takes.

        What is served already is not touched: requests find the new version when it was published.

        Raises:
            GenretError: it cannot be served.
        """

    def publish(self, opened: ServedIndex) -> Sequence[ServedIndex]:
        """Let requests that come from now on use an index; quick, and called on the event loop.

        Returns:
            What the table is to hold: the index, and others that are to name it in their schemas.
        """

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up what nobody uses any more; quick, and called on the event loop.

        Returns:
            What releases the files and the memory that nobody else holds, to be called where no request of
            it can be running; None where somebody still uses them.
        """

    def finish(self) -> None:
        """Do what is left when every index is open and published. Blocks.

        Raises:
            GenretError: a part of the configuration cannot be used with these indexes.
        """
