"""What every call leaves behind, whatever carries it: counts, times, a span and a line in the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from service.configuration.sections import LogConfig
from service.observability.escaping import clipped
from service.observability.logs import REQUEST_LOGGER
from service.observability.metrics import Metrics
from service.observability.scope import CallScope
from service.security.authority import PRINCIPAL

if TYPE_CHECKING:
    from service.observability.tracing import Tracing

_LOG = logging.getLogger(REQUEST_LOGGER)
_MAX_QUERY_CHARS = 200
_MAX_QUERIES = 10

Transport = Literal["grpc", "http"]


@dataclass(slots=True, eq=False)
class ObservedCall:
    """A call while it runs.

    Attributes:
        scope: What is known of it.
        code: Name of the gRPC status it ends with; None: OK, unless it ends with an exception.
    """

    scope: CallScope
    code: str | None = None
    num_queries: int = 0
    queries: list[str] = field(default_factory=list)

    def note_queries(self, queries: Sequence[str]) -> None:
        """Note what the call is about."""
        self.num_queries += len(queries)
        room = _MAX_QUERIES - len(self.queries)
        self.queries += [clipped(query, _MAX_QUERY_CHARS) for query in queries[:room]]

    def note_index(self, name: str, version: str) -> None:
        """Note which index answered; empty: it is not known."""
        if name:
            self.scope.index, self.scope.version = name, version


class CallObserver:
    """Observes the calls of a server.

    Args:
        metrics: Where to count.
        log: Whether calls are logged, and their queries.
        tracing: Where spans go; None: there are none.

    Attributes:
        wants_queries: Whether `note_queries` is of use.
    """

    def __init__(self, metrics: Metrics, log: LogConfig, tracing: Tracing | None = None) -> None:
        self._metrics = metrics
        self._logs_calls = log.requests
        self._tracing = tracing
        self.wants_queries = log.requests and log.queries

    @contextmanager
    def observe(
        self, scope: CallScope, full_method: str, headers: Mapping[str, str], transport: Transport
    ) -> Iterator[ObservedCall]:
        """Observe a call from here to the end of the block.

        A block that raises without having said its code ends as CANCELLED for a cancelled task, and as
        INTERNAL for anything else.

        Args:
            scope: What is known of the call; already the current one.
            full_method: As `package.Service/Method`.
            headers: Metadata or headers, by lower-case name; the parent of the span is read off them.
            transport: What carries the call.
        """
        call = ObservedCall(scope)
        span = None
        if self._tracing is not None:
            span = scope.span = self._tracing.server_span(full_method, headers, transport, scope)
        in_flight = self._metrics.in_flight.labels(scope.method)
        in_flight.inc()
        try:
            yield call
        except asyncio.CancelledError:
            call.code = call.code or "CANCELLED"
            raise
        except Exception:
            call.code = call.code or "INTERNAL"
            raise
        finally:
            in_flight.dec()
            code = call.code or "OK"
            seconds = time.monotonic() - scope.begun
            self._metrics.requests.labels(scope.method, code).inc()
            self._metrics.request_seconds.labels(scope.method).observe(seconds)
            if self._logs_calls:
                self._write_line(call, code, seconds)
            if span is not None:
                span.end(code, scope)

    def _write_line(self, call: ObservedCall, code: str, seconds: float) -> None:
        scope = call.scope
        principal = PRINCIPAL.get()
        known = {
            "peer": scope.peer,
            "principal": "" if principal is None else principal.fingerprint,
            "index": scope.index,
            "version": scope.version,
        }
        fields: dict[str, object] = {"method": scope.method, "code": code, "seconds": round(seconds, 6)}
        fields |= {name: value for name, value in known.items() if value}
        if call.num_queries:
            fields |= {"queries": call.queries, "num_queries": call.num_queries}
        _LOG.info(
            "%s %s in %.3f s", scope.method, code, seconds, extra={"request_id": scope.request_id, **fields}
        )
