"""Between the wire and the library: the only module of the service that touches protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from retrieval.errors import InputError
from retrieval.types import Candidate, MetadataValue, RetrievalResult, RetrieveRequest, Timings
from service.errors import CallError
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.reply import IndexRef, Reply
from service.served import IndexDescription
from service.status import (
    DOMAIN,
    Detail,
    Failure,
    FieldViolation,
    Precondition,
    Reason,
    Resource,
    RetryAfter,
)

# Errors travel in HTTP/2 trailers, which clients cap at 8 KiB, and a message may quote what was sent.
_MAX_TEXT_CHARS = 500
WireStatus = status_pb2.Status
_INT64 = range(-(2**63), 2**63)

_METHODS: dict[int, str] = {
    pb.RETRIEVAL_METHOD_UNSPECIFIED: "beam",
    pb.RETRIEVAL_METHOD_BEAM: "beam",
    pb.RETRIEVAL_METHOD_DISC: "disc",
}
_METHOD_NUMBERS = {"beam": pb.RETRIEVAL_METHOD_BEAM, "disc": pb.RETRIEVAL_METHOD_DISC}
# Scalars of a request that may be unset.
_OPTIONAL_FIELDS = ("k", "beam_size", "num_draws", "num_samples", "temperature", "top_m", "seed", "min_mass")
# Fields that are called otherwise here than in the library.
_WIRE_FIELDS = {"allow_ids": "allow_entity_ids.ids", "deny_ids": "deny_entity_ids"}


def request_from_proto(message: pb.RetrieveRequest) -> RetrieveRequest:
    """Return the library's form of a request.

    Raises:
        InputError: a field is out of range.
    """
    if message.method not in _METHODS:
        known = ", ".join(pb.RetrievalMethod.keys())
        raise InputError("method", f"must be one of {known}, got {message.method}")
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
        num_steps=result.num_steps,
        seed=result.seed,
        abstained=result.abstained,
        timings=pb.Timings(
            queue_ms=queue_ms,
            prefill_ms=result.timings.prefill_ms,
            decode_ms=result.timings.decode_ms,
            total_ms=total_ms,
        ),
        index=pb.IndexRef(name=index.name, version=index.version, digest=index.digest),
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
        certified=_optional(message, "certified"),
        mass=_optional(message, "mass"),
        mass_stderr=_optional(message, "mass_stderr"),
        mass_lower=_optional(message, "mass_lower_bound"),
        mass_upper=_optional(message, "mass_upper_bound"),
        num_draws=message.num_draws,
        num_accepted=message.num_accepted,
        num_nodes=message.num_nodes,
        num_steps=message.num_steps,
        seed=_optional(message, "seed"),
        abstained=message.abstained,
        timings=Timings(timings.prefill_ms, timings.decode_ms, timings.prefill_ms + timings.decode_ms),
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


def failure_to_proto(failure: Failure) -> status_pb2.Status:
    """Return `google.rpc.Status` with the failure's details."""
    status = status_pb2.Status(code=failure.code.value[0], message=_clip(failure.message))
    for detail in failure.details:
        status.details.add().Pack(_detail_to_proto(detail))
    return status


def error_from_status(status: status_pb2.Status) -> CallError:
    """Return the client's error for a `google.rpc.Status`."""
    retry_after_s = None
    for packed in status.details:
        info = error_details_pb2.RetryInfo()
        if packed.Is(info.DESCRIPTOR) and packed.Unpack(info):
            retry_after_s = info.retry_delay.ToNanoseconds() / 1e9
    names = {code.value[0]: code.name for code in StatusCode}
    return CallError(names.get(status.code, "UNKNOWN"), status.message, retry_after_s)


def status_from_bytes(raw: bytes) -> status_pb2.Status | None:
    """Parse the `grpc-status-details-bin` trailer; None when it is not a status."""
    try:
        return status_pb2.Status.FromString(raw)
    except DecodeError:
        return None


def _candidate_to_proto(rank: int, candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        rank=rank,
        entity_id=candidate.entity_id,
        title=candidate.title,
        surface=candidate.surface,
        logprob=candidate.logprob,
        probability=candidate.probability,
        metadata={name: _value_to_proto(value) for name, value in candidate.metadata.items()},
    )


def _candidate_from_proto(message: pb.Candidate) -> Candidate:
    metadata: Mapping[str, MetadataValue] = {
        name: _value_from_proto(value) for name, value in sorted(message.metadata.items())
    }
    return Candidate(
        entity_id=message.entity_id,
        title=message.title,
        surface=message.surface,
        logprob=message.logprob,
        probability=_optional(message, "probability"),
        metadata=metadata,
    )


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


def _detail_to_proto(detail: Detail) -> Message:
    match detail:
        case FieldViolation():
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=_clip(detail.field), description=_clip(detail.description)
            )
            return error_details_pb2.BadRequest(field_violations=[violation])
        case Resource():
            return error_details_pb2.ResourceInfo(
                resource_type=detail.resource_type,
                resource_name=_clip(detail.name),
                description=_clip(detail.description),
            )
        case Precondition():
            failed = error_details_pb2.PreconditionFailure.Violation(
                type=detail.kind, subject=detail.subject, description=_clip(detail.description)
            )
            return error_details_pb2.PreconditionFailure(violations=[failed])
        case Reason():
            return error_details_pb2.ErrorInfo(
                reason=detail.reason, domain=DOMAIN, metadata=dict(detail.metadata)
            )
        case RetryAfter():
            delay = Duration()
            delay.FromNanoseconds(int(detail.seconds * 1e9))
            return error_details_pb2.RetryInfo(retry_delay=delay)


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_TEXT_CHARS else text[: _MAX_TEXT_CHARS - 1] + "…"
