"""The document: every endpoint with its messages, its headers and its failures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.gateway.endpoints import ENDPOINTS, NDJSON_TYPE, Endpoint
from service.gateway.openapi.comments import comments_of
from service.gateway.openapi.failures import ERROR_SCHEMAS, failure_responses, failures_of
from service.gateway.openapi.schemas import Schema, Schemas

_TITLE = "genret"
_DESCRIPTION = """Generative retrieval: a language model writes the answer, and only titles of the catalogue \
can be written.

The same methods as `genret.v1` over gRPC. Requests are read strictly: unknown and repeated fields are \
refused; names may be in snake case or camel case; null is a field that is not set. In replies names are in \
snake case, 64-bit integers are strings, and what is zero or empty is written, too, unless the difference \
between zero and nothing matters: such fields are left out when they are not set."""
_HEADERS = {
    "X-Request-Id": {
        "description": "The request's id: as it was sent, or a new one.",
        "required": True,
        "schema": {"type": "string"},
    }
}
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
    """Return the document.

    Args:
        descriptors: A serialised FileDescriptorSet of the API, with its comments.
        version: Of the API.
    """
    comments = comments_of(descriptors)
    schemas = Schemas(comments)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint, schemas, comments)
        paths.setdefault(endpoint.path, {})[endpoint.verb.lower()] = operation
    services = {endpoint.service: endpoint.descriptor.containing_service for endpoint in ENDPOINTS}
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
    method = endpoint.descriptor
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
    media: dict[str, Any] = {"schema": schemas.request(endpoint.descriptor.input_type, in_path)}
    if example := _EXAMPLES.get(endpoint.method):
        media["example"] = example
    body = {"required": not in_path, "content": {_media_type(endpoint): media}}
    if endpoint.is_stream:
        body["description"] = "One JSON object a line."
    return body


def _reply(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    schema: Schema = schemas.response(endpoint.descriptor.output_type)
    text = "The answers, one JSON object a line." if endpoint.is_stream else "The answer."
    return {"description": text, "headers": _HEADERS, "content": {_media_type(endpoint): {"schema": schema}}}


def _media_type(endpoint: Endpoint) -> str:
    return NDJSON_TYPE if endpoint.is_stream else "application/json"


def _path_parameter(endpoint: Endpoint, name: str, comments: Mapping[str, str]) -> dict[str, Any]:
    text = comments.get(f"{endpoint.descriptor.input_type.full_name}.{name}", "")
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": schema}
