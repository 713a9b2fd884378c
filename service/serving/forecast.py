"""What requests will take of the budgets that they name, learned from those that are done.

Clients set `exact_budget` and `max_tokens` for the worst case, far above what most requests take. Counted in
full, a few of them would fill a queue whose device is nearly idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.answers.types import AnswerRequest, AnswerResult
from retrieval.types import RetrievalResult, RetrieveRequest

_SMOOTHING = 0.1
# How far above the mean is expected, in mean deviations: few requests take more.
_DEVIATIONS = 4


def open_tokens(request: RetrieveRequest | AnswerRequest) -> int:
    """Return the most that a request may take beyond its prompt and its branches: what its client bounds."""
    return request.width * request.max_tokens if isinstance(request, AnswerRequest) else request.budget


def used_tokens(request: RetrieveRequest | AnswerRequest, outcome: object) -> int:
    """Return what a request has taken of `open_tokens`; all of it where the outcome does not say."""
    most = open_tokens(request)
    if isinstance(request, AnswerRequest) and isinstance(outcome, AnswerResult):
        return min(most, request.width * outcome.num_tokens)
    if isinstance(request, RetrieveRequest) and isinstance(outcome, RetrievalResult):
        return min(most, outcome.num_exact_nodes)
    return most


@dataclass(slots=True)
class _Seen:
    mean: float
    deviation: float


class Forecast:
    """Expects of a request what those of its kind took lately, and some more. Used on the event loop only."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def expected(self, request: RetrieveRequest | AnswerRequest) -> int:
        """Return what a request will take of its budget, tokens: all of it before any of its kind is done."""
        most = open_tokens(request)
        seen = self._seen.get(_kind(request))
        if seen is None:
            return most
        return min(most, round(_branches(request) * (seen.mean + _DEVIATIONS * seen.deviation)))

    def learn(self, request: RetrieveRequest | AnswerRequest, outcome: object) -> None:
        """Learn from a request that was answered; one that failed says nothing of its kind."""
        if not open_tokens(request) or not isinstance(outcome, AnswerResult | RetrievalResult):
            return
        used = used_tokens(request, outcome) / _branches(request)
        seen = self._seen.get(_kind(request))
        if seen is None:
            self._seen[_kind(request)] = _Seen(used, used / 2)
            return
        seen.deviation += _SMOOTHING * (abs(used - seen.mean) - seen.deviation)
        seen.mean += _SMOOTHING * (used - seen.mean)


def _kind(request: RetrieveRequest | AnswerRequest) -> str:
    return f"answer {request.method}" if isinstance(request, AnswerRequest) else "proof"


def _branches(request: RetrieveRequest | AnswerRequest) -> int:
    return max(1, request.width) if isinstance(request, AnswerRequest) else 1
