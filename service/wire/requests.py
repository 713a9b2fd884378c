"""Converts queries between protobuf messages and the library's values: alone, as mentions, and in streams.

`queries_of` and `index_of` tell logs and traces what a message is about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from decoding.errors import PromptTooLongError
from retrieval.errors import InputError
from retrieval.types import Mention, RetrieveRequest
from service.client.reply import Reply
from service.errors import CallError
from service.pb.genret.v1 import index_service_pb2 as index_pb
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.wire.replies import DECODER_NUMBERS, DECODERS, METHOD_NUMBERS, METHODS, reply_from_proto
from service.wire.rpc_status import error_from_status

_AGGREGATES: dict[int, str | None] = {
    pb.AGGREGATION_UNSPECIFIED: None,
    pb.AGGREGATION_SUM: "sum",
    pb.AGGREGATION_MAX: "max",
}
_AGGREGATION_NUMBERS = {
    None: pb.AGGREGATION_UNSPECIFIED,
    "sum": pb.AGGREGATION_SUM,
    "max": pb.AGGREGATION_MAX,
}
# Scalars of a request that may be unset.
_OPTIONAL_FIELDS = (
    "k",
    "beam_size",
    "num_draws",
    "num_samples",
    "temperature",
    "top_m",
    "seed",
    "min_mass",
    "exact_budget",
    "shortlist_size",
    "vector_weight",
    "title_weight",
)
# Fields that are called otherwise here than in the library.
_WIRE_FIELDS = {
    "allow_ids": "allow_entity_ids.ids",
    "deny_ids": "deny_entity_ids",
    "aggregate": "aggregation",
    "prompt": "prompt_template",
}


def request_from_proto(message: pb.RetrieveRequest) -> RetrieveRequest:
    """Return the library's form of a request.

    Raises:
        InputError: a field is out of range.
    """
    if message.method not in METHODS:
        known = ", ".join(pb.RetrievalMethod.keys())
        raise InputError("method", f"must be one of {known}, got {message.method}")
    if message.aggregation not in _AGGREGATES:
        known = ", ".join(pb.Aggregation.keys())
        raise InputError("aggregation", f"must be one of {known}, got {message.aggregation}")
    if message.decoder not in DECODERS:
        known = ", ".join(map(pb.RetrievalMethod.Name, DECODERS))
        raise InputError("decoder", f"must be one of {known}, got {_method_name(message.decoder)}")
    options: dict[str, Any] = {
        name: getattr(message, name) for name in _OPTIONAL_FIELDS if message.HasField(name)
    }
    if message.HasField("allow_entity_ids"):
        options["allow_ids"] = tuple(message.allow_entity_ids.ids)
    try:
        return RetrieveRequest(
            query=message.query,
            method=METHODS[message.method],
            prompt=message.prompt_template or None,
            adaptive=message.adaptive,
            exact=message.exact,
            explain=message.explain,
            length_penalty=message.length_penalty,
            aggregate=_AGGREGATES[message.aggregation],
            decoder=DECODERS[message.decoder],
            shortlist_query=message.shortlist_query or None,
            filter=message.filter or None,
            deny_ids=tuple(message.deny_entity_ids),
            **options,
        )
    except InputError as error:
        raise request_error(error) from None


def request_error(error: InputError) -> InputError:
    """Return what is wrong with a request under the name the field has here."""
    return InputError(_WIRE_FIELDS.get(error.field, error.field), error.message)


def request_to_proto(request: RetrieveRequest, index: str = "") -> pb.RetrieveRequest:
    """Return the wire's form of a request."""
    options = {name: getattr(request, name) for name in _OPTIONAL_FIELDS}
    allowed = request.allow_ids
    return pb.RetrieveRequest(
        index=index,
        query=request.query,
        method=METHOD_NUMBERS[request.method],
        prompt_template=request.prompt or "",
        adaptive=request.adaptive,
        exact=request.exact,
        explain=request.explain,
        length_penalty=request.length_penalty,
        aggregation=_AGGREGATION_NUMBERS[request.aggregate],
        decoder=DECODER_NUMBERS[request.decoder],
        shortlist_query=request.shortlist_query or "",
        filter=request.filter or "",
        allow_entity_ids=None if allowed is None else pb.EntityIds(ids=allowed),
        deny_entity_ids=request.deny_ids,
        **{name: value for name, value in options.items() if value is not None},
    )


def _method_name(number: int) -> str:
    """Return what the wire calls a method, the number itself for one it does not know."""
    return pb.RetrievalMethod.Name(number) if number in pb.RetrievalMethod.values() else str(number)


def batch_request_to_proto(requests: Sequence[RetrieveRequest], index: str = "") -> pb.BatchRetrieveRequest:
    """Return the wire's form of several requests to one index."""
    return pb.BatchRetrieveRequest(requests=[request_to_proto(request, index) for request in requests])


_PLACEHOLDER = "-"
_DEFAULT_K = 1
# Options that every mention answers for itself, or the call does once.
_OWN = ("index", "query", "prompt_template")
_MENTION_FIELDS = ("mention", "left", "right")


def link_options_from_proto(message: pb.LinkRequest) -> RetrieveRequest:
    """Return what is asked of every mention, in the library's form; its query is a placeholder.

    Raises:
        InputError: an option is out of range, or may not be set here.
    """
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
    """Return what is wrong with one mention under the names that the fields have here."""
    if isinstance(error, PromptTooLongError):
        return InputError("mention", str(error))
    if not isinstance(error, InputError) or error.field in _MENTION_FIELDS:
        return error
    return InputError("mention" if error.field == "query" else f"options.{error.field}", error.message)


def link_request_to_proto(
    mentions: Sequence[Mention], options: RetrieveRequest, index: str = ""
) -> pb.LinkRequest:
    """Return the wire's form of mentions and what is asked of them; the query of `options` is not sent."""
    asked = request_to_proto(options)
    asked.query = ""
    return pb.LinkRequest(
        index=index,
        mentions=[pb.Mention(mention=m.mention, left=m.left, right=m.right) for m in mentions],
        options=asked,
    )


def link_reply_from_proto(
    mentions: Sequence[Mention], message: pb.LinkResponse, request_id: str = ""
) -> list[Reply | CallError]:
    """Return the answers and errors of mentions, in their order; a result's query is the mention's text."""
    return [
        reply_from_proto(mention.mention, result.response)
        if result.WhichOneof("outcome") == "response"
        else error_from_status(result.error, request_id)
        for mention, result in zip(mentions, message.results, strict=True)
    ]


MAX_ID_BYTES = 256


def check_stream_id(name: str) -> None:
    """Refuse an id that is too long.

    Raises:
        InputError: it is.
    """
    size = len(name.encode())
    if size > MAX_ID_BYTES:
        raise InputError("id", f"must be at most {MAX_ID_BYTES} bytes, got {size}")


def stream_request_to_proto(name: str, request: RetrieveRequest, index: str = "") -> pb.RetrieveStreamRequest:
    """Return the wire's form of a query of a stream."""
    return pb.RetrieveStreamRequest(id=name, request=request_to_proto(request, index))


def stream_reply_from_proto(
    query: str, message: pb.RetrieveStreamResponse, request_id: str = ""
) -> Reply | CallError:
    """Return the library's form of an answer to `query`."""
    if message.WhichOneof("outcome") == "response":
        return reply_from_proto(query, message.response)
    return error_from_status(message.error, request_id)


_QUERIES: dict[type, Callable[[Any], Sequence[str]]] = {
    pb.RetrieveRequest: lambda m: (m.query,),
    pb.AnswerRequest: lambda m: (m.query,),
    pb.ScoreRequest: lambda m: (m.mention.mention if m.HasField("mention") else m.query,),
    pb.RetrieveStreamRequest: lambda m: (m.request.query,),
    pb.BatchRetrieveRequest: lambda m: [item.query for item in m.requests],
    pb.LinkRequest: lambda m: [item.mention for item in m.mentions],
}
_INDEXES: dict[type, Callable[[Any], Any]] = {
    pb.RetrieveResponse: lambda m: m.index,
    pb.AnswerResponse: lambda m: m.index,
    pb.ScoreResponse: lambda m: m.index,
    index_pb.GetIndexResponse: lambda m: m.index,
    index_pb.ReloadIndexResponse: lambda m: m.index,
    # All items of these name one index each; the first answer's stands for them when they agree.
    pb.BatchRetrieveResponse: lambda m: _common([item.response.index for item in m.results]),
    pb.LinkResponse: lambda m: _common([item.response.index for item in m.results]),
}


def queries_of(message: object) -> Sequence[str]:
    """Return the texts that a request of the API is about; none for other messages."""
    read = _QUERIES.get(type(message))
    return () if read is None else read(message)


def index_of(message: object) -> tuple[str, str]:
    """Return name and version of the index that a response is from; empty when there is no single one."""
    read = _INDEXES.get(type(message))
    index = None if read is None else read(message)
    return ("", "") if index is None else (index.name, index.version)


def _common(indexes: Sequence[Any]) -> Any:
    named = [index for index in indexes if index.name]
    same = {(index.name, index.version) for index in named}
    return named[0] if len(same) == 1 else None
