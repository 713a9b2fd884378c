"""A typed client of the service, synchronous.

    with RetrievalClient("127.0.0.1:50051") as client:
        reply = client.retrieve(RetrieveRequest("author of hamlet", k=3))

UNAVAILABLE is retried by gRPC's own service config; nothing else is, because nothing else is safe to
repeat blindly: RESOURCE_EXHAUSTED says when to come back, and the caller decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from retrieval.answers.types import AnswerRequest
from retrieval.types import RetrieveRequest
from service.client.reply import AnswerReply, IndexInfo, Reply
from service.configuration.config import check_address
from service.errors import CallError
from service.pb.genret.v1 import index_service_pb2_grpc as index_grpc
from service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from service.wire.answers import answer_from_proto, answer_request_to_proto
from service.wire.indexes import indexes_from_proto, list_indexes_to_proto
from service.wire.replies import batch_reply_from_proto, reply_from_proto
from service.wire.requests import batch_request_to_proto, request_to_proto
from service.wire.status import error_from_status, status_from_bytes

READINESS = "genret.v1.RetrievalService"
LIVENESS = ""
# A reply of 256 queries with 1,000 candidates each passes gRPC's default of 4 MiB by far.
_MAX_REPLY_BYTES = 256 * 2**20
_SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{"service": "genret.v1.RetrievalService"}, {"service": "genret.v1.IndexService"}],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}
T = TypeVar("T")


class RetrievalClient:
    """A connection to a server. Safe to share among threads.

    Args:
        address: `host:port` of the server.
        timeout_s: Deadline of every call, seconds.

    Raises:
        InputError: `address` is not `host:port`.
    """

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        check_address(address)
        self.address = address
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.service_config", json.dumps(_SERVICE_CONFIG)),
                ("grpc.max_receive_message_length", _MAX_REPLY_BYTES),
            ],
        )
        retrieval_stub: Any = pb_grpc.RetrievalServiceStub  # generated, so untyped
        index_stub: Any = index_grpc.IndexServiceStub
        self._retrieval = retrieval_stub(self._channel)
        self._indexes = index_stub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._channel.close()

    def retrieve(self, request: RetrieveRequest, index: str = "") -> Reply:
        """Answer one query.

        Raises:
            CallError: the server refused it, or cannot be reached.
        """
        message = request_to_proto(request, index)
        return reply_from_proto(request.query, self._call(self._retrieval.Retrieve, message))

    def retrieve_batch(self, requests: Sequence[RetrieveRequest], index: str = "") -> list[Reply | CallError]:
        """Answer several queries, in their order; what failed alone is an error in the list.

        Raises:
            CallError: the whole call was refused, or the server cannot be reached.
        """
        response = self._call(self._retrieval.BatchRetrieve, batch_request_to_proto(requests, index))
        return batch_reply_from_proto([request.query for request in requests], response)

    def answer(self, request: AnswerRequest, index: str = "") -> AnswerReply:
        """Answer one query with JSON.

        Raises:
            CallError: the server refused it, or cannot be reached.
        """
        message = answer_request_to_proto(request, index)
        return answer_from_proto(request.query, self._call(self._retrieval.Answer, message))

    def list_indexes(self) -> list[IndexInfo]:
        """Return what the server serves, the default index first.

        Raises:
            CallError: the server refused, or cannot be reached.
        """
        return indexes_from_proto(self._call(self._indexes.ListIndexes, list_indexes_to_proto()))

    def health(self, service: str = READINESS) -> str:
        """Return the health of a service of the server: "SERVING", "NOT_SERVING" or "SERVICE_UNKNOWN".

        Raises:
            CallError: the server cannot be reached.
        """
        try:
            response = self._call(self._health.Check, health_pb2.HealthCheckRequest(service=service))
        except CallError as error:
            if error.code == "NOT_FOUND":
                return "SERVICE_UNKNOWN"
            raise
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    def _call(self, method: Callable[..., T], message: object) -> T:
        try:
            return method(message, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._error_of(error) from error

    def _error_of(self, error: Any) -> CallError:
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status = status_from_bytes(value)
                if status is not None:
                    return error_from_status(status)
        code = error.code().name
        if code == "UNAVAILABLE":
            # grpc puts the reason last, behind the addresses it tried, in a list with brackets.
            reason = str(error.details()).rsplit(": ", 1)[-1].rstrip("]")
            return CallError(code, f"no server answers at {self.address}: {reason}")
        if code == "DEADLINE_EXCEEDED":
            return CallError(code, f"no answer from {self.address} within {self._timeout_s:g} s")
        return CallError(code, f"{self.address}: {error.details() or code}")
