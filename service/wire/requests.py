"""Converts requests between protobuf messages and the library's values: queries, mentions, titles, schemas.

The options of a request are converted by the table that the library declares them in. An unset field, 0 of an
enum and an empty text leave an option at its default. Values of an enum are the library's words behind a
prefix: RETRIEVAL_METHOD_BEAM is "beam".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from genret.decoding.errors import PromptTooLongError
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.arguments import MAX_IDS, RequestOption, options_of, wrong_type
from genret.retrieval.complete_types import CompleteRequest
from genret.retrieval.errors import InputError
from genret.retrieval.score_types import MAX_SCORED_TITLES, ScoreRequest
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb

T = TypeVar("T")


def options_from_proto(message: Message, request: Any) -> dict[str, Any]:
    """Return the options that a message sets; a value of an enum that has no word stays a number."""
    found: dict[str, Any] = {}
    fields = _option_fields(cast(Any, type(message)), request)
    for field, value in message.ListFields():  # those that are set, or not 0, False or empty
        if field.name in fields:
            option, _, inner = fields[field.name]
            if option.type is tuple:
                value = _ids(option.wire, getattr(value, inner) if inner else value)
            elif field.enum_type is not None:
                value = words_of(field.enum_type).get(value, value)
            found[option.name] = value
    return found


def _ids(field: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return ids as text, each a Python object of its own; InputError, before any is made, for too many."""
    if len(values) > MAX_IDS:
        raise InputError(field, f"at most {MAX_IDS:,} ids, got {len(values):,}")
    return tuple(values)


def options_to_proto(request: Any, message: Any) -> dict[str, Any]:
    """Return the options of a request as arguments of a message of that type."""
    found, kind = {}, cast(Any, type(request))
    for option, field, inner in _option_fields(message, kind).values():
        value = getattr(request, option.name)
        if value is not None:
            if inner:
                value = {inner: value}
            elif field.enum_type is not None:
                value = numbers_of(field.enum_type)[value]
            found[field.name] = value
    return found


@cache
def words_of(enum: EnumDescriptor) -> Mapping[int, str]:
    """Return the library's word for every value of an enum, by number; 0 has none."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {value.number: value.name.removeprefix(prefix).lower() for value in enum.values if value.number}


@cache
def numbers_of(enum: EnumDescriptor) -> Mapping[str, Any]:
    """Return the number of an enum for every word of the library."""
    return {word: number for number, word in words_of(enum).items()}


@cache
def _option_fields(message: Any, request: Any) -> Mapping[str, tuple[RequestOption, FieldDescriptor, str]]:
    """Return by its field's name every option, the field, and the list inside a field that is a message."""
    found = {}
    for option in options_of(request).values():
        name, _, inner = option.wire.partition(".")
        found[name] = option, message.DESCRIPTOR.fields_by_name[name], inner
    return found


def error_on_wire(error: InputError, request: Any) -> InputError:
    """Return an error about a type of requests with the message's name of the field."""
    if request is AnswerRequest and error.field == "schema":
        return InputError("schema_json", error.message)
    option = options_of(request).get(error.field)
    return error if option is None else InputError(option.wire, error.message)


def request_from_proto(message: pb.RetrieveRequest) -> RetrieveRequest:
    """Return the library's form of a request; raises InputError for a field out of range."""
    return _checked(message.query, RetrieveRequest, options_from_proto(message, RetrieveRequest))


def _checked(text: str, request: Callable[..., T], options: Mapping[str, Any]) -> T:
    """Return a request about a text; its errors have the message's names of fields."""
    try:
        return request(text, **options)
    except InputError as error:
        raise error_on_wire(error, request) from None


def request_to_proto(request: RetrieveRequest, index: str = "") -> pb.RetrieveRequest:
    """Return the wire's form of a request."""
    if not isinstance(request, RetrieveRequest):
        raise wrong_type("request", request, RetrieveRequest)
    options = options_to_proto(request, pb.RetrieveRequest)
    return pb.RetrieveRequest(index=index, query=request.query, **options)


_PLACEHOLDER = "-"
_DEFAULT_K = 1
# Options that each mention, or the whole call, has itself.
_OWN = ("index", "query", "prompt_template")
_MENTION_FIELDS = ("mention", "left", "right")


def link_options_from_proto(message: pb.LinkRequest) -> RetrieveRequest:
    """Return the options for every mention, with a placeholder as query; raises InputError."""
    options = pb.RetrieveRequest()
    options.CopyFrom(message.options)
    for name in _OWN:
        if getattr(options, name):
            raise InputError(f"options.{name}", "must be empty in the options of mentions")
    options.query = _PLACEHOLDER
    if not options.HasField("k"):
        options.k = _DEFAULT_K
    try:
        return request_from_proto(options)
    except InputError as error:
        raise InputError(f"options.{error.field}", error.message) from None


def mention_from_proto(message: pb.Mention) -> Mention:
    """Return the library's form of a mention."""
    return Mention(message.mention, message.left, message.right)


def mention_error(error: Exception) -> Exception:
    """Return the error of one mention with the message's names of fields."""
    if isinstance(error, PromptTooLongError):
        return InputError("mention", str(error))
    if not isinstance(error, InputError) or error.field in _MENTION_FIELDS:
        return error
    return InputError("mention" if error.field == "query" else f"options.{error.field}", error.message)


def link_request_to_proto(
    mentions: Sequence[Mention], options: RetrieveRequest, index: str = ""
) -> pb.LinkRequest:
    """Return the wire's form of mentions with their options; the query of `options` is not sent."""
    asked = request_to_proto(options)
    asked.query = ""
    return pb.LinkRequest(index=index, mentions=map(_mention_to_proto, mentions), options=asked)


def _mention_to_proto(mention: Mention) -> pb.Mention:
    return pb.Mention(mention=mention.mention, left=mention.left, right=mention.right)


def answer_request_from_proto(message: pb.AnswerRequest) -> AnswerRequest:
    """Return the library's form of a request for JSON; raises InputError for a field out of range."""
    options = options_from_proto(message, AnswerRequest)
    source = message.WhichOneof("schema")
    if source is not None:
        options["schema" if source == "schema_json" else source] = getattr(message, source)
    return _checked(message.query, AnswerRequest, options)


def answer_request_to_proto(request: AnswerRequest, index: str = "") -> pb.AnswerRequest:
    """Return the wire's form of a request for JSON."""
    if not isinstance(request, AnswerRequest):
        raise wrong_type("request", request, AnswerRequest, further=", schema")
    options = options_to_proto(request, pb.AnswerRequest)
    schema: Any = request.schema  # kept as text
    named = {"schema_json": schema, "schema_name": request.schema_name}  # one is None, which is not sent
    return pb.AnswerRequest(index=index, query=request.query, **named, **options)


def score_request_from_proto(
    message: pb.ScoreRequest, mention_request: Callable[[Mention, RetrieveRequest], RetrieveRequest]
) -> ScoreRequest:
    """Return the library's form of titles to be scored; `mention_request` is the `ServedRetriever`'s.

    Raises:
        InputError: a field is out of range, or does not fit another.
    """
    query, prompt = message.query, message.prompt_template or None
    if message.HasField("mention"):
        if prompt is not None:
            raise InputError("prompt_template", "must be empty with a mention")
        asked = mention_request(mention_from_proto(message.mention), RetrieveRequest(_PLACEHOLDER))
        query, prompt = asked.query, asked.prompt
    if len(message.titles) > MAX_SCORED_TITLES:
        raise InputError("titles", f"must be 1 to {MAX_SCORED_TITLES}, got {len(message.titles)}")
    try:
        return ScoreRequest(query, tuple(message.titles), prompt)
    except InputError as error:
        raise score_error(error, message) from None


def score_error(error: InputError, message: pb.ScoreRequest) -> InputError:
    """Return an error with the message's name of the field."""
    if error.field == "query" and message.HasField("mention"):
        return InputError("mention", error.message)
    return error_on_wire(error, ScoreRequest)


def score_request_to_proto(
    subject: str | Mention, titles: Sequence[str], prompt: str | None = None, index: str = ""
) -> pb.ScoreRequest:
    """Return the wire's form of titles to be scored; raises InputError with the library's name of a field."""
    query = subject.mention if isinstance(subject, Mention) else subject
    checked = ScoreRequest(query, titles, prompt)  # type: ignore[arg-type]  # takes any iterable
    message = pb.ScoreRequest(index=index, titles=checked.titles, prompt_template=prompt or "")
    if isinstance(subject, Mention):
        message.mention.CopyFrom(_mention_to_proto(subject))
    else:
        message.query = subject
    return message


def complete_request_from_proto(message: pb.CompleteRequest) -> CompleteRequest:
    """Return the library's form of a prefix; raises InputError for a field out of range."""
    return _checked(message.prefix, CompleteRequest, options_from_proto(message, CompleteRequest))


MAX_ID_BYTES = 256


def check_stream_id(name: str) -> None:
    """Refuse an id that is too long, by InputError."""
    size = len(name.encode())
    if size > MAX_ID_BYTES:
        raise InputError("id", f"must be at most {MAX_ID_BYTES} bytes, got {size}")


_QUERIES: dict[type, Callable[[Any], Sequence[str]]] = {
    pb.RetrieveRequest: lambda m: (m.query,),
    pb.AnswerRequest: lambda m: (m.query,),
    pb.ScoreRequest: lambda m: (m.mention.mention if m.HasField("mention") else m.query,),
    pb.CompleteRequest: lambda m: (m.prefix,),
    pb.RetrieveStreamRequest: lambda m: (m.request.query,),
    pb.BatchRetrieveRequest: lambda m: [item.query for item in m.requests],
    pb.LinkRequest: lambda m: [item.mention for item in m.mentions],
}


def queries_of(message: object) -> Sequence[str]:
    """Return the query texts of a request of the API; none for other messages."""
    read = _QUERIES.get(type(message))
    return () if read is None else read(message)


# Memory of a request beside its texts, and of one id or title: as a message's, as Python's, and in lists.
_REQUEST_BYTES, _ITEM_BYTES = 4096, 112
# A text is held twice, by its message and by its request.
_COPIES = 2


def held_bytes(message: Any) -> int:
    """Return about how much memory a message takes together with the request that is made of it."""
    num_requests, num_items = _size(message)
    return _COPIES * int(message.ByteSize()) + num_requests * _REQUEST_BYTES + num_items * _ITEM_BYTES


def _size(message: Any) -> tuple[int, int]:
    """Return the number of requests in a message, and that of their ids and titles."""
    if isinstance(message, pb.RetrieveStreamRequest):
        return _size(message.request)
    if isinstance(message, pb.BatchRetrieveRequest):
        return len(message.requests), sum(_size(one)[1] for one in message.requests)
    if isinstance(message, pb.LinkRequest):
        return len(message.mentions), _size(message.options)[1]
    if isinstance(message, pb.RetrieveRequest | pb.CompleteRequest):
        return 1, len(message.allow_entity_ids.ids) + len(message.deny_entity_ids)
    return 1, len(message.titles) if isinstance(message, pb.ScoreRequest) else 0


# Where many messages may be in one: a message of nothing takes two bytes on the wire, 200 in memory.
_ITEMS = {pb.BatchRetrieveRequest: "requests", pb.LinkRequest: "mentions"}
# Most fields of a request beside its items, those that only a later version knows included.
_MAX_OTHER_FIELDS = 256
_MAX_SHIFT = 63


def check_fields(raw: bytes, kind: Any, most: int) -> None:
    """Refuse bytes of a message with far more items than `most` before they are parsed.

    Raises:
        InputError: there are too many items.
        ValueError, IndexError: the bytes are no message of this kind.
    """
    name = _ITEMS.get(kind)
    at = 0
    for _ in range(most + _MAX_OTHER_FIELDS if name else 0):
        if at >= len(raw):
            return
        tag, at = _varint(raw, at)
        match tag & 7:
            case 0:
                _, at = _varint(raw, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(raw, at)
                at += size
            case 5:
                at += 4
            case other:
                raise ValueError(f"wire type {other}")
    if name and at < len(raw):
        raise InputError(name, f"at most {most}, got more")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return an integer as protobuf writes it, and where it ends."""
    value = 0
    for shift in range(0, _MAX_SHIFT + 1, 7):
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a varint of more than ten bytes")
