"""Reranks documents as Cohere and Jina do: each is scored as a title, exactly, by the method Score."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from genret.retrieval.errors import InputError
from genret.retrieval.score_types import MAX_SCORED_TITLES
from genret.service.call import current_scope
from genret.service.gateway.forms import Form, MethodCall, blamed, fields, shape, typed
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.wire.json import json_bytes, message_from_dict

_DOCUMENT = {
    "description": "A name as a text, or as an object with the text in its field text.",
    "anyOf": [{"type": "string"}, {"type": "object", "required": ["text"]}],
    "properties": {"text": typed("string", "The name.")},
}
_REQUEST = fields(
    ("query", "documents"),
    model=typed("string", "Name of the index whose model scores; without it the default one."),
    query=typed("string", "The query text. Must not be blank."),
    documents={
        "type": "array",
        "description": f"Names, from 1 to {MAX_SCORED_TITLES:,}, titles of the index or not; none blank.",
        "items": _DOCUMENT,
        "minItems": 1,
        "maxItems": MAX_SCORED_TITLES,
    },
    top_n=typed("integer", "Most results, 1 or more. Without it all documents.", minimum=1),
    return_documents=typed("boolean", "Whether results hold their documents' texts. Without it they do not."),
    max_tokens_per_doc=typed("integer", "No effect on the answer: no document is cut.", minimum=1),
)
_RESULT = shape(
    index=typed("integer", "Position in documents, from 0."),
    relevance_score=typed(
        "number", "The model's probability of the document as the answer: exp(logprob); 0 without one."
    ),
    logprob=typed(
        ["number", "null"], "Its natural logarithm; null for a text longer than the model has room for."
    ),
    probability=typed(
        ["number", "null"], "Its probability among the distinct documents given; null as logprob."
    ),
    entity_ids=typed(
        "array", "Entities of that name; empty where the index has none.", items={"type": "string"}
    ),
)
_RESULT["properties"]["document"] = shape(text=typed("string", "The document."))
_TOKENS = typed("integer", "Tokens of the prompt, and those that the model computed behind it.")
_REPLY = shape(
    id=typed("string", "Id of the request."),
    model=typed("string", "Name of the index."),
    results=typed("array", "Those with the greatest logprob first.", items=_RESULT),
    usage=shape(total_tokens=_TOKENS),
    meta=shape(
        api_version=shape(version=typed("string", "Version of Cohere's API.")),
        tokens=shape(
            input_tokens=typed("integer", "Tokens of the prompt."),
            output_tokens=typed("integer", "Tokens that the model computed behind it."),
        ),
    ),
)
_WIRE = {"index": "model", "titles": "documents"}


def _read(version: str, body: dict[str, Any]) -> MethodCall:
    texts = [one if isinstance(one, str) else one["text"] for one in body["documents"]]
    asked = {"index": body.get("model", ""), "query": body["query"], "titles": texts}
    write = partial(_write, version, body.get("top_n"), body.get("return_documents", False))
    try:
        return MethodCall(message_from_dict(asked, pb.ScoreRequest()), "Score", write)
    except InputError as error:
        raise InputError(_field(error.field), error.message) from None


def _write(version: str, top_n: float | None, return_documents: bool, reply: pb.ScoreResponse) -> bytes:
    def likely(index: int) -> float:
        score = reply.scores[index]
        return -score.logprob if score.HasField("logprob") else math.inf

    order = sorted(range(len(reply.scores)), key=likely)[: None if top_n is None else int(top_n)]
    scope = current_scope()
    asked, computed = 0 if scope is None else scope.prompt_tokens, reply.num_nodes
    written = {
        "id": "" if scope is None else scope.request_id,
        "model": reply.index.name,
        "results": [_result(i, reply.scores[i], return_documents) for i in order],
        "usage": {"total_tokens": asked + computed},
        "meta": {
            "api_version": {"version": version},
            "tokens": {"input_tokens": asked, "output_tokens": computed},
        },
    }
    return json_bytes(written)


def _result(index: int, score: pb.TitleScore, with_document: bool) -> dict[str, Any]:
    known = score.HasField("logprob")
    found = {
        "index": index,
        "relevance_score": min(1.0, math.exp(score.logprob)) if known else 0.0,
        "logprob": score.logprob if known else None,
        "probability": score.probability if known else None,
        "entity_ids": list(score.entity_ids),
    }
    return found | ({"document": {"text": score.title}} if with_document else {})


def _field(name: str) -> str:
    head, bracket, rest = name.partition("[")
    return _WIRE.get(head, head) + bracket + rest


def _refuse(told: dict[str, Any]) -> dict[str, Any]:
    """Return a failure as everywhere in the API, with Cohere's `message` and Jina's `detail`."""
    field, text = blamed(told)
    message = f"{_field(field)}: {text}" if field else text
    return {"message": message, "detail": message, "error": {**told, "message": message}}


RERANK, RERANK_2 = (
    Form(
        name,
        "Order names by how likely the model is to answer the query with each. In the shape of Cohere's and "
        "Jina's rerankers; results have genret's numbers beside relevance_score.",
        reply=_REPLY,
        refuse=_refuse,
        request=_REQUEST,
        read=partial(_read, version),
        example={"query": "capital of Bavaria", "documents": ["Nuremberg", "Munich"], "top_n": 1},
    )
    for name, version in (("Rerank", "1"), ("Rerank2", "2"))
)
