"""Admission by work: what a request will cost, and when the server refuses more of it."""

from __future__ import annotations

import math
from collections.abc import Callable

from retrieval.answers.types import AnswerRequest, AnswerResult
from retrieval.types import RetrievalResult, RetrieveRequest
from service.configuration.config import BatchLimits, QueueLimits
from service.errors import OverloadedError
from service.serving.pace import Pace

# A title has 8 tokens in the mean (6 M English titles, GPT-2 vocabulary: 7.9).
TITLE_TOKENS = 8
_MIN_RETRY_S, _MAX_RETRY_S = 0.05, 30.0


def estimate_tokens(request: RetrieveRequest | AnswerRequest, prompt_tokens: int) -> int:
    """Return the tokens a model must process for a request, at most where its length is not known.

    They are those of its prompt, and of its branches to a title's end with all that proving the list may
    take, or to the last token that a JSON answer may have.
    """
    if isinstance(request, AnswerRequest):
        return prompt_tokens + request.width * request.max_tokens
    return prompt_tokens + request.width * TITLE_TOKENS + request.budget


def done_tokens(
    estimated: int, request: RetrieveRequest | AnswerRequest, outcome: RetrievalResult | AnswerResult
) -> int:
    """Return an estimate less what the answer has left of its budget."""
    if isinstance(request, AnswerRequest) and isinstance(outcome, AnswerResult):
        return estimated - request.width * max(0, request.max_tokens - outcome.num_tokens)
    if isinstance(request, RetrieveRequest) and isinstance(outcome, RetrievalResult):
        return estimated - max(0, request.budget - outcome.num_exact_nodes)
    return estimated


class Admission:
    """Counts the work that was accepted and is not finished. Used on the event loop only.

    Args:
        limits: When to refuse.
        batch: When a batch is full: how many of them the work makes.
    """

    def __init__(self, limits: QueueLimits, batch: BatchLimits | None = None) -> None:
        self._limits = limits
        self._batch = batch or BatchLimits()
        self._pace = Pace()
        self._requests = 0
        self._tokens = 0
        self._tells: list[Callable[[], None]] = []

    @property
    def num_requests(self) -> int:
        """Requests accepted and not finished."""
        return self._requests

    @property
    def num_tokens(self) -> int:
        """Their work, tokens."""
        return self._tokens

    def fits(self, tokens: int) -> bool:
        """Whether a request of so much work would be admitted now."""
        if self._requests >= self._limits.max_requests:
            return False
        if not self._requests:
            return True
        soon = self.expected_wait_s() <= self._limits.max_wait_seconds
        return soon and self._tokens + tokens <= self._limits.max_tokens

    def on_release(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever something has been released."""
        self._tells.append(tell)

    def admit(self, tokens: int) -> None:
        """Take a request's work in; `release` must follow once.

        Raises:
            OverloadedError: a limit would be passed. A request larger than the whole limit is taken when
                nothing else is there, as it could never be served otherwise.
        """
        if self.fits(tokens):
            self._requests += 1
            self._tokens += tokens
            return
        if self._requests >= self._limits.max_requests:
            held = f"{self._requests} requests, at most {self._limits.max_requests}"
        elif self.expected_wait_s() > self._limits.max_wait_seconds:
            held = f"work for {self.expected_wait_s():.2g} s, at most {self._limits.max_wait_seconds:g} s"
        else:
            held = f"{self._tokens} tokens of work, at most {self._limits.max_tokens}, this request {tokens}"
        raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", self.retry_after_s())

    def release(self, tokens: int) -> None:
        """Give back what `admit` took."""
        self._requests -= 1
        self._tokens -= tokens
        for tell in self._tells:
            tell()

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn the device's speed from a batch that ran."""
        self._pace.observe(tokens, seconds)

    def expected_wait_s(self) -> float:
        """Return how long the work accepted so far will take, seconds; 0 before any batch has run."""
        if not self._requests:
            return 0.0
        by_size = math.ceil(self._requests / self._batch.max_size)
        by_tokens = math.ceil(self._tokens / self._batch.max_tokens)
        return self._pace.seconds(self._tokens, max(by_size, by_tokens))

    def retry_after_s(self) -> float:
        """Return when a refused request may be tried again: when half the work should be done, seconds."""
        wait = self.expected_wait_s() / 2 or 1.0
        return min(max(wait, _MIN_RETRY_S), _MAX_RETRY_S)
