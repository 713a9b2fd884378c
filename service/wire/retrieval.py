"""Between the wire and the library. Only `convert*` modules touch protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from retrieval.errors import InputError
from retrieval.types import Candidate, KvShare, MetadataValue, RetrievalResult, RetrieveRequest, Timings
from service.client.reply import IndexRef, Reply
from service.errors import CallError
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.explanation import explanation_from_proto, explanation_to_proto
from service.wire.status import error_from_status

_INT64 = range(-(2**63), 2**63)

_METHODS: dict[int, str] = {
    pb.RETRIEVAL_METHOD_UNSPECIFIED: "beam",
    pb.RETRIEVAL_METHOD_BEAM: "beam",
    pb.RETRIEVAL_METHOD_DISC: "disc",
}
_AGGREGATES: dict[int, str | None] = {
    pb.AGGREGATION_UNSPECIFIED: None,
    pb.AGGREGATION_SUM: "sum",
    pb.AGGREGATION_MAX: "max",
}
_AGGREGATION_NUMBERS = {
    None: pb.AGGREGATION_UNSPECIFIED,
    "sum": pb.AGGREGATION_SUM,
    "max": pb.AGGREGATION_MAX,
}
_METHOD_NUMBERS = {"beam": pb.RETRIEVAL_METHOD_BEAM, "disc": pb.RETRIEVAL_METHOD_DISC}
# Scalars of a request that may be unset.
_OPTIONAL_FIELDS = (
    "k",
    "beam_size",
    "num_draws",
    "num_samples",
    "temperature",
    "top_m",
    "seed",
    "min_mass",
    "exact_budget",
)
# Fields that are called otherwise here than in the library.
_WIRE_FIELDS = {
    "allow_ids": "allow_entity_ids.ids",
    "deny_ids": "deny_entity_ids",
    "aggregate": "aggregation",
}


def request_from_proto(message: pb.RetrieveRequest) -> RetrieveRequest:
    """Return the library's form of a request.

    Raises:
        InputError: a field is out of range.
    """
    if message.method not in _METHODS:
        known = ", ".join(pb.RetrievalMethod.keys())
        raise InputError("method", f"must be one of {known}, got {message.method}")
    if message.aggregation not in _AGGREGATES:
        known = ", ".join(pb.Aggregation.keys())
        raise InputError("aggregation", f"must be one of {known}, got {message.aggregation}")
    options: dict[str, Any] = {
        name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)
    }
    if message.HasField("allow_entity_ids"):
        options["allow_ids"] = tuple(message.allow_entity_ids.ids)
    try:
        return RetrieveRequest(
            query=message.query,
            method=_METHODS[message.method],
            prompt=message.prompt_template or None,
            adaptive=message.adaptive,
            exact=message.exact,
            explain=message.explain,
            length_penalty=message.length_penalty,
            aggregate=_AGGREGATES[message.aggregation],
            filter=message.filter or None,
            deny_ids=tuple(message.deny_entity_ids),
            **options,
        )
    except InputError as error:
        raise InputError(_WIRE_FIELDS.get(error.field, error.field), error.message) from None


def request_to_proto(request: RetrieveRequest, index: str = "") -> pb.RetrieveRequest:
    """Return the wire's form of a request."""
    options = {name: getattr(request, name) for name in _OPTIONAL_FIELDS}
    allowed = request.allow_ids
    return pb.RetrieveRequest(
        index=index,
        query=request.query,
        method=_METHOD_NUMBERS[request.method],
        prompt_template=request.prompt or "",
        adaptive=request.adaptive,
        exact=request.exact,
        explain=request.explain,
        length_penalty=request.length_penalty,
        aggregation=_AGGREGATION_NUMBERS[request.aggregate],
        filter=request.filter or "",
        allow_entity_ids=None if allowed is None else pb.EntityIds(ids=allowed),
        deny_entity_ids=request.deny_ids,
        **{name: value for name, value in options.items() if value is not None},
    )


def reply_to_proto(
    result: RetrievalResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.RetrieveResponse:
    """Return the wire's form of an answer."""
    response = pb.RetrieveResponse(
        candidates=[_candidate_to_proto(i, c) for i, c in enumerate(result.candidates, start=1)],
        finish_reason=pb.FINISH_REASON_NO_MATCH if result.no_match else pb.FINISH_REASON_OK,
        method=_METHOD_NUMBERS[result.method],
        mass=result.mass,
        mass_stderr=result.mass_stderr,
        mass_lower_bound=result.mass_lower,
        mass_upper_bound=result.mass_upper,
        num_draws=result.num_draws,
        num_accepted=result.num_accepted,
        num_nodes=result.num_nodes,
        num_exact_nodes=result.num_exact_nodes,
        num_steps=result.num_steps,
        seed=result.seed,
        abstained=result.abstained,
        timings=timings_to_proto(result.timings, queue_ms, total_ms),
        index=index_ref_to_proto(index),
        kv_usage=kv_to_proto(result.kv),
        explanation=None if result.explanation is None else explanation_to_proto(result.explanation),
    )
    if result.certified is not None:
        response.certified = result.certified
    return response


def reply_from_proto(query: str, message: pb.RetrieveResponse) -> Reply:
    """Return the library's form of an answer to `query`."""
    timings = message.timings
    result = RetrievalResult(
        query=query,
        method=_METHODS[message.method],
        candidates=tuple(_candidate_from_proto(candidate) for candidate in message.candidates),
        certified=optional(message, "certified"),
        mass=optional(message, "mass"),
        mass_stderr=optional(message, "mass_stderr"),
        mass_lower=optional(message, "mass_lower_bound"),
        mass_upper=optional(message, "mass_upper_bound"),
        num_draws=message.num_draws,
        num_accepted=message.num_accepted,
        num_nodes=message.num_nodes,
        num_exact_nodes=message.num_exact_nodes,
        num_steps=message.num_steps,
        seed=optional(message, "seed"),
        abstained=message.abstained,
        timings=Timings(timings.prefill_ms, timings.decode_ms, timings.prefill_ms + timings.decode_ms),
        kv=kv_from_proto(message.kv_usage),
        explanation=explanation_from_proto(message.explanation) if message.HasField("explanation") else None,
    )
    index = IndexRef(message.index.name, message.index.version, message.index.digest)
    return Reply(result, timings.queue_ms, timings.total_ms, index)


def batch_request_to_proto(requests: Sequence[RetrieveRequest], index: str = "") -> pb.BatchRetrieveRequest:
    """Return the wire's form of several requests to one index."""
    return pb.BatchRetrieveRequest(requests=[request_to_proto(request, index) for request in requests])


def batch_reply_from_proto(
    queries: Sequence[str], message: pb.BatchRetrieveResponse
) -> list[Reply | CallError]:
    """Return the answers and errors of a batch, in the order of its queries."""
    return [
        reply_from_proto(query, result.response)
        if result.WhichOneof("outcome") == "response"
        else error_from_status(result.error)
        for query, result in zip(queries, message.results, strict=True)
    ]


def list_indexes_to_proto() -> index_pb.ListIndexesRequest:
    """Return the request for every index."""
    return index_pb.ListIndexesRequest()


def index_to_proto(index: IndexDescription, is_default: bool) -> index_pb.Index:
    """Return the wire's form of an index description."""
    return index_pb.Index(
        name=index.name,
        version=index.version,
        digest=index.digest,
        num_rows=index.num_rows,
        num_entities=index.num_entities,
        model=index.model,
        device=index.device,
        is_default=is_default,
    )


def index_from_proto(message: index_pb.Index) -> IndexDescription:
    """Return the library's form of an index description."""
    return IndexDescription(
        name=message.name,
        version=message.version,
        digest=message.digest,
        num_rows=message.num_rows,
        num_entities=message.num_entities,
        model=message.model,
        device=message.device,
    )


def timings_to_proto(timings: Timings, queue_ms: float, total_ms: float) -> pb.Timings:
    """Return the wire's form of where the time of a request went."""
    return pb.Timings(
        queue_ms=queue_ms, prefill_ms=timings.prefill_ms, decode_ms=timings.decode_ms, total_ms=total_ms
    )


def index_ref_to_proto(index: IndexDescription) -> pb.IndexRef:
    """Return the wire's form of which index answered."""
    return pb.IndexRef(name=index.name, version=index.version, digest=index.digest)


def kv_to_proto(kv: KvShare) -> pb.KvUsage:
    """Return the wire's form of key/value memory."""
    return pb.KvUsage(
        peak_bytes=kv.peak_bytes,
        per_branch_bytes=kv.per_branch_bytes,
        saved_bytes=kv.saved_bytes,
        shared_prefix_bytes=kv.shared_prefix_bytes,
        num_collections=kv.num_collections,
    )


def kv_from_proto(message: pb.KvUsage) -> KvShare:
    """Return the library's form of key/value memory."""
    return KvShare(
        peak_bytes=message.peak_bytes,
        per_branch_bytes=message.per_branch_bytes,
        shared_prefix_bytes=message.shared_prefix_bytes,
        num_collections=message.num_collections,
    )


def _candidate_to_proto(rank: int, candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        rank=rank,
        entity_id=candidate.entity_id,
        title=candidate.title,
        surface=candidate.surface,
        logprob=candidate.logprob,
        probability=candidate.probability,
        score=candidate.score,
        metadata={name: value_to_proto(value) for name, value in candidate.metadata.items()},
    )


def _candidate_from_proto(message: pb.Candidate) -> Candidate:
    metadata: Mapping[str, MetadataValue] = {
        name: value_from_proto(value) for name, value in sorted(message.metadata.items())
    }
    return Candidate(
        entity_id=message.entity_id,
        title=message.title,
        surface=message.surface,
        logprob=message.logprob,
        probability=optional(message, "probability"),
        metadata=metadata,
        score=message.score,
    )


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


def optional(message: Message, name: str) -> Any:
    """Return a field, None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None
