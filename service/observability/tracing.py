"""OpenTelemetry traces (extra `otel`): a span for every call, with the stages of its answers below it.

OpenTelemetry is imported only when tracing starts, and its globals are left alone. Spans are exported in the
background, and dropped if the collector does not take them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from genret.retrieval.errors import MissingExtraError
from genret.service.call import Attribute, CallScope
from genret.service.configuration.server_config import TracingConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer

_LOG = logging.getLogger(__name__)
_SERVICE = "genret"
_EXPORT_TIMEOUT_S = 5.0
# Codes that OpenTelemetry's conventions blame on a gRPC server.
_SERVER_ERRORS = frozenset(
    ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
)


class ServerSpan:
    """The span of a call (a `service.call.CallSpan`)."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        # Stages are timed by the monotonic clock; both clocks are read together once.
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def stage(self, name: str, begin_s: float, end_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Add a finished child span; times are `time.monotonic()`, seconds."""
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self._span)
        child = self._tracer.start_span(name, context, attributes=attributes, start_time=self._ns(begin_s))
        child.end(self._ns(end_s))

    def end(self, code: str, scope: CallScope) -> None:
        """End the span of a call with the gRPC status `code`."""
        from opentelemetry.trace import Status, StatusCode

        now = time.monotonic()
        if scope.answered is not None and scope.num_answers == 1:
            self.stage("convert", scope.answered, now, {})
        self._span.set_attribute("rpc.response.status_code", code)
        for name, value in (("genret.index", scope.index), ("genret.version", scope.version)):
            if value:
                self._span.set_attribute(name, value)
        if code != "OK":
            self._span.set_attribute("error.type", code)
        if code in _SERVER_ERRORS:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._ns(now))

    def _ns(self, seconds: float) -> int:
        return self._epoch_ns + int(seconds * 1e9)


class Tracing:
    """Makes spans and exports them by OpenTelemetry's `provider`."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(_SERVICE, version)
        self._stopped = False
        self._propagator = TraceContextTextMapPropagator()

    def server_span(
        self, full_method: str, headers: Mapping[str, str], transport: str, scope: CallScope
    ) -> ServerSpan | None:
        """Begin the span of a call, below the one that `traceparent` names; None if it is not sampled.

        `full_method` is `package.Service/Method`, and `headers` are by lower-case name.
        """
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            full_method,
            self._propagator.extract(dict(headers)),
            SpanKind.SERVER,
            {
                "rpc.system.name": transport,
                "rpc.method": full_method,
                "client.address": scope.peer,
                "genret.request_id": scope.request_id,
            },
            start_time=time.time_ns() - int((time.monotonic() - scope.begun) * 1e9),
        )
        return ServerSpan(self._tracer, span) if span.is_recording() else None

    async def stop(self, timeout_s: float = _EXPORT_TIMEOUT_S) -> None:
        """Export what is left, for `timeout_s` seconds at most, and stop. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        done, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(done.set)

        # A daemon: a collector that does not answer must not keep the process alive.
        threading.Thread(target=shut_down, name="genret-tracing-stop", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), timeout_s)
        except TimeoutError:
            _LOG.warning("the last traces were not taken by the collector within %.0f s", timeout_s)


def start(config: TracingConfig, version: str, processor: SpanProcessor | None = None) -> Tracing | None:
    """Start tracing, by `processor` instead of the endpoint if given; None without an endpoint.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """
    if config.endpoint is None:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise MissingExtraError(error.name or "opentelemetry", "otel") from error
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(config.sample_ratio)),
        resource=_resource(version),
        shutdown_on_exit=False,
    )
    if processor is None:
        exporter = OTLPSpanExporter(
            endpoint=config.endpoint,
            insecure=config.endpoint.startswith("http://"),
            timeout=_EXPORT_TIMEOUT_S,
        )
        processor = BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    return Tracing(provider, version)


def _resource(version: str) -> Resource:
    """Describe the sender of spans; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    resource = Resource.create({"genret.service.version": version})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: _SERVICE}))
    return resource
