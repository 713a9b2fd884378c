"""What happens on devices, as metrics and as stages of the running call's trace."""

from __future__ import annotations

import time
from collections.abc import Sequence

from retrieval.answers.types import AnswerRequest, AnswerResult
from retrieval.score_types import ScoreRequest, ScoreResult
from retrieval.types import RetrievalResult, Timings
from service.observability.metrics import Metrics
from service.observability.scope import Attribute, CallScope, current_scope
from service.serving.observer import Rejection, Stage
from service.serving.served import Outcome, Request, Result


class LaneObservations:
    """Implements `service.serving.observer.LaneObserver`.

    Args:
        metrics: Where to count.
        device: Name of the lane's device.
    """

    def __init__(self, metrics: Metrics, device: str) -> None:
        self._metrics = metrics
        self._batch_seconds = metrics.batch_seconds.labels(device)

    def rejected(self, reason: Rejection) -> None:
        """Count a refusal."""
        self._metrics.rejected.labels(reason).inc()

    def cancelled(self, stage: Stage) -> None:
        """Count a client that went away."""
        self._metrics.cancelled.labels(stage).inc()

    def deadline_exceeded(self, stage: Stage) -> None:
        """Count a deadline that was not met."""
        self._metrics.deadline_exceeded.labels(stage).inc()

    def batch_formed(self, tokens: int, waits_s: Sequence[float]) -> None:
        """Note a batch's size and what its requests waited."""
        self._metrics.batch_size.observe(len(waits_s))
        self._metrics.batch_tokens.observe(tokens)
        for wait in waits_s:
            self._metrics.queue_wait_seconds.observe(wait)

    def batch_finished(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Note what a batch took and what came of it."""
        self._batch_seconds.observe(seconds)
        kv_bytes = 0
        for outcome in outcomes:
            if not isinstance(outcome, Exception):
                self._note_work(outcome)
                kv_bytes += outcome.kv.peak_bytes
        if kv_bytes:
            self._metrics.kv_peak_bytes.observe(kv_bytes)

    def answered(self, request: Request, result: Result, queued_s: float, seconds: float) -> None:
        """Count an answer, and note its stages in the trace of the call that asked."""
        self._metrics.results.labels(decoding_method(request), finish_reason(result)).inc()
        scope = current_scope()
        if scope is None:
            return
        scope.answered = time.monotonic()
        scope.num_answers += 1
        if scope.span is not None:
            _add_stages(scope, request, result, scope.answered - seconds, queued_s)

    def _note_work(self, result: Result) -> None:
        metrics = self._metrics
        metrics.prefill_seconds.observe(result.timings.prefill_ms / 1000)
        if isinstance(result, ScoreResult):
            self._note_scored(len(result.scores), result.timings)
            metrics.model_tokens.inc(result.num_nodes)
            return
        if isinstance(result, AnswerResult):
            metrics.decode_steps.inc(result.num_forwards)
            metrics.model_tokens.inc(result.num_tokens)
        else:
            metrics.decode_steps.inc(result.num_steps)
            metrics.model_tokens.inc(result.num_nodes)
            if result.shortlist_size:
                metrics.shortlist_seconds.observe(result.timings.shortlist_ms / 1000)
                self._note_scored(result.num_scored, result.timings)
        metrics.decode_seconds.observe(result.timings.decode_ms / 1000)

    def _note_scored(self, num_titles: int, timings: Timings) -> None:
        self._metrics.score_seconds.observe(timings.score_ms / 1000)
        self._metrics.scored_titles.inc(num_titles)


def decoding_method(request: Request) -> str:
    """Return how a request is decoded; JSON answers and lists of titles share names of methods."""
    if isinstance(request, ScoreRequest):
        return "score"
    return f"json_{request.method}" if isinstance(request, AnswerRequest) else request.method


def finish_reason(result: Result) -> str:
    """Return "ok", "no_match" where the catalogue holds nothing, "abstained" where it was withheld."""
    if isinstance(result, AnswerResult | ScoreResult) or not result.no_match:
        return "ok"
    return "abstained" if result.abstained else "no_match"


def _add_stages(
    scope: CallScope,
    request: Request,
    result: Result,
    submitted: float,
    queued_s: float,
) -> None:
    span = scope.span
    if span is None:
        return
    taken = submitted + queued_s
    timings = result.timings
    decoding = taken + timings.prefill_ms / 1000
    decoded = decoding + timings.decode_ms / 1000
    span.stage("queue", submitted, taken, {})
    span.stage("prefill", taken, decoding, {})
    about: dict[str, Attribute] = {"genret.method": decoding_method(request)}
    if isinstance(result, ScoreResult):
        about |= {"genret.tokens": result.num_nodes, "genret.titles": len(result.scores)}
        span.stage("score", decoding, decoding + timings.score_ms / 1000, about)
        return
    if isinstance(result, AnswerResult):
        about |= {"genret.steps": result.num_forwards, "genret.tokens": result.num_tokens}
    else:
        about |= {"genret.steps": result.num_steps, "genret.tokens": result.num_nodes}
        about |= {"genret.candidates": len(result.candidates)}
    k = getattr(request, "k", None)
    if k is not None:
        about["genret.k"] = k
    span.stage("decode", decoding, decoded, about)
    if isinstance(result, RetrievalResult) and result.shortlist_size:
        scoring = decoded + timings.shortlist_ms / 1000
        span.stage("shortlist", decoded, scoring, {"genret.entities": result.shortlist_size})
        span.stage("score", scoring, scoring + timings.score_ms / 1000, {"genret.titles": result.num_scored})
