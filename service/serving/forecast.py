"""What requests will take of the budgets that they name, learned from those that are done.

Clients set `exact_budget` and `max_tokens` for the worst case, far above what most requests take, and the
draws of DISC share most of their tokens. Counted in full, a few such requests would fill a queue whose
device is nearly idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.answers.types import AnswerRequest, AnswerResult
from retrieval.score_types import ScoreRequest
from retrieval.types import RetrievalResult, RetrieveRequest
from service.serving.served import Request

# A title has 8 tokens in the mean (6 M English titles, GPT-2 vocabulary: 7.9).
TITLE_TOKENS = 8
# A token of text has four bytes in the mean; every title has an end token.
_BYTES_PER_TOKEN = 4
_SMOOTHING = 0.1
# How far above the mean is expected, in mean deviations: few requests take more.
_DEVIATIONS = 4


def title_tokens(request: ScoreRequest) -> int:
    """Return about how many tokens the titles of a request have: nobody waits for a tokenizer here."""
    return sum(1 + len(title.encode()) // _BYTES_PER_TOKEN for title in request.titles)


def open_tokens(request: Request) -> int:
    """Return the most that a request may take beyond what it takes for sure: what its client bounds."""
    if isinstance(request, AnswerRequest):
        return request.width * request.max_tokens
    if isinstance(request, ScoreRequest):
        return 0
    return request.width * TITLE_TOKENS if request.decoding == "disc" else request.budget


def used_tokens(request: Request, outcome: object) -> int:
    """Return what a request has taken of `open_tokens`; all of it where the outcome does not say."""
    most = open_tokens(request)
    if isinstance(request, AnswerRequest) and isinstance(outcome, AnswerResult):
        return min(most, request.width * outcome.num_tokens)
    if isinstance(request, RetrieveRequest) and isinstance(outcome, RetrievalResult):
        # Of auto, the nodes of the scored tree are among them: it is then expected to take somewhat more.
        return min(most, outcome.num_nodes if request.decoding == "disc" else outcome.num_exact_nodes)
    return most


@dataclass(slots=True)
class _Seen:
    mean: float
    deviation: float


class Forecast:
    """Expects of a request what those of its kind took lately, and some more. Used on the event loop only."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def expected(self, request: Request) -> int:
        """Return what a request will take of its budget, tokens: all of it before any of its kind is done."""
        most = open_tokens(request)
        seen = self._seen.get(_kind(request))
        if seen is None:
            return most
        return min(most, round(_branches(request) * (seen.mean + _DEVIATIONS * seen.deviation)))

    def learn(self, request: Request, outcome: object) -> None:
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


def _kind(request: Request) -> str:
    if isinstance(request, AnswerRequest):
        return f"answer {request.method}"
    return "disc" if isinstance(request, RetrieveRequest) and request.decoding == "disc" else "proof"


def _branches(request: Request) -> int:
    if isinstance(request, ScoreRequest):
        return 1
    is_proof = isinstance(request, RetrieveRequest) and request.decoding != "disc"
    return 1 if is_proof else max(1, request.width)
