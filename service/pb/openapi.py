"""Makes the OpenAPI document of the HTTP API from the `.proto`: messages, comments, endpoints, failures.

    python -m genret.service.pb.openapi [--proto DIR] [--out FILE]

renews the checked-in document. Messages become JSON Schemas of what `service.wire.json` reads and writes.
Ranges of options come from the library's requests, other limits are here; a test compares them to the server.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.arguments import INT64, MAX_IDS, options_of
from genret.retrieval.complete_types import MAX_PREFIX, CompleteRequest
from genret.retrieval.score_types import MAX_SCORED_TITLES
from genret.retrieval.types import RetrieveRequest
from genret.service.gateway.endpoints import ENDPOINTS, FORM_ENDPOINTS, NDJSON_TYPE, Endpoint
from genret.service.gateway.forms import EVENTS_TYPE, Form
from genret.service.pb.regenerate import descriptor_set
from genret.service.wire.json import INTEGER_RANGES, WIDE_INTEGERS
from genret.service.wire.requests import words_of

_TITLE = "genret"
_DESCRIPTION = """Generative retrieval: a language model writes the answer, and only titles of the catalogue \
can be written.

The same methods as `genret.v1` over gRPC. Requests are read strictly: unknown and repeated fields are \
refused; names may be in snake case or camel case; enums go by name or by their short word (`beam`); null \
is a field that is not set. In replies names are in snake case, 64-bit integers are strings, and what is \
zero or empty is written, too, unless the difference between zero and nothing matters: such fields are \
left out when they are not set."""


def _header(name: str, description: str, **schema: str) -> dict[str, Any]:
    return {name: {"description": description, "required": True, "schema": {"type": "string", **schema}}}


_HEADERS = _header("X-Request-Id", "The request's id: as it was sent, or a new one.")
_PARAMETERS: dict[str, Any] = {
    "RequestId": {
        "name": "X-Request-Id",
        "in": "header",
        "description": "An id of the client's for the request, at most 128 of the characters A-Z a-z 0-9 . _ "
        ": / -; comes back with the reply and stands in logs. Anything else is replaced by a new one.",
        "schema": {"type": "string"},
    },
    "TimeoutSeconds": {
        "name": "X-Request-Timeout-Seconds",
        "in": "header",
        "description": "How long the client waits, seconds; the server may allow less.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
}
_EXAMPLES: dict[str, Any] = {
    "Retrieve": {"query": "capital of Bavaria", "k": 3},
    "BatchRetrieve": {
        "requests": [{"query": "capital of Bavaria"}, {"query": "river through Cairo", "k": 1}]
    },
    "Link": {"mentions": [{"mention": "Paris", "left": "The Louvre is in ", "right": "."}]},
    "Answer": {
        "query": "capital of Bavaria",
        "schema_json": '{"type": "object", "properties": {"title": {"type": "string", '
        '"x-genret-index": "titles"}}, "required": ["title"]}',
    },
    "Score": {"query": "capital of Bavaria", "titles": ["Munich", "Nuremberg", "Bavaria"]},
}


def openapi_document(descriptors: bytes, version: str) -> dict[str, Any]:
    """Return the document of a serialised FileDescriptorSet with comments, under a version of the API."""
    comments = comments_of(descriptors)
    schemas = Schemas(comments)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint, schemas, comments)
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = operation
    for endpoint in FORM_ENDPOINTS:
        if endpoint.form is not None:
            operation = _operation(endpoint, schemas, comments) | _formed(endpoint.form, endpoint)
            paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = operation
    services = {endpoint.service: endpoint.row.descriptor.containing_service for endpoint in ENDPOINTS}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": _TITLE,
            "version": version,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "tags": [{"name": n, "description": comments.get(s.full_name, "")} for n, s in services.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted({**schemas.components, **ERROR_SCHEMAS}.items())),
            "responses": failure_responses(_HEADERS),
            "parameters": _PARAMETERS,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Needed where the server has tokens. Reloading needs one of scope admin.",
                }
            },
        },
    }


def _operation(endpoint: Endpoint, schemas: Schemas, comments: Mapping[str, str]) -> dict[str, Any]:
    method = endpoint.row.descriptor
    text = comments.get(method.full_name, "")
    in_path = re.findall(r"\{(\w+)\}", endpoint.path)
    operation: dict[str, Any] = {
        "operationId": endpoint.method,
        "tags": [endpoint.service],
        "summary": text.split(". ")[0].rstrip("."),
        "description": text,
        "parameters": [_path_parameter(endpoint, name, comments) for name in in_path]
        + [{"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS],
        "responses": {"200": _reply(endpoint, schemas), **failures_of(endpoint)},
    }
    if endpoint.has_body:
        operation["requestBody"] = _body(endpoint, schemas, in_path)
    return operation


def _body(endpoint: Endpoint, schemas: Schemas, in_path: list[str]) -> dict[str, Any]:
    media: dict[str, Any] = {
        "schema": schemas.add(endpoint.row.descriptor.input_type, reads=True, without=in_path)
    }
    if example := _EXAMPLES.get(endpoint.method):
        media["example"] = example
    body = {"required": not in_path, "content": {_media_type(endpoint): media}}
    if endpoint.row.is_stream:
        body["description"] = "One JSON object a line."
    return body


def _reply(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    schema: Schema = schemas.add(endpoint.row.descriptor.output_type, reads=False)
    text = "The answers, one JSON object a line." if endpoint.row.is_stream else "The answer."
    return {"description": text, "headers": _HEADERS, "content": {_media_type(endpoint): {"schema": schema}}}


def _formed(form: Form, endpoint: Endpoint) -> dict[str, Any]:
    """Return what a form changes of the operation of its endpoint."""
    reply: dict[str, Any] = {"application/json": {"schema": form.reply}}
    if form.streams:
        reply[EVENTS_TYPE] = {"schema": {"type": "string"}}
    failures = failures_of(endpoint)
    if form.error is not None:
        failed = {"headers": _HEADERS, "content": {"application/json": {"schema": form.error}}}
        failures = {
            "4XX": {"description": "The request is refused; 429 has Retry-After.", **failed},
            "5XX": {"description": "The server failed; 503 has Retry-After.", **failed},
        }
    operation: dict[str, Any] = {
        "operationId": form.name,
        "summary": form.description.split(". ")[0].rstrip("."),
        "description": form.description,
        "responses": {
            "200": {"description": "The answer.", "headers": _HEADERS, "content": reply},
            **failures,
        },
    }
    if form.request is not None:
        required = form.request["required"]
        properties = {
            name: schema if name in required else _or_null(schema)
            for name, schema in form.request["properties"].items()
        }
        media = {"schema": {**form.request, "properties": properties}, "example": form.example}
        operation["requestBody"] = {"required": True, "content": {"application/json": media}}
    return operation


def _media_type(endpoint: Endpoint) -> str:
    return NDJSON_TYPE if endpoint.row.is_stream else "application/json"


def _path_parameter(endpoint: Endpoint, name: str, comments: Mapping[str, str]) -> dict[str, Any]:
    text = comments.get(f"{endpoint.row.descriptor.input_type.full_name}.{name}", "")
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}


Schema = dict[str, Any]
_DIGITS = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}
# Messages with their own JSON form.
_KNOWN: Mapping[str, Schema] = {
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Any": {"$ref": "#/components/schemas/ErrorDetail"},
}
NUMBER = "Number"
NUMBER_SCHEMA: Schema = {
    "description": "A number; JSON has none for infinities and for what is no number, which are strings.",
    "anyOf": [{"type": "number"}, {"type": "string", "enum": ["Infinity", "-Infinity", "NaN"]}],
}


class Schemas:
    """Collects the schemas of messages by name; `comments` are those of the `.proto` by full name."""

    def __init__(self, comments: Mapping[str, str]) -> None:
        self._comments = comments
        self.components: dict[str, Schema] = {NUMBER: NUMBER_SCHEMA}

    def add(self, message: Descriptor, reads: bool, without: Sequence[str] = (), name: str = "") -> Schema:
        """Return a reference to the schema of a message that is read, or written, without some fields."""
        name = name or message.name
        reference = {"$ref": f"#/components/schemas/{name}"}
        if name in self.components:
            return reference
        schema: Schema = {"type": "object"}
        self.components[name] = schema  # before its fields: one may be of this message
        if text := self._comments.get(message.full_name):
            schema["description"] = text
        fields = [field for field in message.fields if field.name not in without]
        schema["properties"] = {f.name: self._field(f, reads) for f in fields}
        if reads:
            required = [field for field in REQUIRED.get(message.name, ()) if field not in without]
            schema["additionalProperties"] = False
        else:
            required = [field.name for field in fields if not field.has_presence]
        if required:
            schema["required"] = required
        return reference

    def _field(self, field: FieldDescriptor, reads: bool) -> Schema:
        owner = field.containing_type.name
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            schema: Schema = {"type": "object", "additionalProperties": self._value(value, reads)}
        elif field.is_repeated:
            schema = {"type": "array", "items": self._value(field, reads)}
        else:
            schema = self._value(field, reads)
        schema = {**schema, **CONSTRAINTS.get(f"{owner}.{field.name}", {})} if reads else dict(schema)
        if reads and field.name not in REQUIRED.get(owner, ()):
            schema = _or_null(schema)
        if text := self._comments.get(f"{field.containing_type.full_name}.{field.name}"):
            schema["description"] = text
        return schema

    def _value(self, field: FieldDescriptor, reads: bool) -> Schema:
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_MESSAGE:
                return self._message(field, reads)
            case FieldDescriptor.CPPTYPE_ENUM:
                return self._enum(field.enum_type, reads)
            case FieldDescriptor.CPPTYPE_STRING:
                return {"type": "string"}
            case FieldDescriptor.CPPTYPE_BOOL:
                return {"type": "boolean"}
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return {"type": "number"} if reads else {"$ref": f"#/components/schemas/{NUMBER}"}
            case _:
                return _integer(field.cpp_type, reads)

    def _message(self, field: FieldDescriptor, reads: bool) -> Schema:
        message = field.message_type
        if message.full_name in _KNOWN:
            return dict(_KNOWN[message.full_name])
        if f"{field.containing_type.name}.{field.name}" == LINK_OPTIONS_FIELD:
            return self.add(message, reads, NO_LINK_OPTIONS, LINK_OPTIONS)
        return self.add(message, reads)

    def _enum(self, enum: EnumDescriptor, reads: bool) -> Schema:
        words = words_of(enum) if reads else {}
        name = f"{enum.name}Word" if reads else enum.name
        if name not in self.components:
            schema: Schema = {"type": "string", "enum": [*words.values(), *enum.values_by_name]}
            lines = [
                f"- {f'`{words[v.number]}` or ' if v.number in words else ''}`{v.name}`: "
                f"{self._comments.get(f'{enum.full_name}.{v.name}', '')}"
                for v in enum.values
            ]
            schema["description"] = "\n".join([self._comments.get(enum.full_name, ""), "", *lines])
            self.components[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}


def _integer(cpp_type: int, reads: bool) -> Schema:
    low, high = INTEGER_RANGES[cpp_type]
    number = {"type": "integer", "minimum": low, "maximum": high}
    if cpp_type not in WIDE_INTEGERS:
        return number
    if not reads:
        return dict(_DIGITS)
    return {"anyOf": [number, dict(_DIGITS)]}


def _or_null(schema: Schema) -> Schema:
    """Return a schema that also allows null, the JSON form of an unset field."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


_NOT_BLANK = {"minLength": 1, "pattern": r"\S"}
_IDS = {"maxItems": MAX_IDS}


def _ranges(request: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the ranges of a request's numbers, except that of all 64-bit integers."""
    for option in options_of(request).values():
        if option.type in (int, float) and option.range != INT64:
            low, high = option.range
            yield f"{request.__name__}.{option.wire}", {"minimum": low, "maximum": high}


# Keywords of JSON Schema by message and field.
CONSTRAINTS: Mapping[str, Mapping[str, Any]] = {
    **dict(_ranges(RetrieveRequest)),
    **dict(_ranges(AnswerRequest)),
    **dict(_ranges(CompleteRequest)),
    "CompleteRequest.prefix": {"maxLength": MAX_PREFIX},
    "CompleteRequest.deny_entity_ids": _IDS,
    "RetrieveRequest.query": _NOT_BLANK,
    "RetrieveRequest.deny_entity_ids": _IDS,
    "EntityIds.ids": _IDS,
    "Mention.mention": _NOT_BLANK,
    "AnswerRequest.query": _NOT_BLANK,
    "ScoreRequest.query": _NOT_BLANK,
    "ScoreRequest.titles": {"minItems": 1, "maxItems": MAX_SCORED_TITLES},
}

# Required fields of requests.
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "RetrieveRequest": ("query",),
    "Mention": ("mention",),
    "AnswerRequest": ("query",),
    "ScoreRequest": ("titles",),
    "RetrieveStreamRequest": ("request",),
}

# The options of mentions are those of a query without the fields that every mention has itself.
LINK_OPTIONS = "LinkOptions"
LINK_OPTIONS_FIELD = "LinkRequest.options"
NO_LINK_OPTIONS = ("index", "query", "prompt_template")


_RETRY = _header("Retry-After", "Seconds after which to try again.", pattern="^[0-9]+$")
_CHALLENGE = _header("WWW-Authenticate", "What kind of token is asked for.")
# By status: name of the component, description, and further headers.
_FAILURES: dict[int, tuple[str, str, dict[str, Any]]] = {
    400: (
        "BadRequest",
        "INVALID_ARGUMENT: the body is no JSON of the request's form, or a field is out of range; details "
        "name the field. FAILED_PRECONDITION: the index or the model cannot do what is asked.",
        {},
    ),
    401: ("Unauthenticated", "UNAUTHENTICATED: no bearer token, or an unknown one.", _CHALLENGE),
    403: ("PermissionDenied", "PERMISSION_DENIED: the token does not allow this.", {}),
    404: ("NotFound", "NOT_FOUND: no index of that name is served.", {}),
    408: ("RequestTimeout", "DEADLINE_EXCEEDED: the body did not arrive in time.", {}),
    413: ("ContentTooLarge", "INVALID_ARGUMENT: the body is larger than the server allows.", {}),
    415: ("UnsupportedMediaType", "INVALID_ARGUMENT: the body is not declared as JSON.", {}),
    429: ("ResourceExhausted", "RESOURCE_EXHAUSTED: the queue or the memory is full.", _RETRY),
    499: ("Cancelled", "CANCELLED: the client left; nobody sees this but the server's metrics.", {}),
    500: (
        "Internal",
        "INTERNAL: a bug; the message has a request id and nothing else. DATA_LOSS: an index is corrupt.",
        {},
    ),
    503: ("Unavailable", "UNAVAILABLE: the server is warming up or shutting down.", _RETRY),
    504: (
        "DeadlineExceeded",
        "DEADLINE_EXCEEDED: the time is over, or would be before the request's turn.",
        {},
    ),
}
_BODY_ONLY = {408, 413, 415}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


ERROR_SCHEMAS: dict[str, Any] = {
    "Error": {
        "type": "object",
        "description": "Why a request failed.",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "status", "message", "details"],
                "properties": {
                    "code": {"type": "integer", "description": "The status of HTTP."},
                    "status": _text("Name of the status of gRPC, which is finer, as in INVALID_ARGUMENT."),
                    "message": _text("For people."),
                    "details": {
                        "type": "array",
                        "description": "For programs.",
                        "items": {"$ref": "#/components/schemas/ErrorDetail"},
                    },
                },
            }
        },
    },
    "ErrorDetail": {
        "type": "object",
        "description": "One of google.rpc's details: BadRequest with the fields that are wrong, ResourceInfo "
        "with what was not found, PreconditionFailure, ErrorInfo with a reason as QUEUE_FULL, RetryInfo with "
        "the delay after which to try again.",
        "required": ["@type"],
        "properties": {
            "@type": _text("type.googleapis.com/ and the full name of the message."),
            "field_violations": {
                "type": "array",
                "description": "BadRequest: which fields are wrong.",
                "items": {
                    "type": "object",
                    "properties": {
                        "field": _text("Path of the field, as requests[3].k."),
                        "description": _text("What is wrong with it."),
                    },
                },
            },
            "reason": _text("ErrorInfo: why, in one word."),
            "retry_delay": _text("RetryInfo: seconds, as 1.5s."),
            "resource_type": _text("ResourceInfo: what was not found."),
            "resource_name": _text("ResourceInfo: its name."),
            "description": _text("ResourceInfo: what is wrong with it."),
            "violations": {
                "type": "array",
                "description": "PreconditionFailure: what is not as it must be.",
                "items": {"type": "object"},
            },
        },
    },
}


def failures_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return references to the failures of a method, by status."""
    return {
        str(status): {"$ref": f"#/components/responses/{name}"}
        for status, (name, _, _) in _FAILURES.items()
        if endpoint.has_body or status not in _BODY_ONLY
    }


def failure_responses(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the components of all failures; every reply has `headers`."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        name: {"description": text, "headers": {**headers, **own}, "content": content}
        for name, text, own in _FAILURES.values()
    }


def comments_of(raw: bytes) -> dict[str, str]:
    """Return the comments of a serialised FileDescriptorSet by full name, as paragraphs.

    Values of enums are named after the enum: `genret.v1.FinishReason.FINISH_REASON_OK`.
    """
    found: dict[str, str] = {}
    for file in FileDescriptorSet.FromString(raw).file:
        for place in file.source_code_info.location:
            name = _name_at(file, tuple(place.path)) if place.leading_comments else None
            if name is not None:
                found[name] = _joined(place.leading_comments)
    return found


def _name_at(file: FileDescriptorProto, path: tuple[int, ...]) -> str | None:
    """Return the full name of the element at a path of field numbers and positions in a file's descriptor."""
    name: str = file.package
    element: Any = file
    if len(path) % 2:
        return None
    for number, position in zip(path[::2], path[1::2], strict=True):
        field = element.DESCRIPTOR.fields_by_number[number]
        if not field.is_repeated or field.message_type is None:
            return None
        element = getattr(element, field.name)[position]
        name = f"{name}.{element.name}"
    return name


def _joined(text: str) -> str:
    """Return the lines of a comment as paragraphs, each on one line."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(line.strip() for line in p.splitlines()) for p in paragraphs)


DOCUMENT = Path(__file__).parents[1] / "gateway" / "openapi.json"
API_VERSION = "v1"


def rendered(proto_root: Path) -> str:
    """Return the text of the document."""
    document = openapi_document(descriptor_set(proto_root), API_VERSION)
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the document."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--proto", type=Path, default=Path(__file__).resolve().parents[2] / "proto")
    parser.add_argument("--out", type=Path, default=DOCUMENT)
    arguments = parser.parse_args()
    arguments.out.write_text(rendered(arguments.proto), encoding="utf-8")


if __name__ == "__main__":
    main()
