"""Converts answers to queries between protobuf messages and the library's values.

Answers of other kinds share their parts: timings, the index's name and version, the figures of the cache,
and values of metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode
from retrieval.types import Candidate, KvShare, MetadataValue, RetrievalResult, Timings
from service.client.reply import IndexRef, Reply
from service.errors import CallError
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.fields import fields_from_proto, fields_to_proto, numbers_of, words_of
from service.wire.rpc_status import error_from_status

_METHOD_NUMBERS = numbers_of(pb.RetrievalMethod.DESCRIPTOR)
_METHODS = {0: "auto", **words_of(pb.RetrievalMethod.DESCRIPTOR)}


def reply_to_proto(
    result: RetrievalResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.RetrieveResponse:
    """Return the wire's form of an answer."""
    return pb.RetrieveResponse(
        **fields_to_proto(result, pb.RetrieveResponse),
        candidates=[_candidate_to_proto(i, c) for i, c in enumerate(result.candidates, start=1)],
        finish_reason=pb.FINISH_REASON_NO_MATCH if result.no_match else pb.FINISH_REASON_OK,
        method=_METHOD_NUMBERS[result.method],
        mass_lower_bound=result.mass_lower,
        mass_upper_bound=result.mass_upper,
        timings=timings_to_proto(result.timings, queue_ms, total_ms),
        index=index_ref_to_proto(index),
        kv_usage=kv_to_proto(result.kv),
        explanation=None if result.explanation is None else explanation_to_proto(result.explanation),
    )


def reply_from_proto(query: str, message: pb.RetrieveResponse) -> Reply:
    """Return the library's form of an answer to `query`."""
    timings = message.timings
    result = RetrievalResult(
        **fields_from_proto(message, RetrievalResult),
        query=query,
        method=_METHODS[message.method],
        candidates=tuple(_candidate_from_proto(candidate) for candidate in message.candidates),
        mass_lower=optional(message, "mass_lower_bound"),
        mass_upper=optional(message, "mass_upper_bound"),
        timings=timings_from_proto(timings),
        kv=kv_from_proto(message.kv_usage),
        explanation=explanation_from_proto(message.explanation) if message.HasField("explanation") else None,
    )
    return Reply(result, timings.queue_ms, timings.total_ms, index_ref_from_proto(message.index))


def batch_reply_from_proto(
    queries: Sequence[str], message: pb.BatchRetrieveResponse, request_id: str = ""
) -> list[Reply | CallError]:
    """Return the answers and errors of a batch, in the order of its queries."""
    return [
        reply_from_proto(query, result.response)
        if result.WhichOneof("outcome") == "response"
        else error_from_status(result.error, request_id)
        for query, result in zip(queries, message.results, strict=True)
    ]


def _candidate_to_proto(rank: int, candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        **fields_to_proto(candidate, pb.Candidate),
        rank=rank,
        shares=candidate.shares,
        metadata={name: value_to_proto(value) for name, value in candidate.metadata.items()},
    )


def _candidate_from_proto(message: pb.Candidate) -> Candidate:
    return Candidate(
        **fields_from_proto(message, Candidate),
        metadata={name: value_from_proto(value) for name, value in sorted(message.metadata.items())},
        # A map of the wire has no order.
        shares=dict(sorted(message.shares.items(), key=lambda share: (-abs(share[1]), share[0]))),
    )


def timings_to_proto(timings: Timings, queue_ms: float, total_ms: float) -> pb.Timings:
    """Return the wire's form of where the time of a request went."""
    parts = fields_to_proto(timings, pb.Timings)
    return pb.Timings(**{**parts, "queue_ms": queue_ms, "total_ms": total_ms})


def timings_from_proto(message: pb.Timings) -> Timings:
    """Return the library's form of the time that a model took."""
    took = fields_from_proto(message, Timings) | {"total_ms": 0.0}
    return Timings(**{**took, "total_ms": sum(took.values())})


def index_ref_to_proto(index: IndexDescription) -> pb.IndexRef:
    """Return the wire's form of which index answered."""
    return pb.IndexRef(name=index.name, version=index.version, digest=index.digest)


def index_ref_from_proto(message: pb.IndexRef) -> IndexRef:
    """Return the client's form of which index answered."""
    return IndexRef(message.name, message.version, message.digest)


def kv_to_proto(kv: KvShare) -> pb.KvUsage:
    """Return the wire's form of key/value memory."""
    return pb.KvUsage(**fields_to_proto(kv, pb.KvUsage), saved_bytes=kv.saved_bytes)


def kv_from_proto(message: pb.KvUsage) -> KvShare:
    """Return the library's form of key/value memory."""
    return KvShare(**fields_from_proto(message, KvShare))


def optional(message: Message, name: str) -> Any:
    """Return a field, None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None


_INT64 = range(-(2**63), 2**63)


def value_to_proto(value: MetadataValue) -> pb.MetadataValue:
    """Return the wire's form of one value of an entity's metadata."""
    if value is None:
        return pb.MetadataValue()
    if isinstance(value, bool):  # before int: a bool is one
        return pb.MetadataValue(bool_value=value)
    if isinstance(value, int):
        return pb.MetadataValue(int_value=value) if value in _INT64 else pb.MetadataValue(double_value=value)
    if isinstance(value, float):
        return pb.MetadataValue(double_value=value)
    return pb.MetadataValue(string_value=value)


def value_from_proto(message: pb.MetadataValue) -> MetadataValue:
    """Return the library's form of one value of an entity's metadata."""
    kind = message.WhichOneof("kind")
    value: MetadataValue = None if kind is None else getattr(message, kind)
    return value


_STATE_NUMBERS = numbers_of(pb.ExplanationState.DESCRIPTOR)
_STATES = words_of(pb.ExplanationState.DESCRIPTOR)


def explanation_to_proto(explanation: Explanation) -> pb.Explanation:
    """Return the wire's form of an explanation."""
    return pb.Explanation(
        nodes=[
            pb.ExplanationNode(**fields_to_proto(node, pb.ExplanationNode), state=_STATE_NUMBERS[node.state])
            for node in explanation.nodes
        ],
        draws=[pb.ExplanationDraw(**fields_to_proto(draw, pb.ExplanationDraw)) for draw in explanation.draws],
        truncated=explanation.truncated,
    )


def explanation_from_proto(message: pb.Explanation) -> Explanation:
    """Return the library's form of an explanation."""
    return Explanation(
        nodes=tuple(
            ExplanationNode(**fields_from_proto(node, ExplanationNode), state=_STATES[node.state])
            for node in message.nodes
        ),
        draws=tuple(ExplanationDraw(**fields_from_proto(draw, ExplanationDraw)) for draw in message.draws),
        truncated=message.truncated,
    )
