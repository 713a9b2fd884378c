"""The queries of a stream that wait for their answers."""

from __future__ import annotations

from typing import Any

from retrieval.types import RetrieveRequest
from service.client.reply import Reply
from service.errors import CallError
from service.wire.streams import stream_reply_from_proto, stream_request_to_proto

Answered = tuple[RetrieveRequest, Reply | CallError]


class Outstanding:
    """Names the queries of a stream and knows which are not answered. Belongs to one thread at a time.

    Args:
        index: Which index they ask.
        request_id: Name of the stream in the server's log.
    """

    def __init__(self, index: str, request_id: str) -> None:
        self._index = index
        self._request_id = request_id
        self._count = 0
        self._requests: dict[str, RetrieveRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def ask(self, request: RetrieveRequest) -> Any:
        """Take a query in; returns its message.

        Raises:
            TypeError: it is no query.
            ValueError: it cannot be sent.
        """
        if not isinstance(request, RetrieveRequest):
            raise TypeError(f"a stream takes RetrieveRequest, got {type(request).__name__}")
        name = str(self._count)
        message = stream_request_to_proto(name, request, self._index)
        self._count += 1
        self._requests[name] = request
        return message

    def answer(self, message: Any) -> Answered:
        """Take the query of an answer out; returns both.

        Raises:
            CallError: nobody asked for this answer.
        """
        request = self._requests.pop(message.id, None)
        if request is None:
            raise self._broken(f"the server answers a query it was not asked: {message.id!r}")
        return request, stream_reply_from_proto(request.query, message, self._request_id)

    def rest(self) -> list[RetrieveRequest]:
        """Return all that is left."""
        return list(self._requests.values())

    def unanswered(self) -> CallError:
        """Return the error of a server that ends a stream well and leaves queries without an answer."""
        return self._broken("the server ended the stream without answering everything")

    def _broken(self, what: str) -> CallError:
        return CallError("INTERNAL", what, request_id=self._request_id)
