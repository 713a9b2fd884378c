"""The services that Ray Serve's proxies import; their messages are passed on as bytes.

With the generated code's parsers the proxy would pickle messages by the name of their module, which is that
of canonical stubs and not of ours. Malformed bytes are refused by the replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from genret.service.pb.genret.v1 import index_service_pb2_grpc, retrieval_service_pb2_grpc

_ADD: tuple[Any, ...] = (
    retrieval_service_pb2_grpc.add_RetrievalServiceServicer_to_server,
    index_service_pb2_grpc.add_IndexServiceServicer_to_server,
    health_pb2_grpc.add_HealthServicer_to_server,
)


class MethodRegistry:
    """Takes the handlers that generated code adds to a server, by service and method."""

    def __init__(self) -> None:
        self.services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        """Keep the handlers of a service."""
        self.services[service] = dict(handlers)

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Do nothing: these repeat the registered ones."""

    @property
    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """Handlers by the full names of their methods, "/genret.v1.RetrievalService/Retrieve"."""
        return {
            f"/{service}/{name}": handler
            for service, handlers in self.services.items()
            for name, handler in handlers.items()
        }


def add_services_to_server(servicer: Any, server: Any) -> None:
    """Add the services to a proxy's server, which puts its own behaviour in the place of every method."""
    registry = MethodRegistry()
    for add in _ADD:
        add(servicer, registry)
    for service, handlers in registry.services.items():
        raw = {name: handler._replace(request_deserializer=None) for name, handler in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, raw),))
