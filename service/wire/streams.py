"""Between the wire and the library: queries and answers of a stream."""

from __future__ import annotations

from retrieval.errors import InputError
from retrieval.types import RetrieveRequest
from service.client.reply import Reply
from service.errors import CallError
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.wire.replies import reply_from_proto
from service.wire.requests import request_to_proto
from service.wire.status import error_from_status

MAX_ID_BYTES = 256


def check_stream_id(name: str) -> None:
    """Refuse an id that is too long.

    Raises:
        InputError: it is.
    """
    size = len(name.encode())
    if size > MAX_ID_BYTES:
        raise InputError("id", f"must be at most {MAX_ID_BYTES} bytes, got {size}")


def stream_request_to_proto(name: str, request: RetrieveRequest, index: str = "") -> pb.RetrieveStreamRequest:
    """Return the wire's form of a query of a stream."""
    return pb.RetrieveStreamRequest(id=name, request=request_to_proto(request, index))


def stream_reply_from_proto(
    query: str, message: pb.RetrieveStreamResponse, request_id: str = ""
) -> Reply | CallError:
    """Return the library's form of an answer to `query`."""
    if message.WhichOneof("outcome") == "response":
        return reply_from_proto(query, message.response)
    return error_from_status(message.error, request_id)
