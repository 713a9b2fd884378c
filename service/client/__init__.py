"""The client library.

    from genret import RetrieveRequest
    from genret.service.client import CallError, RetrievalClient

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
    from genret.service.client.calls import LIVENESS, READINESS
    from genret.service.client.client_options import ClientOptions
    from genret.service.client.clients import AsyncRetrievalClient, RetrievalClient
    from genret.service.client.reply import (
        AnswerReply,
        CompleteReply,
        EvidenceInfo,
        IndexInfo,
        IndexRef,
        RankingInfo,
        ReloadReply,
        Reply,
        ScoreReply,
        VectorsInfo,
    )
    from genret.service.errors import CallError

__all__ = [
    "LIVENESS",
    "READINESS",
    "AnswerReply",
    "AsyncRetrievalClient",
    "CallError",
    "ClientOptions",
    "CompleteReply",
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
_MODULES = ("errors", "client.reply", "client.client_options", "client.calls", "client.clients")


def __getattr__(name: str) -> Any:
    """Import an exported name, from the first module that has it."""
    for module in _MODULES if name in __all__ else ():
        found = getattr(import_module(f"genret.service.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
