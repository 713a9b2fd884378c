"""Admits work: estimates the cost of a request, and refuses or queues it when a device has too much to do.

- `Admission` counts the work that was accepted and is not finished, and refuses more above a client's part.
- `CostModel` learns how much of their budgets requests really take. Clients set `exact_budget` and
  `max_tokens` for the worst case; counted in full, a few requests would fill a queue whose device is idle.
- `SpeedModel` learns the time of a batch, and of each token of work on top of it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from statistics import linear_regression

from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.score_types import ScoreRequest
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import NoRoomError
from genret.service.serving.fair_shares import Caller
from genret.service.serving.served import Request, Result

_QUEUE_PER_BUDGET = 4
_MIN_RETRY_S, _MAX_RETRY_S = 0.05, 30.0
# A client may always hold that part of the limits, however many others ask.
_MOST_PARTS = 8


def estimate_tokens(request: Request, prompt_tokens: int, scored_forms: int = 0) -> int:
    """Return the tokens a model must process for a request, at most if its length is not known.

    Counted are the prompt, the branches to a title's end with the budget of the proof (or the longest JSON
    answer), and the titles that are scored, as if they shared nothing; for `scored_forms`, those of a
    shortlist, see `served.scored_forms`.
    """
    if isinstance(request, ScoreRequest):
        # Without the tokenizer, from the bytes of the titles.
        return prompt_tokens + sum(1 + len(title.encode()) // _BYTES_PER_TOKEN for title in request.titles)
    is_beam = isinstance(request, RetrieveRequest) and request.decoding == "beam"
    titles = scored_forms + (request.width if is_beam else 0)
    return prompt_tokens + titles * TITLE_TOKENS + open_tokens(request)


def done_tokens(estimated: int, request: Request, outcome: Result) -> int:
    """Return an estimate less the part of the budget that the answer did not use."""
    return estimated - open_tokens(request) + used_tokens(request, outcome)


class Patience(Enum):
    """Treatment of a request for which there is no room."""

    NONE = "refused at once"
    BATCH = "waits for room, unless its client has as much waiting as the queue may hold"
    STREAM = "waits for room: its sender reads no further meanwhile"


@dataclass(slots=True)
class _Held:
    """Unfinished work of one client."""

    requests: int = 0  # those that want an answer now
    patient: int = 0  # those of batches and streams
    tokens: int = 0  # of those that want an answer now
    by_call: Counter[str] = field(default_factory=Counter)  # tokens of all


_NOTHING = _Held()


class Admission:
    """Counts the requests, and their tokens, that were accepted and are not finished.

    A client can fill no more than its part of what a device may be given, and how long it waits follows from
    its own work and as much of each other's, see `fair_shares`. Requests of batches and streams are patient:
    they wait as long as their sender has allowed, and take no room from others. Used on the event loop only.
    """

    def __init__(self, limits: QueueLimits, batch: BatchLimits | None = None) -> None:
        self._limits = limits
        self._batch = batch or BatchLimits()
        self.speed = SpeedModel()
        self.costs = CostModel()
        self._held: dict[str, _Held] = {}  # by client
        self.num_requests = 0
        self.num_tokens = 0

    @property
    def num_clients(self) -> int:
        """Clients with work."""
        return len(self._held)

    def num_held(self, client: str) -> int:
        """Return how many unfinished requests of a client want an answer now."""
        return self._held.get(client, _NOTHING).requests

    def share(self, request: Request, tokens: int) -> int:
        """Return the tokens that a request of `tokens` work counts for until it is finished.

        Of a budget named by the client only the recent use of such requests counts, and at most a quarter of
        the queue: a number in a request must not close the server to all others.
        """
        counted = min(self.costs.expected(request), self._limits.max_tokens // _QUEUE_PER_BUDGET)
        return max(1, tokens - open_tokens(request) + min(open_tokens(request), counted))

    def admit(
        self, caller: Caller, tokens: int, deadline: float = math.inf, patience: Patience = Patience.NONE
    ) -> None:
        """Take a request in; `release` must follow once.

        A request larger than its client's part is taken when the client has no other. `deadline` is
        `time.monotonic()`, seconds.

        Raises:
            NoRoomError: a limit would be passed, or the deadline cannot be met.
        """
        self.check(caller, tokens, deadline, patience)
        self._count(caller, 1, tokens, patience)

    def check(
        self, caller: Caller, tokens: int, deadline: float = math.inf, patience: Patience = Patience.NONE
    ) -> None:
        """Raise what `admit` would raise."""
        wait_s, left_s = self.expected_wait_s(caller, tokens), deadline - time.monotonic()
        if patience is Patience.NONE:
            reason, num_held = self._too_much(caller.client, tokens, wait_s), self.num_held(caller.client)
        else:
            reason, num_held = self._too_patient(caller.client, patience), None
        if reason is None and wait_s > left_s and patience is not Patience.STREAM:
            reason = f"the deadline is in {left_s:.2f} s and the work ahead takes about {wait_s:.2f} s"
            num_held = None  # others may have more time
        if reason is not None:
            raise NoRoomError(f"the queue is full: {reason}", self.retry_after_s(caller), num_held)

    def release(self, caller: Caller, tokens: int, patience: Patience = Patience.NONE) -> None:
        """Give back what `admit` took."""
        self._count(caller, -1, -tokens, patience)

    def _count(self, caller: Caller, requests: int, tokens: int, patience: Patience) -> None:
        self.num_requests += requests
        self.num_tokens += tokens
        held = self._held.setdefault(caller.client, _Held())
        held.by_call[caller.call] += tokens
        if not held.by_call[caller.call]:
            del held.by_call[caller.call]
        if patience is Patience.NONE:
            held.requests += requests
            held.tokens += tokens
        else:
            held.patient += requests
        if not held.requests and not held.patient:
            del self._held[caller.client]

    def _too_patient(self, client: str, patience: Patience) -> str | None:
        """Return which limit a request of a batch would pass; None if there is none."""
        waiting = self._held.get(client, _NOTHING).patient
        if patience is Patience.STREAM or waiting < self._limits.max_requests:
            return None
        return f"{waiting} requests of batches wait, at most {self._limits.max_requests}"

    def _too_much(self, client: str, tokens: int, wait_s: float) -> str | None:
        """Return which limit a request would pass; None if there is room for it."""
        mine = self._held.get(client, _NOTHING)
        parts = min(self.num_clients + (client not in self._held), _MOST_PARTS)
        asking = f" while {parts} clients ask" if parts > 1 else ""
        most = self._limits.max_requests // parts
        if mine.requests >= max(1, most):
            return f"{mine.requests} requests, at most {most}{asking}"
        if not mine.requests:
            return None
        most = self._limits.max_tokens // parts
        if mine.tokens + tokens > most:
            return f"{mine.tokens} tokens of work, at most {most}{asking}, this request {tokens}"
        # One batch is what runs at once; a second one lets a device that gains by it run full ones.
        batches = max(
            (mine.requests + 1) * parts / self._batch.max_size,
            (mine.tokens + tokens) * parts / self._batch.max_tokens,
        )
        most_s = self._limits.max_wait_seconds * (math.inf if batches <= 1 else 2 if batches <= 2 else 1)
        return None if wait_s <= most_s else f"work for {wait_s:.1f} s, at most {most_s:g} s"

    def expected_wait_s(self, caller: Caller, tokens: int = 0) -> float:
        """Return the expected time until the device begins a request of `tokens` work, seconds.

        Before it comes what its call has waiting, of its client's other calls no more each than of this, and
        of other clients no more each than of this. 0 before anything has run.
        """
        mine = self._held.get(caller.client, _NOTHING)
        before = mine.by_call.get(caller.call, 0)
        of_client = before + sum(
            min(held, before + tokens) for call, held in mine.by_call.items() if call != caller.call
        )
        work = of_client + sum(
            min(held.by_call.total(), of_client + tokens)
            for client, held in self._held.items()
            if client != caller.client
        )
        if not work:
            return 0.0
        requests = self.num_requests * work / max(1, self.num_tokens)
        batches = max(requests / self._batch.max_size, work / self._batch.max_tokens)
        return self.speed.seconds(work, math.ceil(batches))

    def retry_after_s(self, caller: Caller) -> float:
        """Return when to try a refused request again: when half the work should be done, seconds."""
        wait = self.expected_wait_s(caller, self.num_tokens) / 2 or 1.0
        return min(max(wait, _MIN_RETRY_S), _MAX_RETRY_S)


# Mean length of a title (6 M English titles, GPT-2 vocabulary: 7.9).
TITLE_TOKENS = 8
# Mean length of a token of text; every title has an end token.
_BYTES_PER_TOKEN = 4
_COST_SMOOTHING = 0.1
# Expected above the mean, in mean deviations: few requests take more.
_DEVIATIONS = 4


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
    tokens, seconds = zip(*points, strict=True)
    if len(points) == 1:
        return 0.0, seconds[0] / tokens[0]
    slope, intercept = linear_regression(tokens, seconds)
    if slope <= 0 or intercept < 0:  # the small batches were the slow ones: the cost of tokens is unknown
        return 0.0, linear_regression(tokens, seconds, proportional=True).slope
    return intercept, slope
