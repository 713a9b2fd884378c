"""What logs and traces may want to know of a message: the queries of a request, the index of an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb

_QUERIES: dict[type, Callable[[Any], Sequence[str]]] = {
    pb.RetrieveRequest: lambda m: (m.query,),
    pb.AnswerRequest: lambda m: (m.query,),
    pb.ScoreRequest: lambda m: (m.mention.mention if m.HasField("mention") else m.query,),
    pb.RetrieveStreamRequest: lambda m: (m.request.query,),
    pb.BatchRetrieveRequest: lambda m: [item.query for item in m.requests],
    pb.LinkRequest: lambda m: [item.mention for item in m.mentions],
}
_INDEXES: dict[type, Callable[[Any], Any]] = {
    pb.RetrieveResponse: lambda m: m.index,
    pb.AnswerResponse: lambda m: m.index,
    pb.ScoreResponse: lambda m: m.index,
    index_pb.GetIndexResponse: lambda m: m.index,
    index_pb.ReloadIndexResponse: lambda m: m.index,
    # All items of these name one index each; the first answer's stands for them when they agree.
    pb.BatchRetrieveResponse: lambda m: _common([item.response.index for item in m.results]),
    pb.LinkResponse: lambda m: _common([item.response.index for item in m.results]),
}


def queries_of(message: object) -> Sequence[str]:
    """Return the texts that a request of the API is about; none for other messages."""
    read = _QUERIES.get(type(message))
    return () if read is None else read(message)


def index_of(message: object) -> tuple[str, str]:
    """Return name and version of the index that a response is from; empty when there is no single one."""
    read = _INDEXES.get(type(message))
    index = None if read is None else read(message)
    return ("", "") if index is None else (index.name, index.version)


def _common(indexes: Sequence[Any]) -> Any:
    named = [index for index in indexes if index.name]
    same = {(index.name, index.version) for index in named}
    return named[0] if len(same) == 1 else None
