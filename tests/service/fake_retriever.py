"""A retriever whose speed and failures a test decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from genret.decoding.bounded_cache import CacheCounts
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingError
from genret.retrieval.answers.answer_types import AnswerEntity, AnswerRequest, AnswerResult
from genret.retrieval.complete_types import CompleteRequest, CompleteResult, Completion, MatchedSpan
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
from genret.retrieval.types import (
    Candidate,
    Entity,
    KvShare,
    Mention,
    RetrievalResult,
    RetrieveRequest,
    Timings,
)
from genret.service.client.reply import IndexInfo
from genret.service.serving.served import Outcome, Request, ServedIndex

Cancel = Sequence[CancelToken | None] | None
MAX_PROMPT_TOKENS = 100
FAKE_MASS = 0.25


class FakeRetriever:
    """Answers `title of <query>`; blocks in `respond` while `hold` is not set.

    By query text, `errors` are answers (values, as the library's contract says), `bugs` break a whole batch.
    """

    def __init__(
        self,
        errors: dict[str, GenretError | DecodingError] | None = None,
        bugs: dict[str, BaseException] | None = None,
        held: bool = False,
    ) -> None:
        self.errors = errors or {}
        self.bugs = bugs or {}
        self.asked: list[Any] = []
        self.batches: list[list[str]] = []
        self.threads: set[str] = set()
        self.stopped_by: list[DecodingError] = []
        self.num_warm_ups = 0
        self.trials = {1: (100, 1e-6), 8: (800, 2e-6)}
        self.running = threading.Event()
        self.hold = threading.Event()
        if not held:
            self.hold.set()
        self.seconds = 0.0

    def prompt_tokens(self, request: Request) -> int:
        tokens = len(request.query.split())
        if tokens > MAX_PROMPT_TOKENS:
            raise InputError("query", f"has {tokens} tokens, at most {MAX_PROMPT_TOKENS} fit")
        return tokens

    def mention_request(self, mention: Mention, options: RetrieveRequest) -> RetrieveRequest:
        if not mention.mention.strip():
            raise InputError("mention", "must not be empty")
        return replace(options, query=f"{mention.left}[{mention.mention}]{mention.right}", prompt="mention")

    def complete(self, request: CompleteRequest) -> CompleteResult:
        self.threads.add(threading.current_thread().name)
        if request.prefix in self.errors:
            raise self.errors[request.prefix]
        names = [f"{request.prefix} {n}" for n in range(request.k)]
        found = (Completion(f"Q{n}", one, one, (MatchedSpan(0, 1),), n, 0.5) for n, one in enumerate(names))
        return CompleteResult(request.prefix, tuple(found))

    def find_schema(self, request: AnswerRequest) -> None:
        pass

    def compile_schema(self, request: AnswerRequest) -> object:
        self.threads.add(threading.current_thread().name)
        if request.schema == "{":
            raise InputError("schema", "no JSON")
        return request.schema

    def warm_up_steps(self) -> Iterator[Callable[[], object]]:
        yield self._warm_up

    def trial(self, num_requests: int) -> tuple[int, float]:
        return self.trials[num_requests]

    def filter_cache(self) -> CacheCounts:
        return CacheCounts(hits=5, misses=2, evictions=1, entries=1, num_bytes=300, max_bytes=300)

    def grammar_cache(self) -> CacheCounts:
        return CacheCounts(hits=7, misses=3, evictions=0, entries=3, num_bytes=4000, max_bytes=9000)

    def _warm_up(self) -> None:
        self.num_warm_ups += 1

    def retrieve_batch(self, requests: Sequence[Request], cancel: Cancel = None) -> list[Outcome]:
        return self.respond(requests, cancel)

    score_batch = answer_batch = retrieve_batch

    def respond(self, requests: Sequence[Request], cancel: Cancel = None) -> list[Outcome]:
        self.asked += requests
        self.batches.append([request.query for request in requests])
        self.threads.add(threading.current_thread().name)
        self.running.set()
        time.sleep(self.seconds)
        tokens = cancel or [None] * len(requests)
        outcomes = [self._answer(r, t) for r, t in zip(requests, tokens, strict=True)]
        for request in requests:
            if request.query in self.bugs:
                raise self.bugs[request.query]
        return outcomes

    def _answer(self, request: Request, cancel: CancelToken | None) -> Outcome:
        try:
            while not self.hold.is_set():  # stands for the decode steps, which poll
                if cancel is not None:
                    cancel.check()
                time.sleep(0.002)
            if cancel is not None:
                cancel.check()
        except DecodingError as error:
            self.stopped_by.append(error)
            return error
        if isinstance(request, AnswerRequest):
            return self.errors.get(request.query) or fake_answer(request)
        if isinstance(request, ScoreRequest):
            return self.errors.get(request.query) or fake_scores(request)
        return self.errors.get(request.query) or fake_result(request)


def fake_result(request: RetrieveRequest) -> RetrievalResult:
    if request.query == "nothing":
        return RetrievalResult(request.query, request.method, ())
    scored = request.method in ("auto", "shortlist")
    sampled = request.decoding == "disc"
    if request.min_mass is not None and request.min_mass > FAKE_MASS:
        return RetrievalResult(request.query, "disc", (), mass=FAKE_MASS, abstained=True, seed=99)
    candidates = tuple(
        Candidate(
            entity_id=f"Q{i}",
            title=f"title of {request.query}",
            surface=f"surface {i}",
            logprob=-1.5 - i,
            probability=1 / (2 + i) if sampled or scored else None,
            metadata={"kind": "fake", "year": 1600 + i, "score": 0.5, "real": False, "note": None},
            score=1 / (2 + i) if request.method == "disc" else -1.5 - i,
            similarity=0.75 - i / 4 if scored else None,
        )
        for i in range(min(request.k, 2))
    )
    result = RetrievalResult(
        request.query,
        request.method,
        candidates,
        certified=None if sampled or request.method == "shortlist" else True,
        num_nodes=11,
        num_exact_nodes=min(request.budget, 5),
        num_steps=4,
        timings=Timings(1.0, 2.0, 3.0),
        kv=KvShare(1000, 4000, 500, 2),
    )
    if sampled:
        seed = request.seed if request.seed is not None else 99
        mass = {"mass": FAKE_MASS, "mass_stderr": 0.01, "mass_lower": 0.125, "mass_upper": 0.5}
        result = replace(result, num_draws=7, num_accepted=3, seed=seed, **mass)
    if scored:
        timings = Timings(1.0, 2.0, 10.0, 3.0, 4.0)
        result = replace(result, mass_lower=0.125, num_scored=3, shortlist_size=2, timings=timings)
    return result


def fake_scores(request: ScoreRequest) -> ScoreResult:
    """Titles of more than 20 words are too long; the catalogue has those that begin with a capital."""
    rooms = [len(title.split()) <= 20 for title in request.titles]
    return ScoreResult(
        query=request.query,
        scores=tuple(
            TitleScore(
                title=title,
                logprob=-float(len(title)) if fits else None,
                probability=1 / len(rooms) if fits else 0.0,
                num_tokens=len(title.split()) + 1,
                entity_ids=("Q1", "Q2") if title[0].isupper() else (),
                entity_shares=(0.75, 0.25) if title[0].isupper() else (),
            )
            for title, fits in zip(request.titles, rooms, strict=True)
        ),
        num_nodes=17,
        timings=Timings(1.0, 0.0, 5.0, 0.0, 4.0),
        kv=KvShare(1000, 4000, 500, 2),
    )


def fake_answer(request: AnswerRequest) -> AnswerResult:
    sampled = request.method in ("sample", "disc")
    entity = Entity("Q1", "Hamlet", metadata={"kind": "play", "year": 1603})
    return AnswerResult(
        query=request.query,
        method=request.method,
        text='{"title": "Hamlet"}',
        entities=(AnswerEntity("/title", "titles", "Hamlet", (entity,), (1.0,)),),
        logprob=-2.5,
        num_tokens=9,
        num_forced=4,
        num_drafted=3,
        num_accepted=2,
        num_forwards=5,
        seed=(99 if request.seed is None else request.seed) if sampled else None,
        schema_digest="sha256:0",
        compile_ms=0.5,
        mass=FAKE_MASS if request.method == "disc" else None,
        mass_stderr=0.01 if request.method == "disc" else None,
        timings=Timings(prefill_ms=1.0, decode_ms=2.0, total_ms=3.0),
        kv=KvShare(1000, 4000, 500, 2),
    )


def served(retriever: FakeRetriever, name: str = "fake") -> ServedIndex:
    description = IndexInfo(
        name=name, version="v1", digest="d1", num_rows=30, num_entities=20, model="fake-model", device="cpu"
    )
    return ServedIndex(description, retriever)


def version(number: int, retriever: FakeRetriever | None = None, name: str = "fake") -> ServedIndex:
    """Another version of an index."""
    index = served(retriever or FakeRetriever(), name)
    return ServedIndex(replace(index.description, version=f"v{number}"), index.retriever)


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Block until `condition` holds; for threads, not for the event loop."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("condition not met in time")
        time.sleep(0.002)
