"""Admission by work: what a request will cost, and when the server refuses more of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from retrieval.score_types import ScoreRequest
from retrieval.types import RetrieveRequest
from service.configuration.config import BatchLimits, QueueLimits
from service.errors import OverloadedError
from service.serving.demand import Demand
from service.serving.forecast import TITLE_TOKENS, Forecast, open_tokens, title_tokens, used_tokens
from service.serving.pace import Pace
from service.serving.served import Request, Result

_QUEUE_PER_BUDGET = 4
_MIN_RETRY_S, _MAX_RETRY_S = 0.05, 30.0


def estimate_tokens(request: Request, prompt_tokens: int, scored_forms: int = 0) -> int:
    """Return the tokens a model must process for a request, at most where its length is not known.

    They are those of its prompt, and of its branches to a title's end with all that proving the list may
    take, or to the last token that a JSON answer may have; and those of the titles that are scored, as if
    they shared nothing.

    Args:
        request: The request.
        prompt_tokens: Length of its prompt.
        scored_forms: Surface forms of a shortlist that are scored; see `IndexDescription.scored_forms`.
    """
    if isinstance(request, ScoreRequest):
        return prompt_tokens + title_tokens(request)
    is_beam = isinstance(request, RetrieveRequest) and request.decoding == "beam"
    titles = scored_forms + (request.width if is_beam else 0)
    return prompt_tokens + titles * TITLE_TOKENS + open_tokens(request)


def done_tokens(estimated: int, request: Request, outcome: Result) -> int:
    """Return an estimate less what the answer has left of its budget."""
    return estimated - open_tokens(request) + used_tokens(request, outcome)


class Admission:
    """Counts the work that was accepted and is not finished. Used on the event loop only.

    Args:
        limits: When to refuse.
        batch: When a batch is full: how many of them the work makes.
        clock: What time it is, seconds.
    """

    def __init__(
        self,
        limits: QueueLimits,
        batch: BatchLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._batch = batch or BatchLimits()
        self._pace = Pace()
        self._demand = Demand(self._batch, limits.max_wait_seconds, clock)
        self._forecast = Forecast()
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

    def share(self, request: Request, tokens: int) -> int:
        """Return what a request counts for while it is not finished, at most its whole work.

        Of a budget that its client has named, that is what requests of its kind took lately, and never more
        than a quarter of the queue: a number in a request must not close the server to all others.

        Args:
            request: The request.
            tokens: Its work, see `estimate_tokens`.
        """
        counted = min(self._forecast.expected(request), self._limits.max_tokens // _QUEUE_PER_BUDGET)
        return max(1, tokens - open_tokens(request) + min(open_tokens(request), counted))

    def fits(self, tokens: int) -> bool:
        """Whether a request of so much work would be admitted now."""
        if self._requests >= self._limits.max_requests:
            return False
        if not self._requests:
            return True
        held = self._tokens + tokens
        return held <= self._limits.max_tokens and (self._makes_batches(held, 2) or self._is_soon())

    def on_release(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever something has been released."""
        self._tells.append(tell)

    def admit(self, tokens: int, has_waited: bool = False) -> None:
        """Take a request's work in; `release` must follow once.

        Args:
            tokens: The work.
            has_waited: Whether it is patient work, which has waited until `fits` said that there is room.

        Raises:
            OverloadedError: a limit would be passed, or later calls will fill the place that there is. A
                request larger than the whole limit is taken when nothing else is there, as it could never
                be served otherwise.
        """
        if not has_waited:
            self._demand.arrived(tokens)
        fits = self.fits(tokens)
        if fits and (has_waited or not self._demand.fills_next(self._requests, self._tokens)):
            self._requests += 1
            self._tokens += tokens
            return
        self._demand.refused()
        if fits:
            held = "far more comes than can be answered, and those who come later wait less"
        elif self._requests >= self._limits.max_requests:
            held = f"{self._requests} requests, at most {self._limits.max_requests}"
        elif self._tokens + tokens <= self._limits.max_tokens:
            held = f"work for {self.expected_wait_s():.1f} s, at most {self._limits.max_wait_seconds:g} s"
        else:
            held = f"{self._tokens} tokens of work, at most {self._limits.max_tokens}, this request {tokens}"
        raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", self.retry_after_s())

    def release(self, tokens: int) -> None:
        """Give back what `admit` took."""
        self._requests -= 1
        self._tokens -= tokens
        for tell in self._tells:
            tell()

    def begin(self, requests: int, tokens: int) -> None:
        """Note that a batch of what was admitted begins; `end` must follow once.

        Args:
            requests: In it.
            tokens: Their work, as it was admitted.
        """
        self._demand.begin(requests, tokens, self._pace.seconds(tokens, 1))

    def end(self) -> None:
        """Note that the batch is over."""
        self._demand.end()

    def learn(self, request: Request, outcome: object) -> None:
        """Learn from a request that is done what others of its kind will take."""
        self._forecast.learn(request, outcome)

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn the device's speed from a batch that ran."""
        self._pace.observe(tokens, seconds)

    def leaves_half(self, tokens: int) -> bool:
        """Whether a request of so much work would leave half of the time that calls may wait to others."""
        return self._makes_batches(self._tokens + tokens, 1) or self._is_soon(0.5)

    def _makes_batches(self, held: int, number: int) -> bool:
        """Whether what is held with one request more fits into so many batches."""
        return self._requests < number * self._batch.max_size and held <= number * self._batch.max_tokens

    def _is_soon(self, share: float = 1.0) -> bool:
        return self.expected_wait_s() <= share * self._limits.max_wait_seconds

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
