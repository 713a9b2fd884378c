"""Converts answers to queries between protobuf messages and the library's values.

The parts that answers of all kinds share are here, too: times, index, key/value memory, metadata values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from genret.retrieval.answers.answer_types import AnswerResult
from genret.retrieval.explanation import Explanation, ExplanationDraw, ExplanationNode
from genret.retrieval.score_types import ScoreResult
from genret.retrieval.types import Candidate, KvShare, MetadataValue, RetrievalResult, Timings
from genret.service.client.reply import IndexRef, Reply
from genret.service.errors import CallError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import IndexDescription
from genret.service.wire.fields import fields_from_proto, fields_to_proto, numbers_of, words_of
from genret.service.wire.rpc_status import error_from_status

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
        **shared_to_proto(result, index, queue_ms, total_ms),
        explanation=None if result.explanation is None else explanation_to_proto(result.explanation),
    )


def reply_from_proto(query: str, message: pb.RetrieveResponse) -> Reply:
    """Return the library's form of an answer to `query`."""
    result = RetrievalResult(
        **fields_from_proto(message, RetrievalResult),
        query=query,
        method=_METHODS[message.method],
        candidates=tuple(_candidate_from_proto(candidate) for candidate in message.candidates),
        mass_lower=optional(message, "mass_lower_bound"),
        mass_upper=optional(message, "mass_upper_bound"),
        **shared_from_proto(message),
        explanation=explanation_from_proto(message.explanation) if message.HasField("explanation") else None,
    )
    return Reply(result, *times_and_index(message))


def outcome_from_proto(query: str, message: Any, request_id: str) -> Reply | CallError:
    """Return the answer to `query`, or its error, from an item of a batch or a stream."""
    if message.WhichOneof("outcome") == "response":
        return reply_from_proto(query, message.response)
    return error_from_status(message.error, request_id)


def batch_reply_from_proto(
    queries: Sequence[str], message: pb.BatchRetrieveResponse | pb.LinkResponse, request_id: str = ""
) -> list[Reply | CallError]:
    """Return the answers and errors of a batch, in the order of its queries."""
    return [
        outcome_from_proto(query, result, request_id)
        for query, result in zip(queries, message.results, strict=True)
    ]


def _candidate_to_proto(rank: int, candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        **fields_to_proto(candidate, pb.Candidate),
        rank=rank,
        shares=candidate.shares,
        metadata=metadata_to_proto(candidate.metadata),
    )


def _candidate_from_proto(message: pb.Candidate) -> Candidate:
    return Candidate(
        **fields_from_proto(message, Candidate),
        metadata=metadata_from_proto(message.metadata),
        # A map of the wire has no order.
        shares=dict(sorted(message.shares.items(), key=lambda share: (-abs(share[1]), share[0]))),
    )


def shared_to_proto(
    result: RetrievalResult | AnswerResult | ScoreResult,
    index: IndexDescription,
    queue_ms: float,
    total_ms: float,
) -> dict[str, Any]:
    """Return the fields that replies of all kinds have: times, index and key/value memory."""
    timings = fields_to_proto(result.timings, pb.Timings) | {"queue_ms": queue_ms, "total_ms": total_ms}
    return {
        "timings": pb.Timings(**timings),
        "index": pb.IndexRef(name=index.name, version=index.version, digest=index.digest),
        "kv_usage": pb.KvUsage(**fields_to_proto(result.kv, pb.KvUsage), saved_bytes=result.kv.saved_bytes),
    }


def shared_from_proto(message: Any) -> dict[str, Any]:
    """Return the fields that results of all kinds have; their time is the model's."""
    took = fields_from_proto(message.timings, Timings) | {"total_ms": 0.0}
    return {
        "timings": Timings(**{**took, "total_ms": sum(took.values())}),
        "kv": KvShare(**fields_from_proto(message.kv_usage, KvShare)),
    }


def times_and_index(message: Any) -> tuple[float, float, IndexRef]:
    """Return the wait and the whole time of a reply, milliseconds, and the index that answered."""
    index = message.index
    reference = IndexRef(index.name, index.version, index.digest)
    return message.timings.queue_ms, message.timings.total_ms, reference


def optional(message: Message, name: str) -> Any:
    """Return a field, None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


_INT64 = range(-(2**63), 2**63)


def metadata_to_proto(metadata: Mapping[str, MetadataValue]) -> dict[str, pb.MetadataValue]:
    """Return the wire's form of an entity's metadata."""
    return {name: _value_to_proto(value) for name, value in metadata.items()}


def metadata_from_proto(metadata: Mapping[str, pb.MetadataValue]) -> dict[str, MetadataValue]:
    """Return the library's form of an entity's metadata, sorted by name."""
    return {name: _value_from_proto(value) for name, value in sorted(metadata.items())}


def _value_to_proto(value: MetadataValue) -> pb.MetadataValue:
    if value is None:
        return pb.MetadataValue()
    if isinstance(value, bool):  # before int: a bool is one
        return pb.MetadataValue(bool_value=value)
    if isinstance(value, int):
        return pb.MetadataValue(int_value=value) if value in _INT64 else pb.MetadataValue(double_value=value)
    if isinstance(value, float):
        return pb.MetadataValue(double_value=value)
    return pb.MetadataValue(string_value=value)


def _value_from_proto(message: pb.MetadataValue) -> MetadataValue:
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
