"""Hypothesis strategies that fill any request by its descriptor, tame and hostile."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.json import INTEGER_RANGES

Cpp = FieldDescriptor
# What else is in a request matters only where it gets beyond the first check.
BASES: dict[str, Message] = {
    message.DESCRIPTOR.full_name: message
    for message in (
        pb.RetrieveRequest(query="which", k=2),
        pb.Mention(mention="Paris", left="in ", right=" today"),
        pb.AnswerRequest(query="which", schema_json='{"enum": ["a", "b"]}', max_tokens=40),
        pb.ScoreRequest(query="which", titles=["Paris", "The Seine"]),
        pb.CompleteRequest(prefix="par", k=2),
    )
}
SCHEMA_TEXTS = (
    '{"type": "boolean"}',
    '{"$ref": "#"}',
    '{"type": "string", "x-genret-index": "tiny"}',
    '{"type": "string", "pattern": "(a*)*b", "maxLength": 1e400}',
    '{"not": ' * 500,
    "[" * 5000,
)
FILTER_TEXTS = ("kind = 'city'", "kind in ('city', 'river') and not kind like 'x%'", "=", "(" * 3000)
ODD_TEXTS = ("\0", "a\0b\x7f\x1b[2J", "\u202eabc\u2066\u200f", "\U0010ffff\ufffe\ufeff", "e\u0301" * 50)
LONG_TEXTS = ("not " * 3000, "\U0001f469\u200d\U0001f467" * 20, "\N{EURO SIGN}" * 33_000, "word " * 20_000)
USUAL_TEXTS = ("", " ", "a", "Q1", "tiny", "fake", "plain", "few-shot", "null", "</s>", "../../etc/passwd")
STRINGS = (*USUAL_TEXTS, *FILTER_TEXTS, *SCHEMA_TEXTS, *ODD_TEXTS, "x" * 300, *LONG_TEXTS)
FINITE_FLOATS = (0.0, -0.0, 0.5, 1.0, 1.5, -1.0, 1e-9, 5e-324, 1e308, -1e308)
FLOATS = (*FINITE_FLOATS, float("inf"), float("-inf"), float("nan"))
SMALL = (0, 1, 2, 3, 7)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
# One field of each wire type under a number that no message has, groups opened and closed and neither.
UNKNOWN_FIELDS = (
    *(b"\xf8\x7f\x01", b"\xf9\x7f12345678", b"\xfa\x7f\x03abc", b"\xfd\x7f1234", b"\xfe\x7f", b"\x00"),
    *(b"\xfb\x7f\xfc\x7f", b"\xfb\x7f" * 150 + b"\xfc\x7f" * 150, b"\xfb\x7f", b"\xfc\x7f"),
    b"\xf8\x7f" + b"\xff" * 12,
)


def scalar(field: FieldDescriptor) -> SearchStrategy[Any]:
    """Values that a field of a scalar type can hold, likely and not."""
    kind = field.cpp_type
    if kind == Cpp.CPPTYPE_STRING:
        return st.binary(max_size=30) if field.type == Cpp.TYPE_BYTES else st.sampled_from(STRINGS) | _TEXT
    if kind == Cpp.CPPTYPE_BOOL:
        return st.booleans()
    if kind == Cpp.CPPTYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from([*known, *known, -1, len(known) + 1, 2**31 - 1, -(2**31)])
    if kind in (Cpp.CPPTYPE_DOUBLE, Cpp.CPPTYPE_FLOAT):
        return st.sampled_from(FLOATS) | st.floats(width=32)
    low, high = INTEGER_RANGES[kind]
    return st.sampled_from([*SMALL, *SMALL, 1000, low, high]) | st.integers(low, high)


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor, depth: int = 4) -> Message:
    """A message that can be sent: some of its fields are set, mostly few."""
    message: Message = GetMessageClass(kind)()
    if kind.full_name in BASES and draw(st.integers(0, 9)):
        message.CopyFrom(BASES[kind.full_name])
    if not kind.fields:
        return message
    chosen = draw(st.lists(st.sampled_from(list(kind.fields)), unique_by=lambda f: f.number, max_size=5))
    nested = [field for field in kind.fields if field.message_type is not None]
    for field in {field.number: field for field in [*nested, *chosen]}.values():
        _fill(draw, message, field, depth)
    return message


def _fill(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is None:
        if field.is_repeated:
            values = draw(st.lists(scalar(field), max_size=3))
            times = draw(st.sampled_from([1, 1, 1, 3000])) if sum(len(str(v)) for v in values) < 200 else 1
            getattr(message, field.name).extend(values * times)
        else:
            setattr(message, field.name, draw(scalar(field)))
    elif depth and not field.message_type.GetOptions().map_entry:
        if field.is_repeated:
            items = draw(st.lists(messages(field.message_type, depth - 1), max_size=3))
            times = draw(st.sampled_from([1, 1, 1, 1, 60, 1500])) if items else 1
            small = sum(item.ByteSize() for item in items) * times < 2**20
            getattr(message, field.name).extend(items * (times if small else 1))
        elif draw(st.booleans()) or field.message_type.full_name in BASES:
            getattr(message, field.name).CopyFrom(draw(messages(field.message_type, depth - 1)))


@st.composite
def mutated(draw: st.DrawFn, kind: Descriptor) -> bytes:
    """The bytes of a message, some of them changed, cut off, doubled, or followed by what is unknown."""
    raw = bytearray(draw(messages(kind)).SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        if raw:
            raw[draw(st.integers(0, min(len(raw), 500) - 1))] = draw(st.integers(0, 255))
    end = draw(st.sampled_from(["", "", "cut", "twice", "unknown", "unknown"]))
    if end == "cut":
        del raw[draw(st.integers(0, len(raw))) :]
    elif end == "twice":
        raw *= 2
    elif end == "unknown":
        raw += draw(st.sampled_from(UNKNOWN_FIELDS))
    return bytes(raw)


def any_bytes(kind: Descriptor) -> SearchStrategy[bytes]:
    """What somebody may send to a method that takes a message: mostly one, but not always."""
    whole = messages(kind).map(lambda message: message.SerializeToString())
    return whole | whole | mutated(kind) | st.binary(max_size=200)
