"""Converts between messages and JSON by the proto3 mapping, read strictly.

Reading takes the names of the `.proto` (`beam_size`) and their camel case (`beamSize`), 64-bit integers as
numbers or strings, enums by name or by the library's word ("beam"), and null for unset. It refuses unknown
and repeated keys, NaN and infinities, numbers in quotes for other fields, and halves of surrogate pairs.
Writing uses the names of the `.proto`, writes 64-bit integers as strings (JavaScript's numbers end at 2^53),
and writes every field without presence, so that replies always have the same shape.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from genret.retrieval.arguments import not_among
from genret.retrieval.errors import InputError, instead_of
from genret.service.errors import MalformedMessageError
from genret.service.wire.requests import numbers_of

M = TypeVar("M", bound=Message)

# Integer types of the wire with their least and greatest values.
INTEGER_RANGES: dict[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
WIDE_INTEGERS = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
# As many digits as any 64-bit integer has, and few enough to be read at once.
_MAX_DIGITS = 20
# What to do about a field that holds no string, by its name.
_INSTEAD = {
    "schema_json": "; send the schema as JSON text, or as it is in response_format of /v1/chat/completions"
}
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}


def message_from_json(body: bytes, message: M, max_items: int | None = None) -> M:
    """Fill an empty message from the UTF-8 JSON text of a request, and return it.

    `max_items` limits the objects in a field of the message; None: no limit.

    Raises:
        MalformedMessageError: the text is no JSON object.
        InputError: a field does not exist or cannot hold its value; names the field by its path.
    """
    return message_from_dict(object_from_json(body, max_items), message)


def object_from_json(body: bytes, max_items: int | None = None) -> dict[str, Any]:
    """Return the JSON object of a UTF-8 text; raises as `message_from_json` does, not for fields' names."""
    value = _loaded(body)
    if not isinstance(value, dict):
        raise MalformedMessageError(f"the body must be a JSON object, got {_kind(value)}")
    for name, items in value.items():  # each object becomes a message, of ten times the size of its text
        too_many = max_items is not None and isinstance(items, list) and len(items) > max_items
        if too_many and any(isinstance(item, dict) for item in items):
            raise InputError(printable(name), f"at most {max_items}, got {len(items)}")
    return value


def message_from_dict(value: dict[str, Any], message: M) -> M:
    """Fill an empty message from a JSON object, and return it; raises as `message_from_json` does."""
    _check_object(value, message.DESCRIPTOR, "")
    try:
        json_format.ParseDict(value, message)
    except json_format.ParseError as error:
        # Two members of one oneof.
        raise MalformedMessageError(str(error)) from None
    return message


# Memory of one value of JSON, and of one byte of its text: as bytes, as text, in a value, in a message.
_VALUE_BYTES, _BYTE_BYTES, _WIDE_BYTE_BYTES = 80, 4, 10


def parsed_bytes(body: bytes) -> int:
    """Return about how much memory it takes at most to read JSON text."""
    num_values = sum(map(body.count, (b",", b"[", b"{")))
    return num_values * _VALUE_BYTES + len(body) * (_BYTE_BYTES if body.isascii() else _WIDE_BYTE_BYTES)


def message_to_json(message: Message) -> bytes:
    """Return a message as JSON text in UTF-8, on one line."""
    return json_bytes(message_to_dict(message))


def message_to_dict(message: Message, *, defaults: bool = True) -> dict[str, Any]:
    """Return a message as a JSON object; with `defaults` zero fields without presence are written, too."""
    written: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=defaults
    )
    return written


def json_bytes(value: Any) -> bytes:
    """Return a JSON value as text in UTF-8, on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _loaded(body: bytes) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"the body is not UTF-8: bad byte at offset {error.start}") from None
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise MalformedMessageError(f"the body is not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise MalformedMessageError("the body is nested too deeply") from None
    except ValueError:  # json.loads gives up on integers of thousands of digits
        raise MalformedMessageError("the body holds a number with too many digits") from None


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedMessageError(f"the key {_shown(name)} stands twice in one object")
        found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise MalformedMessageError(f"the body is not JSON: {name} is no JSON number")


def _check_object(value: dict[str, Any], kind: Descriptor, path: str) -> None:
    fields = {name: f for f in kind.fields for name in (f.name, f.json_name)}
    seen: set[str] = set()
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            known = [f.name for f in kind.fields]
            told = f"is no field of {kind.name}{instead_of(name, known)}"
            raise InputError(path + printable(name), told)
        where = path + field.name
        if field.name in seen:
            raise InputError(where, f"is given twice, as {field.name} and as {field.json_name}")
        seen.add(field.name)
        if item is None:
            continue
        if field.is_repeated:
            if not isinstance(item, list):
                raise InputError(where, f"must be an array, got {_kind(item)}")
            for i, member in enumerate(item):
                _check_value(member, field, f"{where}[{i}]")
        elif field.enum_type is not None:
            value[name] = _number_of(item, field.enum_type, where)
        else:
            _check_value(item, field, where)


def _number_of(value: Any, enum: EnumDescriptor, path: str) -> int:
    """Return the number of an enum's value for its name, or for the library's word."""
    words = numbers_of(enum)
    if not isinstance(value, str) or not (value in words or value in enum.values_by_name):
        raise not_among(path, value, words)
    return int(words[value] if value in words else enum.values_by_name[value].number)


def _check_value(value: Any, field: FieldDescriptor, path: str) -> None:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_MESSAGE:
            if not isinstance(value, dict):
                raise InputError(path, f"must be an object, got {_kind(value)}")
            _check_object(value, field.message_type, f"{path}.")
        case FieldDescriptor.CPPTYPE_STRING:
            _check_string(value, path)
        case FieldDescriptor.CPPTYPE_BOOL:
            if not isinstance(value, bool):
                raise InputError(path, f"must be true or false, got {_kind(value)}")
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            _check_number(value, path)
        case _:
            _check_integer(value, field.cpp_type, path)


def _check_string(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise InputError(path, f"must be a string, got {_kind(value)}{_INSTEAD.get(path, '')}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(path, f"half of a surrogate pair at character {error.start}") from None


def _check_number(value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(path, f"must be a number, got {_kind(value)}")
    if not abs(value) <= sys.float_info.max:  # an integer, too
        raise InputError(path, "is a number too large to be held")


def _check_integer(value: Any, cpp_type: int, path: str) -> None:
    if cpp_type in WIDE_INTEGERS and isinstance(value, str):
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS):
            raise InputError(path, f"must be an integer, got {_shown(value)}")
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(path, f"must be an integer, got {_kind(value)}")
    if isinstance(value, float) and not value.is_integer():
        raise InputError(path, f"must be an integer, got {value}")
    low, high = INTEGER_RANGES[cpp_type]
    if not low <= value <= high:
        raise InputError(path, f"must be in [{low}, {high}]")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _shown(text: str) -> str:
    return repr(printable(text))


def printable(text: str) -> str:
    """Return a text that a reply can carry: at most 100 characters, no halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode()[:100]
