"""Converts JSON answers between protobuf messages and the library's values."""

from __future__ import annotations

from typing import Any

from genret.retrieval.answers.answer_types import AnswerEntity, AnswerRequest, AnswerResult
from genret.retrieval.errors import InputError
from genret.retrieval.types import Entity
from genret.service.client.reply import AnswerReply
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import IndexDescription
from genret.service.wire.fields import (
    error_on_wire,
    fields_from_proto,
    fields_to_proto,
    numbers_of,
    options_from_proto,
    options_to_proto,
    words_of,
)
from genret.service.wire.replies import (
    metadata_from_proto,
    metadata_to_proto,
    shared_from_proto,
    shared_to_proto,
    times_and_index,
)

_METHODS = pb.AnswerMethod.DESCRIPTOR


def answer_request_from_proto(message: pb.AnswerRequest) -> AnswerRequest:
    """Return the library's form of a request; raises InputError for a field out of range."""
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
    """Return an error with the message's name of the field."""
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
        index=index, query=request.query, **source, **options_to_proto(request, pb.AnswerRequest)
    )


def answer_to_proto(
    result: AnswerResult, index: IndexDescription, queue_ms: float, total_ms: float
) -> pb.AnswerResponse:
    """Return the wire's form of an answer."""
    return pb.AnswerResponse(
        **fields_to_proto(result, pb.AnswerResponse),
        json=result.text,
        method=numbers_of(_METHODS)[result.method],
        entities=[_answer_entity_to_proto(entity) for entity in result.entities],
        **shared_to_proto(result, index, queue_ms, total_ms),
    )


def answer_from_proto(query: str, message: pb.AnswerResponse) -> AnswerReply:
    """Return the library's form of an answer to `query`."""
    result = AnswerResult(
        **fields_from_proto(message, AnswerResult),
        query=query,
        method=words_of(_METHODS).get(message.method, "greedy"),
        text=message.json,
        entities=tuple(_answer_entity_from_proto(entity) for entity in message.entities),
        **shared_from_proto(message),
    )
    return AnswerReply(result, *times_and_index(message))


def _answer_entity_to_proto(found: AnswerEntity) -> pb.AnswerEntity:
    return pb.AnswerEntity(
        **fields_to_proto(found, pb.AnswerEntity),
        entities=[
            pb.Entity(**fields_to_proto(entity, pb.Entity), metadata=metadata_to_proto(entity.metadata))
            for entity in found.entities
        ],
    )


def _answer_entity_from_proto(message: pb.AnswerEntity) -> AnswerEntity:
    return AnswerEntity(
        **fields_from_proto(message, AnswerEntity),
        entities=tuple(
            Entity(**fields_from_proto(entity, Entity), metadata=metadata_from_proto(entity.metadata))
            for entity in message.entities
        ),
    )
