"""What Ray Serve's proxies import: the services they take calls of, whose messages they pass on as bytes.

Left to the generated code the proxy would parse every message and pickle it by the name of its module, which
is that of canonical stubs and not of ours. Bytes need no parsing there, and what is no message is refused by
the replica in the service's own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from service.pb.genret.v1 import index_service_pb2_grpc, retrieval_service_pb2_grpc

_ADD: tuple[Any, ...] = (
    retrieval_service_pb2_grpc.add_RetrievalServiceServicer_to_server,
    index_service_pb2_grpc.add_IndexServiceServicer_to_server,
    health_pb2_grpc.add_HealthServicer_to_server,
)


class MethodRegistry:
    """Takes the handlers that generated code adds to a server, and keeps them by service and method."""

    def __init__(self) -> None:
        self.services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        """Keep the handlers of a service."""
        self.services[service] = dict(handlers)

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Nothing: these are the registered ones once more, for servers that know no others."""

    @property
    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """Handlers by the full names of their methods, "/genret.v1.RetrievalService/Retrieve"."""
        return {
            f"/{service}/{name}": handler
            for service, handlers in self.services.items()
            for name, handler in handlers.items()
        }


def add_services_to_server(servicer: Any, server: Any) -> None:
    """Add the services to a proxy's server.

    Args:
        servicer: A stand-in of Serve's: the proxy puts its own behaviour in the place of every method.
        server: Of the proxy.
    """
    registry = MethodRegistry()
    for add in _ADD:
        add(servicer, registry)
    for service, handlers in registry.services.items():
        raw = {name: handler._replace(request_deserializer=None) for name, handler in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, raw),))
