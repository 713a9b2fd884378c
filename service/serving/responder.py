"""A retriever as the service sees it: requests of every kind in, outcomes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from decoding.cancellation import CancelToken
from retrieval.answers.types import AnswerRequest
from retrieval.errors import GenretError
from retrieval.score_types import ScoreRequest
from retrieval.types import Mention, RetrieveRequest
from service.serving.admission import estimate_tokens
from service.serving.caches import CacheCounts
from service.serving.served import Outcome, Request

if TYPE_CHECKING:
    from retrieval.answers.answerer import AnswerJob
    from retrieval.answers.index_set import IndexSet
    from retrieval.retriever import Retriever

_TRIAL_QUERY = "capital of france"


class Responder:
    """Implements `service.serving.served.ServedRetriever`.

    Args:
        retriever: Answers for one index.
        indexes: Those that schemas of its requests may name; None: those that they may name when asked.

    Attributes:
        retriever: As given.
    """

    def __init__(self, retriever: Retriever, indexes: IndexSet | None = None) -> None:
        self.retriever = retriever
        self._indexes = indexes

    def prompt_tokens(self, request: RetrieveRequest | ScoreRequest) -> int:
        """Return the length of the request's prompt; see `Retriever.prompt_tokens`."""
        if isinstance(request, ScoreRequest):
            return self.retriever.prompt_tokens(RetrieveRequest(request.query, prompt=request.prompt))
        return self.retriever.prompt_tokens(request)

    def mention_request(self, mention: Mention, options: RetrieveRequest) -> RetrieveRequest:
        """Return the request that links a mention; see `Retriever.mention_request`."""
        return self.retriever.mention_request(mention, options)

    def prepare_answer(self, request: AnswerRequest) -> int:
        """Compile the request's schema, unless it is known, and return the length of its prompt."""
        return len(self._job(request).prompt)

    def respond(
        self, requests: Sequence[Request], cancel: Sequence[CancelToken | None] | None = None
    ) -> Sequence[Outcome]:
        """Answer every request, in order; errors of single requests are values."""
        tokens = list(cancel) if cancel is not None else [None] * len(requests)
        outcomes: dict[int, Outcome] = {}
        titles = {i: request for i, request in enumerate(requests) if isinstance(request, RetrieveRequest)}
        if titles:
            found = self.retriever.retrieve_batch(list(titles.values()), [tokens[i] for i in titles])
            outcomes.update(zip(titles, found, strict=True))
        given = {i: request for i, request in enumerate(requests) if isinstance(request, ScoreRequest)}
        if given:
            scored = self.retriever.score_batch(list(given.values()), [tokens[i] for i in given])
            outcomes.update(zip(given, scored, strict=True))
        answerer = self.retriever.answerer
        jobs = {}
        for i, request in enumerate(requests):
            if isinstance(request, AnswerRequest):
                try:
                    jobs[i] = self._job(request, tokens[i])
                except GenretError as error:
                    outcomes[i] = error
        if jobs:
            outcomes.update(zip(jobs, answerer.run(list(jobs.values())), strict=True))
        return [outcomes[i] for i in range(len(requests))]

    def filter_cache(self) -> CacheCounts:
        """Return the counts of the filters kept of the index."""
        stats = self.retriever.filters.stats
        return CacheCounts(stats.hits, stats.misses, stats.evictions, stats.num_bytes)

    def grammar_cache(self) -> CacheCounts:
        """Return the counts of the grammars kept of the model. To be asked of a warm retriever."""
        stats = self.retriever.answerer.stats
        # Who waits for a compilation that another request began has not found the grammar in the cache.
        return CacheCounts(stats.hits, stats.compilations + stats.waits, stats.evictions, stats.held_bytes)

    def warm_up_steps(self) -> Iterator[Callable[[], object]]:
        """Return what makes a first request slower than the next, one query each."""
        return self.retriever.warm_up_steps()

    def trial(self, num_requests: int) -> tuple[int, float]:
        """Answer so many plain requests, and return their work in tokens and how long they took, seconds."""
        requests = [RetrieveRequest(_TRIAL_QUERY)] * num_requests
        tokens = sum(estimate_tokens(request, self.prompt_tokens(request)) for request in requests)
        begun = time.perf_counter()
        self.respond(requests)
        return tokens, time.perf_counter() - begun

    def _job(self, request: AnswerRequest, cancel: CancelToken | None = None) -> AnswerJob:
        name = self.retriever.name
        return self.retriever.answerer.job(request, cancel, name, self._indexes)
