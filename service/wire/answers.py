"""Between the wire and the library: JSON answers."""

from __future__ import annotations

from typing import Any

from retrieval.answers.answer_types import AnswerEntity, AnswerRequest, AnswerResult
from retrieval.errors import InputError
from retrieval.types import Entity
from service.client.reply import AnswerReply
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.serving.served import IndexDescription
from service.wire.options import error_on_wire, numbers_of, options_from_proto, options_to_proto, words_of
from service.wire.replies import (
    index_ref_from_proto,
    index_ref_to_proto,
    kv_from_proto,
    kv_to_proto,
    optional,
    timings_from_proto,
    timings_to_proto,
    value_from_proto,
    value_to_proto,
)

_METHODS = pb.AnswerMethod.DESCRIPTOR
_COUNTS = ("num_tokens", "num_forced", "num_drafted", "num_accepted", "num_forwards")


def answer_request_from_proto(message: pb.AnswerRequest) -> AnswerRequest:
    """Return the library's form of a request.

    Raises:
        InputError: a field is out of range.
    """
    options = options_from_proto(message, AnswerRequest)
    source = message.WhichOneof("schema")
    try:
        return AnswerRequest(
            query=message.query,
            schema=message.schema_json if source == "schema_json" else None,
            schema_name=message.schema_name if source == "schema_name" else None,
            **options,
        )
    except InputError as error:
        raise wire_error(error) from None


def wire_error(error: InputError) -> InputError:
    """Return an error about a field under the name the field has here."""
    if error.field == "schema":
        return InputError("schema_json", error.message)
    return error_on_wire(error, AnswerRequest)


def answer_request_to_proto(request: AnswerRequest, index: str = "") -> pb.AnswerRequest:
    """Return the wire's form of a request."""
    named = request.schema_name is not None
    source: dict[str, Any] = (
        {"schema_name": request.schema_name} if named else {"schema_json": request.schema}
    )
    return pb.AnswerRequest(
        index=index,
        query=request.query,
        **source,
        **options_to_proto(request, pb.AnswerRequest),
    )


def answer_to_proto(
    result: AnswerResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.AnswerResponse:
    """Return the wire's form of an answer."""
    counts: dict[str, Any] = {name: getattr(result, name) for name in _COUNTS}
    return pb.AnswerResponse(
        json=result.text,
        method=numbers_of(_METHODS)[result.method],
        entities=[_answer_entity_to_proto(entity) for entity in result.entities],
        logprob=result.logprob,
        seed=result.seed,
        schema_digest=result.schema_digest,
        compile_ms=result.compile_ms,
        mass=result.mass,
        mass_stderr=result.mass_stderr,
        timings=timings_to_proto(result.timings, queue_ms, total_ms),
        index=index_ref_to_proto(index),
        kv_usage=kv_to_proto(result.kv),
        **counts,
    )


def answer_from_proto(query: str, message: pb.AnswerResponse) -> AnswerReply:
    """Return the library's form of an answer to `query`."""
    timings = message.timings
    result = AnswerResult(
        query=query,
        method=words_of(_METHODS).get(message.method, "greedy"),
        text=message.json,
        entities=tuple(_answer_entity_from_proto(entity) for entity in message.entities),
        logprob=message.logprob,
        seed=optional(message, "seed"),
        schema_digest=message.schema_digest,
        compile_ms=message.compile_ms,
        mass=optional(message, "mass"),
        mass_stderr=optional(message, "mass_stderr"),
        timings=timings_from_proto(timings),
        kv=kv_from_proto(message.kv_usage),
        **{name: getattr(message, name) for name in _COUNTS},
    )
    return AnswerReply(result, timings.queue_ms, timings.total_ms, index_ref_from_proto(message.index))


def _answer_entity_to_proto(found: AnswerEntity) -> pb.AnswerEntity:
    return pb.AnswerEntity(
        pointer=found.pointer,
        index=found.index,
        title=found.title,
        entities=[
            pb.Entity(
                entity_id=entity.entity_id,
                title=entity.title,
                metadata={name: value_to_proto(value) for name, value in entity.metadata.items()},
            )
            for entity in found.entities
        ],
        shares=found.shares,
    )


def _answer_entity_from_proto(message: pb.AnswerEntity) -> AnswerEntity:
    return AnswerEntity(
        pointer=message.pointer,
        index=message.index,
        title=message.title,
        entities=tuple(
            Entity(
                entity_id=entity.entity_id,
                title=entity.title,
                metadata={name: value_from_proto(value) for name, value in sorted(entity.metadata.items())},
            )
            for entity in message.entities
        ),
        shares=tuple(message.shares),
    )
