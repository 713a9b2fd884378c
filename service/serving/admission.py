"""Admits work: estimates the cost of a request, and refuses or queues it when a device has too much to do.

- `Admission` counts the work that was accepted and is not finished, and refuses more above a limit.
- `FairQueue` queues the work of batches and streams until there is room, first come first served.
- `OverloadGuard` predicts under overload whether later calls will fill the next batch without this one.
- `CostModel` learns how much of their budgets requests really take. Clients set `exact_budget` and
  `max_tokens` for the worst case; counted in full, a few requests would fill a queue whose device is idle.
- `SpeedModel` learns the time of a batch, and of each token of work on top of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from genret.decoding.errors import DeadlineExceededError
from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.score_types import ScoreRequest
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import OverloadedError
from genret.service.serving.served import SILENT, QueueObserver, Request, Result

_QUEUE_PER_BUDGET = 4
_MIN_RETRY_S, _MAX_RETRY_S = 0.05, 30.0


def estimate_tokens(request: Request, prompt_tokens: int, scored_forms: int = 0) -> int:
    """Return the tokens a model must process for a request, at most if its length is not known.

    Counted are the prompt, the branches to a title's end with the budget of the proof (or the longest JSON
    answer), and the titles that are scored, as if they shared nothing; for `scored_forms`, those of a
    shortlist, see `served.scored_forms`.
    """
    if isinstance(request, ScoreRequest):
        return prompt_tokens + title_tokens(request)
    is_beam = isinstance(request, RetrieveRequest) and request.decoding == "beam"
    titles = scored_forms + (request.width if is_beam else 0)
    return prompt_tokens + titles * TITLE_TOKENS + open_tokens(request)


def done_tokens(estimated: int, request: Request, outcome: Result) -> int:
    """Return an estimate less the part of the budget that the answer did not use."""
    return estimated - open_tokens(request) + used_tokens(request, outcome)


class Admission:
    """Counts the requests, and their tokens, that were accepted and are not finished.

    Used on the event loop only.
    """

    def __init__(
        self,
        limits: QueueLimits,
        batch: BatchLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._batch = batch or BatchLimits()
        self._speed = SpeedModel()
        self._guard = OverloadGuard(self._batch, limits.max_wait_seconds, clock)
        self._costs = CostModel()
        self.num_requests = 0
        self.num_tokens = 0
        self._tells: list[Callable[[], None]] = []

    def share(self, request: Request, tokens: int) -> int:
        """Return the tokens that a request of `tokens` work counts for until it is finished.

        Of a budget named by the client only the recent use of such requests counts, and at most a quarter of
        the queue: a number in a request must not close the server to all others.
        """
        counted = min(self._costs.expected(request), self._limits.max_tokens // _QUEUE_PER_BUDGET)
        return max(1, tokens - open_tokens(request) + min(open_tokens(request), counted))

    def fits(self, tokens: int) -> bool:
        """Whether a request of that much work would be admitted now."""
        if self.num_requests >= self._limits.max_requests:
            return False
        if not self.num_requests:
            return True
        held = self.num_tokens + tokens
        return held <= self._limits.max_tokens and (self._makes_batches(held, 2) or self._is_soon())

    def on_release(self, tell: Callable[[], None]) -> None:
        """Register a callback for every release of work."""
        self._tells.append(tell)

    def admit(self, tokens: int, has_waited: bool = False) -> None:
        """Take a request's work in; `release` must follow once.

        A request larger than the whole limit is taken when nothing else is there. One that `has_waited` did
        so in the `FairQueue` until `fits` held.

        Raises:
            OverloadedError: a limit would be passed, or later calls will fill the next batch.
        """
        if not has_waited:
            self._guard.arrived(tokens)
        fits = self.fits(tokens)
        if fits and (has_waited or not self._guard.fills_next(self.num_requests, self.num_tokens)):
            self.num_requests += 1
            self.num_tokens += tokens
            return
        self._guard.refused()
        if fits:
            held = "far more comes than can be answered, and those who come later wait less"
        elif self.num_requests >= self._limits.max_requests:
            held = f"{self.num_requests} requests, at most {self._limits.max_requests}"
        elif self.num_tokens + tokens <= self._limits.max_tokens:
            held = f"work for {self.expected_wait_s():.1f} s, at most {self._limits.max_wait_seconds:g} s"
        else:
            held = (
                f"{self.num_tokens} tokens of work, at most {self._limits.max_tokens}, this request {tokens}"
            )
        raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", self.retry_after_s())

    def release(self, tokens: int) -> None:
        """Give back what `admit` took."""
        self.num_requests -= 1
        self.num_tokens -= tokens
        for tell in self._tells:
            tell()

    def begin(self, requests: int, tokens: int) -> None:
        """Note that a batch of so many admitted requests begins; `end` must follow once."""
        self._guard.begin(requests, tokens, self._speed.seconds(tokens, 1))

    def end(self) -> None:
        """Note that the batch is over."""
        self._guard.end()

    def learn(self, request: Request, outcome: object) -> None:
        """Learn the cost of a kind of request from one that is done."""
        self._costs.learn(request, outcome)

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn the device's speed from a batch that ran."""
        self._speed.observe(tokens, seconds)

    def leaves_half(self, tokens: int) -> bool:
        """Whether a request of that much work would leave half of the allowed waiting time to others."""
        return self._makes_batches(self.num_tokens + tokens, 1) or self._is_soon(0.5)

    def _makes_batches(self, held: int, number: int) -> bool:
        """Whether the work held, with one request more, fits into that many batches."""
        return self.num_requests < number * self._batch.max_size and held <= number * self._batch.max_tokens

    def _is_soon(self, share: float = 1.0) -> bool:
        return self.expected_wait_s() <= share * self._limits.max_wait_seconds

    def expected_wait_s(self) -> float:
        """Return the expected time of the work accepted so far, seconds; 0 before any batch has run."""
        if not self.num_requests:
            return 0.0
        by_size = math.ceil(self.num_requests / self._batch.max_size)
        by_tokens = math.ceil(self.num_tokens / self._batch.max_tokens)
        return self._speed.seconds(self.num_tokens, max(by_size, by_tokens))

    def retry_after_s(self) -> float:
        """Return when to try a refused request again: when half the work should be done, seconds."""
        wait = self.expected_wait_s() / 2 or 1.0
        return min(max(wait, _MIN_RETRY_S), _MAX_RETRY_S)


class FairQueue:
    """Lets the work of batches and streams in, first come first served. Lives on one event loop.

    It takes at most half of the device's queue, so that single calls find room beside endless streams. Room
    that comes free goes to work that waits here before any later call.
    """

    def __init__(self, admission: Admission, limits: QueueLimits, observer: QueueObserver = SILENT) -> None:
        self._admission = admission
        self._observer = observer
        self._max_requests = max(1, limits.max_requests // 2)
        self._max_tokens = limits.max_tokens // 2
        self._max_waiting = limits.max_requests
        self._requests = 0
        self._tokens = 0
        self._waiting: deque[asyncio.Event] = deque()
        admission.on_release(self._wake)

    @property
    def num_waiting(self) -> int:
        """Pieces of work that wait for room."""
        return len(self._waiting)

    @asynccontextmanager
    async def room(self, tokens: int, deadline: float, bounded: bool = False) -> AsyncIterator[None]:
        """Wait until there is room, and hold a share of what waiting work may take together.

        Work that is submitted in the body before its first `await` is certainly admitted. `deadline` is
        `time.monotonic()`, seconds. If `bounded`, work is refused when as much waits as the queue may hold:
        the sender of a batch, unlike that of a stream, cannot be made to send less.

        Raises:
            DeadlineExceededError: there was no room before the deadline.
            OverloadedError: too much waits.
        """
        if bounded and len(self._waiting) >= self._max_waiting:
            self._observer.rejected("queue_full")
            held = f"{len(self._waiting)} requests of batches wait for room, at most {self._max_waiting}"
            raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", self._admission.retry_after_s())
        if self._waiting or not self._fits(tokens):
            await self._wait(tokens, deadline)
        self._requests += 1
        self._tokens += tokens
        try:
            yield
        finally:
            self._requests -= 1
            self._tokens -= tokens
            self._wake()

    async def _wait(self, tokens: int, deadline: float) -> None:
        turn = asyncio.Event()
        self._waiting.append(turn)
        left = deadline - time.monotonic()
        try:
            async with asyncio.timeout(None if left == math.inf else left):
                # Others may come between being woken and running: then the place is kept.
                while turn is not self._waiting[0] or not self._fits(tokens):
                    turn.clear()
                    await turn.wait()
        except asyncio.CancelledError:
            self._observer.cancelled("queue")
            raise
        except TimeoutError:
            self._observer.deadline_exceeded("arrival")
            raise DeadlineExceededError("the deadline passed while the queue was full") from None
        finally:
            self._waiting.remove(turn)
            self._wake()

    def _fits(self, tokens: int) -> bool:
        share = not self._requests or (
            self._requests < self._max_requests and self._tokens + tokens <= self._max_tokens
        )
        modest = not self._requests or self._admission.leaves_half(tokens)
        return share and modest and self._admission.fits(tokens)

    def _wake(self) -> None:
        """Let the first waiter check for room; it wakes the next."""
        if self._waiting:
            self._waiting[0].set()


# Room must be expected that many times: a batch that is not full costs more than a wait.
_MARGIN = 1.25
# Part of a batch's time by which it may end sooner than expected.
_EARLY = 0.15
# Overload is over when nothing was refused for that many times a batch.
_MEMORY = 2.0
_LATEST_BATCHES = 4


class OverloadGuard:
    """Refuses early callers under overload. Used on the event loop only.

    When calls come four times as fast as they can be answered, the first to come during a batch would take
    all places of the next, and wait for two batches. Callers at the batch's end fill the places as well, and
    wait little more than half as long. Nobody is refused this way before a limit was passed: the rate of
    clients that all find room says nothing of when they come. Nor is anybody if two batches take less than
    `max_wait_s`, the wait that every caller may be asked for.
    """

    def __init__(
        self, batch: BatchLimits, max_wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._batch = batch
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._running = (0, 0)  # requests and tokens of the batch that runs
        self._soonest_end = 0.0
        self._latest_s = deque([0.0], maxlen=_LATEST_BATCHES)
        self._come = (0.0, 0.0)  # requests and tokens of the last seconds, with decay
        self._counted = self._refused = -math.inf

    def begin(self, requests: int, tokens: int, seconds: float) -> None:
        """Note a batch of that many requests and tokens that is expected to take `seconds`."""
        self._running = (requests, tokens)
        self._soonest_end = self._clock() + (1 - _EARLY) * seconds
        self._latest_s.append(seconds)

    def end(self) -> None:
        """Note that the batch is over."""
        self._running, self._soonest_end = (0, 0), 0.0

    def arrived(self, tokens: int) -> None:
        """Note that a call came, accepted or not."""
        now, (requests, work) = self._clock(), self._come
        memory_s = _MEMORY * self._batch_s
        kept = math.exp((self._counted - now) / memory_s) if memory_s else 0.0
        self._come = (kept * requests + 1, kept * work + tokens)
        self._counted = now

    def refused(self) -> None:
        """Note that a call was refused."""
        self._refused = self._clock()

    def fills_next(self, requests: int, tokens: int) -> bool:
        """Whether calls still to come will fill the next batch without the one that has just come.

        `requests` and their `tokens` are accepted and unfinished.
        """
        now, memory_s = self._clock(), _MEMORY * self._batch_s
        if 2 * self._batch_s <= self._max_wait_s or now - self._refused > memory_s:
            return False
        left = max(0.0, self._soonest_end - now) / memory_s
        come, work = self._come
        room = self._batch.max_size - (requests - self._running[0])
        token_room = self._batch.max_tokens - (tokens - self._running[1])
        return left * come >= _MARGIN * room or left * work >= _MARGIN * token_room

    @property
    def _batch_s(self) -> float:
        """The longest time of the latest batches, seconds: a small batch may come between."""
        return max(self._latest_s)


# Mean length of a title (6 M English titles, GPT-2 vocabulary: 7.9).
TITLE_TOKENS = 8
# Mean length of a token of text; every title has an end token.
_BYTES_PER_TOKEN = 4
_COST_SMOOTHING = 0.1
# Expected above the mean, in mean deviations: few requests take more.
_DEVIATIONS = 4


def title_tokens(request: ScoreRequest) -> int:
    """Estimate the tokens of a request's titles from their bytes, without the tokenizer."""
    return sum(1 + len(title.encode()) // _BYTES_PER_TOKEN for title in request.titles)


def open_tokens(request: Request) -> int:
    """Return the part of a request's cost that is only bounded by its client, at most, tokens."""
    if isinstance(request, AnswerRequest):
        return request.width * request.max_tokens
    if isinstance(request, ScoreRequest):
        return 0
    return request.width * TITLE_TOKENS if request.decoding == "disc" else request.budget


def used_tokens(request: Request, outcome: object) -> int:
    """Return how much of `open_tokens` a request has used; all of it if the outcome does not say."""
    most = open_tokens(request)
    if isinstance(request, AnswerRequest) and isinstance(outcome, AnswerResult):
        return min(most, request.width * outcome.num_tokens)
    if isinstance(request, RetrieveRequest) and isinstance(outcome, RetrievalResult):
        # With auto this includes the nodes of the scored tree, so somewhat more is expected.
        return min(most, outcome.num_nodes if request.decoding == "disc" else outcome.num_exact_nodes)
    return most


@dataclass(slots=True)
class _Used:
    mean: float
    deviation: float


class CostModel:
    """Predicts the cost of a request from recent ones of its kind. Used on the event loop only."""

    def __init__(self) -> None:
        self._seen: dict[str, _Used] = {}

    def expected(self, request: Request) -> int:
        """Return a request's expected use of its budget, tokens; all of it before one of its kind is done."""
        most = open_tokens(request)
        kind, branches = _kind(request)
        seen = self._seen.get(kind)
        if seen is None:
            return most
        return min(most, round(branches * (seen.mean + _DEVIATIONS * seen.deviation)))

    def learn(self, request: Request, outcome: object) -> None:
        """Learn from an answered request; a failed one says nothing of its kind."""
        if not open_tokens(request) or not isinstance(outcome, AnswerResult | RetrievalResult):
            return
        kind, branches = _kind(request)
        used = used_tokens(request, outcome) / branches
        seen = self._seen.get(kind)
        if seen is None:
            self._seen[kind] = _Used(used, used / 2)
            return
        seen.deviation += _COST_SMOOTHING * (abs(used - seen.mean) - seen.deviation)
        seen.mean += _COST_SMOOTHING * (used - seen.mean)


def _kind(request: Request) -> tuple[str, int]:
    """Return the kind of a request, and how many branches share its budget."""
    if isinstance(request, AnswerRequest):
        return f"answer {request.method}", max(1, request.width)
    if isinstance(request, RetrieveRequest) and request.decoding == "disc":
        return "disc", max(1, request.width)
    return "proof", 1


_SPEED_SMOOTHING = 0.2
# Work in one batch takes at most that many times its time in smaller ones.
_MAX_PER_TOKEN = 2.0


class SpeedModel:
    """Learns the speed of a device from the batches that ran. Used on the event loop only.

    A single request takes far more time per token than a full batch, so tokens per second seen with single
    requests would refuse a burst that full batches master. Batches are therefore averaged by size, one mean
    for each power of two of tokens; a line through the means separates the cost of a batch and of a token.
    """

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, float]] = {}  # by size: tokens, seconds
        self._per_batch_s = 0.0
        self._per_token_s = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from a batch of `tokens` that took `seconds`."""
        size = max(1, tokens).bit_length()
        new = (float(max(1, tokens)), max(seconds, 1e-6))
        old = self._means.get(size, new)
        self._means[size] = (
            old[0] + _SPEED_SMOOTHING * (new[0] - old[0]),
            old[1] + _SPEED_SMOOTHING * (new[1] - old[1]),
        )
        self._means = _plausible(self._means)
        self._per_batch_s, self._per_token_s = _line(list(self._means.values()))

    def seconds(self, tokens: int, batches: int) -> float:
        """Return the time of `tokens` of work in that many batches, seconds; 0 before any batch has run."""
        return batches * self._per_batch_s + tokens * self._per_token_s


def _plausible(means: dict[int, tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Return means in which larger batches are not far slower per token than smaller ones.

    One odd batch, as on a machine that paged, would otherwise be believed for ever: a server that expects
    large batches to be slow refuses the requests that would make the next one.
    """
    bounded: dict[int, tuple[float, float]] = {}
    per_token_s = math.inf
    for size, (tokens, seconds) in sorted(means.items()):
        bounded[size] = (tokens, min(seconds, _MAX_PER_TOKEN * per_token_s * tokens))
        per_token_s = min(per_token_s, seconds / tokens)
    return bounded


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return intercept and slope of a least-squares line, neither of them negative."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    through_origin = sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    if not spread:
        return 0.0, through_origin
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    intercept = mean_y - slope * mean_x
    if slope <= 0:  # the small batches were the slow ones: the cost of tokens is unknown
        return 0.0, through_origin
    return (intercept, slope) if intercept >= 0 else (0.0, through_origin)
