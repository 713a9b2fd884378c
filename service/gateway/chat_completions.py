"""Answers chat and text completions as OpenAI's API has them, by the methods Answer and Retrieve.

With a response_format the answer is a JSON document, without one the best title.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import Message

from genret.retrieval.errors import InputError
from genret.service.call import current_scope
from genret.service.gateway.forms import EVENTS_TYPE, Form, MethodCall, Schema, blamed, fields, shape, typed
from genret.service.gateway.http_calls import JSON_TYPE
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.json import json_bytes, message_from_dict, message_to_dict


def _only(value: Any, description: str) -> Schema:
    return {"enum": [value], "description": description}


_NO_EFFECT = "No effect on the answer."
_FORMAT = fields(
    ("type",),
    type={
        "enum": ["text", "json_object", "json_schema"],
        "description": "text: the best title; json_object: any object; json_schema: one of the schema.",
    },
    json_schema=fields(
        ("name",),
        name=typed("string", "Without a schema, name of one that the server was started with."),
        description=typed(["string", "null"], _NO_EFFECT),
        schema=typed("object", "A JSON Schema; strings in it may be titles: x-genret-index."),
        strict=typed(["boolean", "null"], "No effect: every schema holds strictly."),
    ),
)
_OPTIONS: dict[str, Schema] = {
    "model": typed("string", "Name of the index; without it the default one."),
    "response_format": _FORMAT
    | {
        "description": 'As {"type": "json_schema", "json_schema": {"name": "Trip", "schema": {...}}}, or an '
        "object with the type json_object or text. Without it the best title."
    },
    "temperature": typed("number", "0 or unset: the likeliest. Above 0: a sample.", minimum=0, maximum=2),
    "seed": typed("integer", "Of a sample: the same seed gives the same answer."),
    "top_p": _only(1, "Only 1: a sample is of the whole distribution."),
    "max_tokens": typed(
        "integer", "Most tokens of a document, which is closed in time; titles are whole.", minimum=1
    ),
    "n": typed("integer", "Without a response_format: how many titles.", minimum=1, maximum=1000),
    "stop": typed("array", "Only none: an answer ends where it is complete.", maxItems=0),
    "presence_penalty": _only(0, "Only 0: the model's probabilities hold."),
    "frequency_penalty": _only(0, "Only 0: the model's probabilities hold."),
    "logit_bias": typed("object", "Only an empty one: the model's probabilities hold.", maxProperties=0),
    "stream": typed("boolean", "Whether the answer comes as events; it comes in one piece."),
    "stream_options": fields(
        include_usage=typed("boolean", "Whether the last event has usage."),
        include_obfuscation=typed("boolean", _NO_EFFECT),
    )
    | {"description": "Options of events."},
    "user": typed("string", _NO_EFFECT),
    "genret": typed(
        "object", "Further fields of AnswerRequest, or of RetrieveRequest without a response_format."
    ),
}
_NO_TOKENS = "none: logprob in genret is that of the whole answer."
_PART = fields(
    ("type", "text"), type=_only("text", "Texts alone."), text=typed("string", "A piece of the message.")
)
_MESSAGE = fields(
    ("role", "content"),
    role={
        "enum": ["system", "developer", "user", "assistant"],
        "description": "One of system, developer, user and assistant.",
    },
    content={
        "description": "A text, or parts of type text.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": _PART, "minItems": 1}],
    },
    **{
        name: _only(None, "Only null: there are texts alone.")
        for name in ("refusal", "annotations", "audio", "function_call", "tool_calls")
    },
)
_CHAT_REQUEST = fields(
    ("messages",),
    messages=typed("array", "The conversation, at least one message, as texts.", items=_MESSAGE, minItems=1),
    **_OPTIONS,
    max_completion_tokens=typed("integer", "Another name of max_tokens.", minimum=1),
    logprobs=_only(False, f"Only false, there are {_NO_TOKENS}"),
    top_logprobs=_only(0, f"Only 0, there are {_NO_TOKENS}"),
    tools=typed("array", "Only none: tools are not supported.", maxItems=0),
    tool_choice={"enum": ["none", "auto"], "description": "Only none and auto, as there are no tools."},
    parallel_tool_calls=typed("boolean", _NO_EFFECT),
    metadata=typed("object", _NO_EFFECT),
    store=_only(False, "Only false: nothing is kept."),
    service_tier={"enum": ["auto", "default"], "description": "Only auto and default."},
    safety_identifier=typed("string", _NO_EFFECT),
    prompt_cache_key=typed("string", _NO_EFFECT),
)
_COMPLETION_REQUEST = fields(
    ("prompt",),
    prompt={
        "description": "The query text, or a list that holds nothing else.",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1},
        ],
    },
    **_OPTIONS,
    best_of=_only(1, "Only 1."),
    echo=_only(False, "Only false."),
    logprobs=_only(None, f"Only null, there are {_NO_TOKENS}"),
)


class _Kind(NamedTuple):
    """One of the two kinds of completions: name of what holds the query, prefix of ids, names of objects."""

    query: str
    prefix: str
    whole: str
    piece: str

    @property
    def is_chat(self) -> bool:
        return self.query == "messages"


_CHAT = _Kind("messages", "chatcmpl-", "chat.completion", "chat.completion.chunk")
_TEXT = _Kind("prompt", "cmpl-", "text_completion", "text_completion")


def _text(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _queries(kind: _Kind, body: dict[str, Any], wants_title: bool) -> tuple[str, str]:
    """Return the query text, and the user's last message, with which evidence is asked; empty: the query.

    Instructions (system, developer) are part of a query for a document, not of one for a title.
    """
    if not kind.is_chat:
        prompt = body["prompt"]
        return (prompt if isinstance(prompt, str) else prompt[0]), ""
    turns = [(message["role"], _text(message["content"])) for message in body["messages"]]
    if wants_title:
        turns = [turn for turn in turns if turn[0] in ("user", "assistant")] or turns
    is_dialogue = any(role == "assistant" for role, _ in turns)
    query = "\n".join(f"{role}: {text}" if is_dialogue else text for role, text in turns)
    last = next((text for role, text in reversed(turns) if role == "user"), "")
    return query, last if len(turns) > 1 else ""


def _read(kind: _Kind, body: dict[str, Any]) -> MethodCall:
    form = body.get("response_format", {"type": "text"})
    query, last = _queries(kind, body, form["type"] == "text")
    temperature, extra = body.get("temperature", 0), body.get("genret", {})
    own: dict[str, Any] = {"index": body.get("model", ""), "query": query}
    if temperature:
        own |= {"temperature": temperature} | ({"seed": body["seed"]} if "seed" in body else {})
    limits = {name: body[name] for name in ("max_completion_tokens", "max_tokens") if name in body}
    message: Message
    num_wanted, is_title = body.get("n", 1), form["type"] == "text"
    if num_wanted > 1 and (temperature or not is_title):
        cause = "temperature above 0" if is_title else "response_format"
        raise InputError("n", f"must be 1 with a {cause}, got {num_wanted}: ask once for each answer")
    if is_title:
        own["k"] = num_wanted
        if temperature:
            own |= {"method": "disc", "num_samples": 1}
        elif last and not {"method", "shortlist_query"} & set(extra):
            own["shortlist_query"] = last
        message, method = pb.RetrieveRequest(), "Retrieve"
    else:
        if len(set(limits.values())) > 1:
            raise InputError("max_tokens", "must not differ from max_completion_tokens")
        own |= _schema(form)
        if limits:
            own["max_tokens"] = min(limits.values())  # they are equal
        if temperature:
            own["method"] = "sample"
        message, method = pb.AnswerRequest(), "Answer"
    for name in extra:
        if name in own:
            raise InputError(f"genret.{name}", "is said by another field of the request")
    streams = body.get("stream", False)
    with_usage = body.get("stream_options", {}).get("include_usage", False)
    write = partial(_streamed, kind, with_usage) if streams else partial(_whole, kind)
    try:
        message_from_dict(extra | own, message)
    except InputError as error:
        is_extra = error.field.partition(".")[0] in extra
        raise InputError(f"genret.{error.field}", error.message) if is_extra else error from None
    return MethodCall(message, method, write, EVENTS_TYPE if streams else JSON_TYPE)


def _schema(form: dict[str, Any]) -> dict[str, str]:
    """Return what a response_format says of the schema, as fields of AnswerRequest."""
    if form["type"] == "json_object":
        return {"schema_json": '{"type": "object"}'}
    if "json_schema" not in form:
        raise InputError("response_format.json_schema", "must be given with the type json_schema")
    named = form["json_schema"]
    if "schema" not in named:
        return {"schema_name": named["name"]}
    return {"schema_json": json.dumps(named["schema"], ensure_ascii=False)}


class _Completion(NamedTuple):
    """An answer: the head of every object of it, its texts (None: nothing answers), tokens, and message."""

    head: dict[str, Any]
    texts: list[str | None]
    usage: dict[str, int]
    message: dict[str, Any]

    @classmethod
    def of(cls, kind: _Kind, reply: Any, is_piece: bool) -> _Completion:
        scope = current_scope()
        asked = 0 if scope is None else scope.prompt_tokens
        written: int = reply.num_tokens if isinstance(reply, pb.AnswerResponse) else reply.num_nodes
        head = {
            "id": kind.prefix + ("" if scope is None else scope.request_id),
            "object": kind.piece if is_piece else kind.whole,
            "created": int(time.time()),
            "model": reply.index.name,
            "system_fingerprint": f"fp_{reply.index.version}",
        }
        usage = {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}
        return cls(head, _texts(reply), usage, message_to_dict(reply))


def _texts(reply: Any) -> list[str | None]:
    if isinstance(reply, pb.AnswerResponse):
        return [reply.json]
    return [candidate.title for candidate in reply.candidates] or [None]


def _said(text: str | None) -> dict[str, Any]:
    refusal = "no title of the index answers" if text is None else None
    return {"role": "assistant", "content": text, "refusal": refusal}


def _choice(index: int, is_finished: bool, **said: Any) -> dict[str, Any]:
    return {"index": index, "logprobs": None, "finish_reason": "stop" if is_finished else None, **said}


def _whole(kind: _Kind, reply: Any) -> bytes:
    found = _Completion.of(kind, reply, is_piece=False)
    choices = [
        _choice(i, True, message=_said(text)) if kind.is_chat else _choice(i, True, text=text or "")
        for i, text in enumerate(found.texts)
    ]
    return json_bytes(found.head | {"choices": choices, "usage": found.usage, "genret": found.message})


def _streamed(kind: _Kind, with_usage: bool, reply: Any) -> bytes:
    found = _Completion.of(kind, reply, is_piece=True)
    places = range(len(found.texts))
    if kind.is_chat:
        begun = [_choice(i, False, delta=_said(found.texts[i])) for i in places]
        ended = [_choice(i, True, delta={}) for i in places]
        pieces: list[dict[str, Any]] = [{"choices": begun}, {"choices": ended, "genret": found.message}]
    else:
        texts = [_choice(i, True, text=found.texts[i] or "") for i in places]
        pieces = [{"choices": texts, "genret": found.message}]
    if with_usage:
        pieces = [piece | {"usage": None} for piece in pieces] + [{"choices": [], "usage": found.usage}]
    events = [b"data: " + json_bytes(found.head | piece) + b"\n\n" for piece in pieces]
    return b"".join([*events, b"data: [DONE]\n\n"])


_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_WIRE = {
    "index": "model",
    "schema_json": "response_format.json_schema.schema",
    "schema_name": "response_format.json_schema.name",
}
_OF_GENRET = {f.name for kind in (pb.AnswerRequest, pb.RetrieveRequest) for f in kind.DESCRIPTOR.fields}
_ERROR = shape(
    error=shape(
        message=typed("string", "For people."),
        type=typed("string", "Kind of error, as invalid_request_error."),
        param=typed(["string", "null"], "Field of the request that it is about."),
        code=typed("string", "For programs, as model_not_found, or the status of gRPC in lower case."),
    )
)


def _refuse(request: Schema, query: str, told: dict[str, Any]) -> dict[str, Any]:
    field, text = blamed(told)
    status = told["code"]
    param = {**_WIRE, "query": query}.get(field, field)
    if param in _OF_GENRET and param not in request.get("properties", {}):
        param = f"genret.{param}"
    usual = "server_error" if status >= 500 else "invalid_request_error"
    error = {
        "message": f"{param}: {text}" if param else text,
        "type": _TYPES.get(status, usual),
        "param": param or ("model" if status == 404 else None),
        "code": _CODES.get(status, told["status"].lower()),
    }
    return {"error": error}


def path_refused(told: dict[str, Any]) -> dict[str, Any]:
    """Return a path or verb that is not served as OpenAI, Cohere (`message`) and Jina (`detail`) would."""
    message = told["message"]
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return {"message": message, "detail": message, "error": error}


def _model(index: index_pb.Index) -> dict[str, Any]:
    return {"id": index.name, "object": "model", "created": index.loaded_at.seconds, "owned_by": "genret"}


_MODEL = shape(
    id=typed("string", "Name of the index."),
    object=_only("model", "Always model."),
    created=typed("integer", "When it was taken into service, seconds since 1970."),
    owned_by=_only("genret", "Always genret."),
)
_USAGE = shape(
    prompt_tokens=typed("integer", "Tokens of the prompt."),
    completion_tokens=typed(
        "integer", "Tokens of the document; of titles, those computed behind the prompt."
    ),
    total_tokens=typed("integer", "Both."),
)


def _reply(kind: _Kind, **said: Schema) -> Schema:
    choice = shape(
        index=typed("integer", "Its position."),
        **said,
        logprobs=_only(None, "Always null."),
        finish_reason=_only("stop", "Always stop: answers are complete."),
    )
    return shape(
        id=typed("string", "Id of the request, with a prefix."),
        object=_only(kind.whole, f"Always {kind.whole}."),
        created=typed("integer", "When it was written, seconds since 1970."),
        model=typed("string", "Name of the index."),
        system_fingerprint=typed("string", "Version of the index."),
        choices=typed("array", "One document, or the best titles.", items=choice),
        usage=_USAGE | {"description": "Tokens."},
        genret=typed("object", "The AnswerResponse, or without a response_format the RetrieveResponse."),
    )


def _form(
    name: str, kind: _Kind, description: str, request: Schema, reply: Schema, example: dict[str, Any]
) -> Form:
    refuse = partial(_refuse, request, kind.query)
    read = partial(_read, kind)
    return Form(name, description, reply, refuse, _ERROR, request, read, example=example, streams=True)


CHAT = _form(
    "ChatCompletions",
    _CHAT,
    "Answer a conversation by a JSON document or the best title, in the shape of OpenAI's chat completions.",
    _CHAT_REQUEST,
    _reply(
        _CHAT,
        message=shape(
            role=_only("assistant", "Always assistant."),
            content=typed(["string", "null"], "The document, or a title; null where nothing answers."),
            refusal=typed(["string", "null"], "That nothing answers."),
        )
        | {"description": "The answer."},
    ),
    {"messages": [{"role": "user", "content": "capital of Bavaria"}]},
)
COMPLETIONS = _form(
    "Completions",
    _TEXT,
    "Answer a text by a JSON document or the best title, in the shape of OpenAI's completions.",
    _COMPLETION_REQUEST,
    _reply(_TEXT, text=typed("string", "The document, or a title; empty where nothing answers.")),
    {"prompt": "capital of Bavaria"},
)


def _models(name: str, description: str, reply: Schema, write: Callable[[Any], dict[str, Any]]) -> Form:
    refuse = partial(_refuse, {}, "")
    return Form(name, description, reply, refuse, _ERROR, write=lambda message: json_bytes(write(message)))


MODELS = _models(
    "ListModels",
    "The indexes as models, in the shape of OpenAI's.",
    shape(object=_only("list", "Always list."), data=typed("array", "The indexes.", items=_MODEL)),
    lambda reply: {"object": "list", "data": [_model(index) for index in reply.indexes]},
)
ONE_MODEL = _models("GetModel", "One index as a model.", _MODEL, lambda reply: _model(reply.index))
