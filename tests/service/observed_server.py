"""A grpc.aio server whose handlers a test decides, behind the interceptors of the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from genret.service.configuration.server_config import LogConfig
from genret.service.observability.metrics import Metrics
from genret.service.observability.tracing import Tracing
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.rpc import MalformedMessageInterceptor, ObservationInterceptor

SERVICE = "genret.v1.RetrievalService"
_HANDLERS: dict[str, Callable[..., Any]] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


@dataclass
class Observed:
    """A channel to the server, and what it counted."""

    channel: Any
    metrics: Metrics
    kind: str

    def call(self, *queries: str, timeout: float = 60, **options: Any) -> Any:
        """Start a call of Retrieve with one message, or a stream of them."""
        multicallable = getattr(self.channel, self.kind)(
            f"/{SERVICE}/Retrieve",
            request_serializer=pb.RetrieveRequest.SerializeToString,
            response_deserializer=pb.RetrieveResponse.FromString,
        )
        messages = [pb.RetrieveRequest(query=query) for query in queries or ("hamlet",)]
        request = messages[0] if self.kind.startswith("unary") else iter(messages)
        return multicallable(request, timeout=timeout, **options)

    def codes(self) -> dict[tuple[str, str], float]:
        """Calls counted, by method and code."""
        return {
            (sample.labels["method"], sample.labels["code"]): sample.value
            for family in self.metrics.requests.collect()
            for sample in family.samples
        }

    def in_flight(self) -> float:
        """Calls that have not ended."""
        return sum(s.value for family in self.metrics.in_flight.collect() for s in family.samples)


@asynccontextmanager
async def observed(
    behaviour: Callable[..., Any],
    kind: str = "unary_unary",
    log: LogConfig | None = None,
    tracing: Tracing | None = None,
    behind: Sequence[Any] = (),
) -> AsyncIterator[Observed]:
    """Serve Retrieve by `behaviour`, of any kind, with interceptors `behind` the observing one."""
    metrics = Metrics()
    interceptors = [
        ObservationInterceptor(metrics, log or LogConfig(), tracing),
        *behind,
        MalformedMessageInterceptor(),
    ]
    server = grpc.aio.server(interceptors=interceptors)
    handler = _HANDLERS[kind](
        behaviour,
        request_deserializer=pb.RetrieveRequest.FromString,
        response_serializer=pb.RetrieveResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Retrieve": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Observed(channel, metrics, kind)
    finally:
        await server.stop(0)
