"""The client library.

    from retrieval import RetrieveRequest
    from service.client import CallError, RetrievalClient

    with RetrievalClient("127.0.0.1:50051", timeout_s=5) as client:
        reply = client.retrieve(RetrieveRequest("author of hamlet", k=3))
        print(reply.result.candidates[0].title)

        try:
            client.retrieve(RetrieveRequest("author of hamlet", filter="kind ="))
        except CallError as error:
            print(error.code, error.field_violations)

        found = ["Hamlet", "Macbeth", "Othello"]  # of any engine
        for score in client.score("author of hamlet", found).result.scores:
            print(score.title, score.logprob)

        queries = (RetrieveRequest(line) for line in open("queries.txt"))  # may be endless
        for request, answer in client.retrieve_stream(queries):  # in the order in which they are ready
            if not isinstance(answer, CallError):
                print(request.query, answer.result.candidates)

`AsyncRetrievalClient` has the same methods for asyncio. Over TLS, with a token:

    RetrievalClient("genret.example:443", tls=True, token=os.environ["GENRET_TOKEN"])

gRPC's service config retries UNAVAILABLE, for a stream only before its first answer. Other errors are not
retried: an error with `is_overload` says in `retry_after_s` when to come back, and the caller decides.

The package must not know the server or any model. Its names are imported lazily, gRPC with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.client.async_client import AsyncRetrievalClient
    from service.client.calls import LIVENESS, READINESS
    from service.client.client_options import ClientOptions
    from service.client.reply import (
        AnswerReply,
        EvidenceInfo,
        IndexInfo,
        IndexRef,
        RankingInfo,
        ReloadReply,
        Reply,
        ScoreReply,
        VectorsInfo,
    )
    from service.client.sync_client import RetrievalClient
    from service.errors import CallError

_EXPORTS = {
    "AnswerReply": "service.client.reply",
    "AsyncRetrievalClient": "service.client.async_client",
    "CallError": "service.errors",
    "ClientOptions": "service.client.client_options",
    "EvidenceInfo": "service.client.reply",
    "IndexInfo": "service.client.reply",
    "IndexRef": "service.client.reply",
    "LIVENESS": "service.client.calls",
    "READINESS": "service.client.calls",
    "RankingInfo": "service.client.reply",
    "ReloadReply": "service.client.reply",
    "Reply": "service.client.reply",
    "RetrievalClient": "service.client.sync_client",
    "ScoreReply": "service.client.reply",
    "VectorsInfo": "service.client.reply",
}

__all__ = [
    "LIVENESS",
    "READINESS",
    "AnswerReply",
    "AsyncRetrievalClient",
    "CallError",
    "ClientOptions",
    "EvidenceInfo",
    "IndexInfo",
    "IndexRef",
    "RankingInfo",
    "ReloadReply",
    "Reply",
    "RetrievalClient",
    "ScoreReply",
    "VectorsInfo",
]


def __getattr__(name: str) -> Any:
    """Import an exported name."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)
