"""Which path of HTTP is which method of the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from google.protobuf.descriptor import MethodDescriptor

from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.security.scopes import METHOD_SCOPES, Scope

NDJSON_TYPE = "application/x-ndjson"
_SERVICES = {
    "RetrievalService": pb.DESCRIPTOR.services_by_name["RetrievalService"],
    "IndexService": index_pb.DESCRIPTOR.services_by_name["IndexService"],
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of the API under its path.

    Attributes:
        verb: HTTP's method.
        path: The path; `{name}` stands for the field `name` of the request.
        service: Name of the service.
        method: Name of its method.
        has_body: Whether the other fields of the request come in a body.
        is_stream: Whether bodies are streams of messages, one a line.
        is_limited: Whether the server's longest time of a call holds for it.
    """

    verb: Literal["GET", "POST"]
    path: str
    service: str
    method: str
    has_body: bool = True
    is_stream: bool = False
    is_limited: bool = True

    @property
    def descriptor(self) -> MethodDescriptor:
        """What the `.proto` says of the method."""
        return _SERVICES[self.service].methods_by_name[self.method]

    @property
    def full_name(self) -> str:
        """The method as gRPC spells it."""
        return f"/{_SERVICES[self.service].full_name}/{self.method}"

    @property
    def scope(self) -> Scope | None:
        """What a token must allow."""
        return METHOD_SCOPES[self.full_name]


# The order matters where two patterns fit one path: the first wins.
ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("POST", "/v1/retrieve", "RetrievalService", "Retrieve"),
    Endpoint("POST", "/v1/batchRetrieve", "RetrievalService", "BatchRetrieve"),
    Endpoint(
        "POST", "/v1/retrieveStream", "RetrievalService", "RetrieveStream", is_stream=True, is_limited=False
    ),
    Endpoint("POST", "/v1/link", "RetrievalService", "Link"),
    Endpoint("POST", "/v1/answer", "RetrievalService", "Answer"),
    Endpoint("POST", "/v1/score", "RetrievalService", "Score"),
    Endpoint("GET", "/v1/indexes", "IndexService", "ListIndexes", has_body=False),
    Endpoint("POST", "/v1/indexes/{name}:reload", "IndexService", "ReloadIndex", is_limited=False),
    Endpoint("GET", "/v1/indexes/{name}", "IndexService", "GetIndex", has_body=False),
)
