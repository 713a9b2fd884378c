"""Defines how other vendors' requests and replies stand for messages of the API, and checks their bodies.

An endpoint without a form speaks the JSON of its messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import Message
from jsonschema import Draft202012Validator

from genret.retrieval.errors import InputError, instead_of
from genret.service.gateway.http_calls import JSON_TYPE
from genret.service.wire.json import message_to_json, object_from_json, printable

Schema = dict[str, Any]
_SHOWN_CHARS = 80
EVENTS_TYPE = "text/event-stream"


class MethodCall(NamedTuple):
    """What a body asks for: a message, the method that answers it, and how its reply is written."""

    message: Message
    method: str
    write: Callable[[Any], bytes] = message_to_json
    media_type: str = JSON_TYPE


class Form(NamedTuple):
    """The bodies of an endpoint.

    `read` makes a call of a checked body, `write` the body of a reply to a request without one, `refuse` that
    of a failure, which is told as in `http_calls.error_response`. The schemas describe the three; null is a
    field that is not set, and without `error` failures are those of the API. If it `streams`, replies may be
    events.
    """

    name: str
    description: str
    reply: Schema
    refuse: Callable[[dict[str, Any]], dict[str, Any]]
    error: Schema | None = None
    request: Schema | None = None
    read: Callable[[dict[str, Any]], MethodCall] | None = None
    write: Callable[[Any], bytes] = message_to_json
    example: Mapping[str, Any] | None = None
    streams: bool = False

    def asked(self, body: bytes, max_items: int) -> MethodCall:
        """Return what a body asks for; raises as `message_from_json` does, for each field by its path."""
        if self.read is None or self.request is None:
            raise TypeError(f"{self.name} takes no body")
        given = object_from_json(body, max_items)
        value = {name: item for name, item in given.items() if item is not None}
        for error in Draft202012Validator(self.request).iter_errors(value):
            raise _refused(error)
        return self.read(value)


def fields(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """Return the schema of an object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def shape(**properties: Schema) -> Schema:
    """Return the schema of an object of a reply, all of whose fields are there."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def typed(kind: str | list[str], description: str, **keywords: Any) -> Schema:
    """Return the schema of a value that has a description."""
    return {"type": kind, "description": description, **keywords}


def blamed(told: dict[str, Any]) -> tuple[str, str]:
    """Return the field that a failure is about, empty without one, and what is wrong."""
    for detail in told["details"]:
        for violation in detail.get("field_violations", ()):
            return str(violation.get("field", "")), str(violation.get("description", told["message"]))
    return "", str(told["message"])


def _refused(error: Any) -> InputError:
    """Return what a jsonschema.ValidationError says of a request, in plain words."""
    path = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path]
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        return InputError(_named([*path, f".{missing}"]), "must be given")
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = next(name for name in error.instance if name not in known)
        return InputError(_named([*path, f".{unknown}"]), f"is no field here{instead_of(unknown, known)}")
    got = printable(json.dumps(error.instance, ensure_ascii=False))
    about = error.schema.get("description", f"{error.validator} is {json.dumps(error.validator_value)}")
    shown = got if len(got) <= _SHOWN_CHARS else f"{got[:_SHOWN_CHARS]}…"
    return InputError(_named(path), f"cannot be {shown}: {about}")


def _named(path: list[str]) -> str:
    return printable("".join(path).removeprefix("."))
