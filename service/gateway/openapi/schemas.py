"""Messages of the API as JSON Schemas: what `service.wire.json` reads, and what it writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from service.gateway.openapi.constraints import (
    CONSTRAINTS,
    LINK_OPTIONS,
    LINK_OPTIONS_FIELD,
    NO_LINK_OPTIONS,
    REQUIRED,
)
from service.wire.json import INTEGER_RANGES, WIDE_INTEGERS

Schema = dict[str, Any]
_DIGITS = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}
# Messages with a JSON form of their own.
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
    """Collects the schemas of messages, each under its name.

    Args:
        comments: Of the `.proto`, by full name.
    """

    def __init__(self, comments: Mapping[str, str]) -> None:
        self._comments = comments
        self.components: dict[str, Schema] = {NUMBER: NUMBER_SCHEMA}

    def request(self, message: Descriptor, without: Iterable[str] = ()) -> Schema:
        """Return a reference to what the server reads as `message`, but for some fields."""
        return self._add(message.name, message, reads=True, without=tuple(without))

    def response(self, message: Descriptor) -> Schema:
        """Return a reference to what the server writes as `message`."""
        return self._add(message.name, message, reads=False)

    def _add(self, name: str, message: Descriptor, reads: bool, without: tuple[str, ...] = ()) -> Schema:
        reference = {"$ref": f"#/components/schemas/{name}"}
        if name in self.components:
            return reference
        schema: Schema = {"type": "object"}
        self.components[name] = schema  # before its fields, of which one may be of this message
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
        if _is_map(field):
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
                return self._enum(field.enum_type)
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
            return self._add(LINK_OPTIONS, message, reads, NO_LINK_OPTIONS)
        return self._add(message.name, message, reads)

    def _enum(self, enum: EnumDescriptor) -> Schema:
        if enum.name not in self.components:
            schema: Schema = {"type": "string", "enum": [value.name for value in enum.values]}
            lines = [
                f"- `{v.name}`: {self._comments.get(f'{enum.full_name}.{v.name}', '')}" for v in enum.values
            ]
            schema["description"] = "\n".join([self._comments.get(enum.full_name, ""), "", *lines])
            self.components[enum.name] = schema
        return {"$ref": f"#/components/schemas/{enum.name}"}


def _integer(cpp_type: int, reads: bool) -> Schema:
    low, high = INTEGER_RANGES[cpp_type]
    number = {"type": "integer", "minimum": low, "maximum": high}
    if cpp_type not in WIDE_INTEGERS:
        return number
    if not reads:
        return dict(_DIGITS)
    return {"anyOf": [number, dict(_DIGITS)]}


def _or_null(schema: Schema) -> Schema:
    """Return a schema that null fits, too: the JSON form of a field that is not set."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {"anyOf": [schema, {"type": "null"}]}


def _is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)
