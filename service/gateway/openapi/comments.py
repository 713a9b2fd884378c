"""The comments of a `.proto`, by the full names of what they stand before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

# Numbers of fields of the messages of descriptor.proto, of which paths of source information are made.
_FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE = 4, 5, 6
_MESSAGE_FIELD, _MESSAGE_MESSAGE, _MESSAGE_ENUM = 2, 3, 4
_ENUM_VALUE, _SERVICE_METHOD = 2, 2
Path = tuple[int, ...]


def comments_of(raw: bytes) -> dict[str, str]:
    """Return the comments before messages, fields, enums, values, services and methods, as paragraphs.

    Args:
        raw: A serialised FileDescriptorSet with source information. Values of enums go by the enum's full
            name and their own: `genret.v1.FinishReason.FINISH_REASON_OK`.
    """
    found: dict[str, str] = {}
    for file in FileDescriptorSet.FromString(raw).file:
        texts = {
            tuple(place.path): place.leading_comments
            for place in file.source_code_info.location
            if place.leading_comments
        }
        for path, name in _names(file):
            if path in texts:
                found[name] = _joined(texts[path])
    return found


def _names(file: FileDescriptorProto) -> Iterator[tuple[Path, str]]:
    for i, message in enumerate(file.message_type):
        yield from _names_of_message((_FILE_MESSAGE, i), message, file.package)
    for i, enum in enumerate(file.enum_type):
        yield from _names_of_members((_FILE_ENUM, i), enum, file.package, _ENUM_VALUE, enum.value)
    for i, service in enumerate(file.service):
        yield from _names_of_members(
            (_FILE_SERVICE, i), service, file.package, _SERVICE_METHOD, service.method
        )


def _names_of_message(path: Path, message: Any, scope: str) -> Iterator[tuple[Path, str]]:
    yield from _names_of_members(path, message, scope, _MESSAGE_FIELD, message.field)
    name = f"{scope}.{message.name}"
    for i, nested in enumerate(message.nested_type):
        yield from _names_of_message((*path, _MESSAGE_MESSAGE, i), nested, name)
    for i, enum in enumerate(message.enum_type):
        yield from _names_of_members((*path, _MESSAGE_ENUM, i), enum, name, _ENUM_VALUE, enum.value)


def _names_of_members(
    path: Path, owner: Any, scope: str, number: int, members: Any
) -> Iterator[tuple[Path, str]]:
    name = f"{scope}.{owner.name}"
    yield path, name
    for i, member in enumerate(members):
        yield (*path, number, i), f"{name}.{member.name}"


def _joined(text: str) -> str:
    """Return the lines of a comment as paragraphs, each on one line."""
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(line.strip() for line in p.splitlines()) for p in paragraphs)
