"""Interfaces of a retriever, its opener and an observer; descriptions of indexes, and the table of them."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from genret.decoding.bounded_cache import CacheCounts
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError, DecodingError
from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.complete_types import CompleteRequest, CompleteResult
from genret.retrieval.errors import GenretError
from genret.retrieval.score_types import ScoreRequest, ScoreResult
from genret.retrieval.types import Mention, RetrievalResult, RetrieveRequest
from genret.service.call import DEADLINE_SLACK_S
from genret.service.client.reply import IndexInfo
from genret.service.configuration.server_config import IndexSpec
from genret.service.errors import NotReadyError, OverloadedError, UnknownIndexError

Request = RetrieveRequest | AnswerRequest | ScoreRequest
Result = RetrievalResult | AnswerResult | ScoreResult
Outcome = Result | GenretError | DecodingError
# Answers requests of one kind, in order, each with a token that it polls; errors of single requests are
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

    def complete(self, request: CompleteRequest) -> CompleteResult:
        """Return completions by weight, from any thread; raises InputError. The first call takes seconds."""

    def prompt_tokens(self, request: RetrieveRequest | AnswerRequest) -> int:
        """Return the length of the request's prompt; raises InputError for what cannot be answered.

        Compiles the schema of an `AnswerRequest` that is no `PreparedAnswer`.
        """

    def mention_request(self, mention: Mention, asked: RetrieveRequest) -> RetrieveRequest:
        """Return the request that links a mention with the model's template; raises InputError if blank.

        `asked` has further options; its query is a placeholder.
        """

    def find_schema(self, request: AnswerRequest) -> Any:
        """Return the request's compiled schema, None if it must be compiled; microseconds, from any thread.

        Raises InputError if it was refused before.
        """

    def compile_schema(self, request: AnswerRequest) -> Any:
        """Compile the request's schema; raises InputError, and OverloadedError for lack of memory. Blocks."""

    def warm_up_steps(self) -> Iterable[Callable[[], object]]:
        """Return blocking calls that warm up what a first request would wait for.

        Other requests may be answered between two of them.
        """

    def trial(self, num_requests: int) -> tuple[int, float]:
        """Answer that many plain requests; return their work, tokens, and the time, seconds. Blocks."""

    def filter_cache(self) -> CacheCounts:
        """Return the counts of the filters kept of the index; cheap, from any thread."""

    def grammar_cache(self) -> CacheCounts:
        """Return the counts of the grammars kept of the model; cheap, from any thread."""


def scored_forms(index: IndexInfo, request: RetrieveRequest) -> int:
    """Return about how many surface forms a request has scored of an index; 0 if it has no shortlist.

    A filter that allows few entities has them scored without evidence, too; they are not counted.
    """
    if not request.proposals:
        return 0
    can_propose = any(not evidence.problem for evidence in index.evidence)
    if not can_propose and index.num_entities > request.proposals:
        return 0
    entities = min(request.proposals, index.num_entities)
    return math.ceil(entities * index.num_rows / max(index.num_entities, 1))


@dataclass(frozen=True, slots=True, eq=False)
class ServedIndex:
    """An open index with its retriever. Requests keep the object they were admitted with."""

    description: IndexInfo
    retriever: ServedRetriever


class IndexTable:
    """The indexes of a server by name; the first one is the default. Lives on one event loop."""

    def __init__(self) -> None:
        self._served: dict[str, ServedIndex] = {}
        self._users: Counter[ServedIndex] = Counter()
        self._free: Callable[[ServedIndex], None] = lambda served: None

    def on_free(self, notify: Callable[[ServedIndex], None]) -> None:
        """Have `notify` called with every replaced index when its last request has left."""
        self._free = notify

    def put(self, served: ServedIndex) -> None:
        """Add an index, or replace the one of the same name; its place stays."""
        replaced = self._served.get(served.description.name)
        self._served[served.description.name] = served
        if replaced is not None and replaced is not served and replaced not in self._users:
            self._free(replaced)

    def resolve(self, name: str) -> ServedIndex:
        """Return the index called `name`, the default one for an empty name; raises UnknownIndexError."""
        if not name and self._served:
            return next(iter(self._served.values()))
        if name not in self._served:
            raise UnknownIndexError(name, list(self._served))
        return self._served[name]

    @contextmanager
    def use(self, name: str) -> Iterator[ServedIndex]:
        """Resolve an index for a request, and keep its version open until the end of the block."""
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

    def describe(self) -> list[IndexInfo]:
        """Return every index, the default one first."""
        return [served.description for served in self._served.values()]


class Opener(Protocol):
    """Opens versions of indexes. Blocking calls run on a thread, one at a time."""

    def live_version(self, spec: IndexSpec) -> str:
        """Return the live version of an index directory; raises GenretError. Reads a small file."""

    def open(self, spec: IndexSpec) -> ServedIndex:
        """Open the live version of an index and check that it can be served; raises GenretError. Blocks.

        Requests find the new version only after `publish`.
        """

    def publish(self, opened: ServedIndex) -> Sequence[ServedIndex]:
        """Let new requests use an index; quick, and called on the event loop.

        Returns the new entries of the table: the index, and others whose schemas may name it.
        """

    def retire(self, served: ServedIndex) -> Callable[[], None] | None:
        """Give up an unused index; quick, and called on the event loop.

        Returns a call that releases files and memory nothing else holds, to be made when no request of it
        can be running; None if something still uses them.
        """

    def finish(self) -> None:
        """Finish when every index is open and published; raises GenretError. Blocks."""


Rejection = Literal["queue_full", "memory_full", "shutting_down"]
# Where a request was when it ended early: not yet accepted, waiting, in a batch.
Stage = Literal["arrival", "queue", "running"]
REJECTIONS: tuple[Rejection, ...] = get_args(Rejection)
STAGES: tuple[Stage, ...] = get_args(Stage)


class QueueObserver:
    """Base of observers of one device's requests; ignores everything. Serving knows no metrics or traces.

    Its methods are called on the event loop. They may not raise or block.
    """

    def failed(self, error: BaseException, deadline: float | None, stage: Stage) -> None:
        """Tell apart why a request has no answer; one that is cancelled at its deadline was late."""
        match error:
            case NotReadyError():
                self.rejected("shutting_down")
            case OverloadedError():
                self.rejected("memory_full" if error.reason == "MEMORY_FULL" else "queue_full")
            case DeadlineExceededError():
                self.deadline_exceeded(stage)
            case asyncio.CancelledError():
                is_late = deadline is not None and time.monotonic() >= deadline - DEADLINE_SLACK_S
                (self.deadline_exceeded if is_late else self.cancelled)(stage)

    def rejected(self, reason: Rejection) -> None:
        """Called for a request that was refused."""

    def cancelled(self, stage: Stage) -> None:
        """Called for a request whose client is gone."""

    def deadline_exceeded(self, stage: Stage) -> None:
        """Called for a passed deadline."""

    def batch_formed(self, tokens: int, waits_s: Sequence[float]) -> None:
        """Called for a batch of `tokens` work whose requests have waited so long, seconds."""

    def batch_finished(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Called with the outcomes of all requests of a batch and the time on the device, seconds."""

    def answered(self, request: Request, result: Result, queued_s: float, seconds: float) -> None:
        """Called for an answer, in the context (`contextvars`) of the task that asked.

        It waited `queued_s` for its batch, and was submitted `seconds` ago.
        """


SILENT = QueueObserver()
