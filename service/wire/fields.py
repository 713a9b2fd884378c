"""Converts fields between messages and the library's values: those of one name in both, and request options.

An unset field, 0 of an enum and an empty text leave an option at its default. Values of an enum are the
library's words behind a prefix: RETRIEVAL_METHOD_BEAM is "beam".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from genret.retrieval.errors import InputError
from genret.retrieval.request_options import RequestOption, options_of


def fields_to_proto(value: Any, message: Any) -> dict[str, Any]:
    """Return the plain fields that a value shares with a type of messages, as arguments of the message."""
    kind: Any = type(value)
    shared = _shared_fields(message, kind)
    return {name: found for name, *_ in shared if (found := getattr(value, name)) is not None}


def fields_from_proto(message: Message, owner: Any) -> dict[str, Any]:
    """Return the plain fields that a message shares with a dataclass; None for an unset one."""
    kind: Any = type(message)
    found: dict[str, Any] = {}
    for name, is_repeated, has_presence in _shared_fields(kind, owner):
        if is_repeated:
            found[name] = tuple(getattr(message, name))
        else:
            found[name] = None if has_presence and not message.HasField(name) else getattr(message, name)
    return found


@cache
def _shared_fields(message: Any, owner: Any) -> tuple[tuple[str, bool, bool], ...]:
    """Return the shared fields but messages and enums: name, whether repeated, whether it can be unset."""
    known = message.DESCRIPTOR.fields_by_name
    return tuple(
        (one.name, field.is_repeated, field.has_presence)
        for one in fields(owner)
        if (field := known.get(one.name)) and field.message_type is None and field.enum_type is None
    )


def options_from_proto(message: Message, request: Any) -> dict[str, Any]:
    """Return the options that a message sets; InputError names the field of an enum that does not suit."""
    found, kind = {}, cast(Any, type(message))
    for option, field, inner in _option_fields(kind, request):
        value = getattr(message, field.name)
        if field.has_presence:
            if message.HasField(field.name):
                found[option.name] = tuple(getattr(value, inner)) if inner else value
        elif field.is_repeated:
            found[option.name] = tuple(value)
        elif field.enum_type is not None:
            if value:
                found[option.name] = _word(option, field, value)
        elif option.type is not str or value:
            found[option.name] = value
    return found


def options_to_proto(request: Any, message: Any) -> dict[str, Any]:
    """Return the options of a request as arguments of a message of that type."""
    found, kind = {}, cast(Any, type(request))
    for option, field, inner in _option_fields(message, kind):
        value = getattr(request, option.name)
        if value is not None:
            if inner:
                value = {inner: value}
            elif field.enum_type is not None:
                value = numbers_of(field.enum_type)[value]
            found[field.name] = value
    return found


def error_on_wire(error: InputError, request: Any) -> InputError:
    """Return an error with the message's name of the field."""
    option = options_of(request).get(error.field)
    return error if option is None else InputError(option.wire, error.message)


@cache
def words_of(enum: EnumDescriptor) -> Mapping[int, str]:
    """Return the library's word for every value of an enum, by number; 0 has none."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number}


@cache
def numbers_of(enum: EnumDescriptor) -> Mapping[str, Any]:
    """Return the number of an enum for every word of the library."""
    return {word: number for number, word in words_of(enum).items()}


def _word(option: RequestOption, field: FieldDescriptor, number: int) -> str:
    words, names = words_of(field.enum_type), field.enum_type.values_by_number
    if (word := words.get(number, "")) in option.choices:
        return word
    known = [
        value.name for value in names.values() if words.get(value.number, option.choices[0]) in option.choices
    ]
    got = names[number].name if number in names else number
    raise InputError(field.name, f"must be one of {', '.join(known)}, got {got}")


@cache
def _option_fields(message: Any, request: Any) -> tuple[tuple[RequestOption, FieldDescriptor, str], ...]:
    """Return every option with its field, and the name of the list inside a field that is a message."""
    found = []
    for option in options_of(request).values():
        name, _, inner = option.wire.partition(".")
        found.append((option, message.DESCRIPTOR.fields_by_name[name], inner))
    return tuple(found)
