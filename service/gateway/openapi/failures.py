"""Replies that fail, as OpenAPI describes them."""

from __future__ import annotations

from typing import Any

from service.gateway.endpoints import Endpoint

_RETRY = {
    "Retry-After": {
        "description": "Seconds after which to try again.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    }
}
_CHALLENGE = {
    "WWW-Authenticate": {
        "description": "What kind of token is asked for.",
        "required": True,
        "schema": {"type": "string"},
    }
}
# By status: its name among the components, when it comes, and headers of its own.
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
                    "status": {
                        "type": "string",
                        "description": "Name of the status of gRPC, which is finer, as in INVALID_ARGUMENT.",
                    },
                    "message": {"type": "string", "description": "For people."},
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
            "@type": {
                "type": "string",
                "description": "type.googleapis.com/ and the full name of the message.",
            },
            "field_violations": {
                "type": "array",
                "description": "BadRequest: which fields are wrong.",
                "items": {
                    "type": "object",
                    "properties": {
                        "field": {"type": "string", "description": "Path of the field, as requests[3].k."},
                        "description": {"type": "string", "description": "What is wrong with it."},
                    },
                },
            },
            "reason": {"type": "string", "description": "ErrorInfo: why, in one word."},
            "retry_delay": {"type": "string", "description": "RetryInfo: seconds, as 1.5s."},
            "resource_type": {"type": "string", "description": "ResourceInfo: what was not found."},
            "resource_name": {"type": "string", "description": "ResourceInfo: its name."},
            "description": {"type": "string", "description": "ResourceInfo: what is wrong with it."},
            "violations": {
                "type": "array",
                "description": "PreconditionFailure: what is not as it must be.",
                "items": {"type": "object"},
            },
        },
    },
}


def failures_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return references to the failures that a method may have, by status."""
    return {
        str(status): {"$ref": f"#/components/responses/{name}"}
        for status, (name, _, _) in _FAILURES.items()
        if endpoint.has_body or status not in _BODY_ONLY
    }


def failure_responses(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the components for every failure.

    Args:
        headers: Those that every reply has.
    """
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        name: {"description": text, "headers": {**headers, **own}, "content": content}
        for name, text, own in _FAILURES.values()
    }
