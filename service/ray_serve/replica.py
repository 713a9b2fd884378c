"""One replica: a server without listeners, whose methods Ray Serve calls. Imported where replicas run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from grpc_health.v1 import health_pb2

from retrieval.errors import GenretError
from service.configuration.config import ServerConfig
from service.observability.logs import configure as configure_logs
from service.observability.tracing import start as start_tracing
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.ray_serve.deployment import REFUSAL
from service.ray_serve.dispatch import RELOAD, Dispatcher
from service.ray_serve.proxied_services import MethodRegistry
from service.serving.heap import keep_freed_memory
from service.serving.life import SWITCH_INTERVAL_S
from service.serving.loading import IndexOpener
from service.serving.readiness import State
from service.serving.server import Server
from service.version import version

_RETRIEVAL = "/genret.v1.RetrievalService/"
_INDEXES = "/genret.v1.IndexService/"
_HEALTH = "/grpc.health.v1.Health/"


class GenretReplica:
    """Opens the indexes and answers calls as `genret serve` does; Ray Serve makes one per replica.

    Each has the models, queues, caches and limits of a whole server.

    Args:
        config: What is served, and the limits.
    """

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc]  # Serve awaits it
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        keep_freed_memory()
        configure_logs(config.log)
        # Whoever reaches the proxy reaches this: nobody is on this machine alone.
        config = replace(config, host="0.0.0.0", insecure=True)
        try:
            tracing = start_tracing(config.tracing, version())
            self._server = Server(config, IndexOpener.of(config), tracing)
            await self._server.load()
        except GenretError as error:
            raise RuntimeError(f"{REFUSAL}{error}") from error
        registry = MethodRegistry()
        listeners = self._server.listeners
        listeners.add_services(registry)
        self._calls = Dispatcher(registry.methods, listeners.interceptors, config.max_request_bytes)

    def check_health(self) -> None:
        """Tell Ray whether this replica can answer; one that raises is replaced.

        Raises:
            RuntimeError: it is not ready.
        """
        if self._server.readiness.state is not State.READY:
            raise RuntimeError(self._server.readiness.state.value)

    async def Retrieve(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Answer one query."""
        return await self._calls.answer(f"{_RETRIEVAL}Retrieve", request, grpc_context, pb.RetrieveResponse)

    async def BatchRetrieve(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Answer several queries."""
        method = f"{_RETRIEVAL}BatchRetrieve"
        return await self._calls.answer(method, request, grpc_context, pb.BatchRetrieveResponse)

    async def RetrieveStream(self, request: Any, grpc_context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer queries as they come."""
        async for message in self._calls.stream(f"{_RETRIEVAL}RetrieveStream", request, grpc_context):
            yield message

    async def Link(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Link mentions."""
        return await self._calls.answer(f"{_RETRIEVAL}Link", request, grpc_context, pb.LinkResponse)

    async def Answer(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Answer one query with JSON."""
        return await self._calls.answer(f"{_RETRIEVAL}Answer", request, grpc_context, pb.AnswerResponse)

    async def ListIndexes(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """List every index."""
        method = f"{_INDEXES}ListIndexes"
        return await self._calls.answer(method, request, grpc_context, index_pb.ListIndexesResponse)

    async def GetIndex(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Describe one index."""
        method = f"{_INDEXES}GetIndex"
        return await self._calls.answer(method, request, grpc_context, index_pb.GetIndexResponse)

    async def ReloadIndex(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Refuse: it would reach one replica alone."""
        return await self._calls.answer(RELOAD, request, grpc_context, index_pb.ReloadIndexResponse)

    async def Check(self, request: Any, grpc_context: Any) -> Any:  # noqa: N802
        """Answer a health check."""
        method = f"{_HEALTH}Check"
        return await self._calls.answer(method, request, grpc_context, health_pb2.HealthCheckResponse)

    async def Watch(self, request: Any, grpc_context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Tell the state of this replica now, and whenever it changes."""
        async for message in self._calls.stream(f"{_HEALTH}Watch", request, grpc_context):
            yield message
