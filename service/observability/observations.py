"""Observes calls and batches by metrics, traces and logs.

A call is counted and timed, and leaves a span and a line in the log. A device queue reports to the metrics,
and as stages of the running call's trace.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from genret.retrieval.answers.answer_types import AnswerRequest, AnswerResult
from genret.retrieval.score_types import ScoreRequest, ScoreResult
from genret.retrieval.types import RetrievalResult, Timings
from genret.service.call import TOKEN, Attribute, CallScope, CallSpan, current_scope
from genret.service.configuration.server_config import LogConfig
from genret.service.observability.logs import REQUEST_LOGGER, clipped
from genret.service.observability.metrics import CallMetrics, EngineMetrics
from genret.service.serving.served import Outcome, QueueObserver, Rejection, Request, Result, Stage

if TYPE_CHECKING:
    from genret.service.observability.tracing import Tracing


_LOG = logging.getLogger(REQUEST_LOGGER)
_MAX_QUERIES, _MAX_QUERY_CHARS = 10, 200

Transport = Literal["grpc", "http"]


class CallObserver:
    """Observes the calls of a server; `wants_queries` tells whether the queries of calls are logged."""

    def __init__(self, metrics: CallMetrics, log: LogConfig, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._logs_calls = log.requests
        self._tracing = tracing
        self.wants_queries = log.requests and log.queries

    @contextmanager
    def observe(
        self, scope: CallScope, full_method: str, headers: Mapping[str, str], transport: Transport
    ) -> Iterator[None]:
        """Observe a call until the end of the block; `scope` must be the current one.

        A block that raises without a code ends as CANCELLED for a cancelled task, otherwise as INTERNAL.
        `full_method` is `package.Service/Method`; the parent of the span is read from `headers`.
        """
        span = None
        if self._tracing is not None:
            span = scope.span = self._tracing.server_span(full_method, headers, transport, scope)
        in_flight = self._metrics.in_flight.labels(scope.method)
        in_flight.inc()
        try:
            yield
        except asyncio.CancelledError:
            scope.code = scope.code or "CANCELLED"
            raise
        except Exception:
            scope.code = scope.code or "INTERNAL"
            raise
        finally:
            in_flight.dec()
            code = scope.code or "OK"
            seconds = time.monotonic() - scope.begun
            self._metrics.requests.labels(scope.method, code).inc()
            self._metrics.request_seconds.labels(scope.method).observe(seconds)
            if self._logs_calls:
                self._write_line(scope, code, seconds)
            if span is not None:
                span.end(code, scope)

    def note_queries(self, scope: CallScope, queries: Sequence[str]) -> None:
        """Note the texts of a call's queries, clipped: a stream lives long, and a text may be large."""
        scope.num_queries += len(queries)
        room = _MAX_QUERIES - len(scope.queries)
        scope.queries += [clipped(query, _MAX_QUERY_CHARS) for query in queries[:room]]

    def _write_line(self, scope: CallScope, code: str, seconds: float) -> None:
        known = {"peer": scope.peer, "principal": TOKEN.get()}
        known |= {"index": scope.index, "version": scope.version}
        fields: dict[str, object] = {"method": scope.method, "code": code, "seconds": round(seconds, 6)}
        fields |= {name: value for name, value in known.items() if value}
        if scope.num_queries:
            fields |= {"queries": scope.queries, "num_queries": scope.num_queries}
        _LOG.info(
            "%s %s in %.3f s", scope.method, code, seconds, extra={"request_id": scope.request_id, **fields}
        )


class QueueObservations(QueueObserver):
    """Counts the events of a device queue, and adds stages to the traces of calls."""

    def __init__(self, metrics: EngineMetrics, device: str) -> None:
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
        """Note a batch's size and the waits of its requests."""
        self._metrics.batch_size.observe(len(waits_s))
        self._metrics.batch_tokens.observe(tokens)
        for wait in waits_s:
            self._metrics.queue_wait_seconds.observe(wait)

    def batch_finished(self, outcomes: Sequence[Outcome | Exception], seconds: float) -> None:
        """Note a batch's time and results."""
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
            _add_stages(scope.span, request, result, scope.answered - seconds, queued_s)

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
    """Return the decoding of a request; JSON answers and lists of titles share names of methods."""
    if isinstance(request, ScoreRequest):
        return "score"
    return f"json_{request.method}" if isinstance(request, AnswerRequest) else request.method


def finish_reason(result: Result) -> str:
    """Return "ok", "no_match" if nothing matches, or "abstained" if the answer was withheld."""
    if isinstance(result, AnswerResult | ScoreResult) or not result.no_match:
        return "ok"
    return "abstained" if result.abstained else "no_match"


def _add_stages(span: CallSpan, request: Request, result: Result, submitted: float, queued_s: float) -> None:
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
