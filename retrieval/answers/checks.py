"""What a request for a JSON answer may ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from decoding.grammar.options import ExtraProperties, Formats, PropertyOrder, Whitespace
from decoding.params import MAX_BEAM_SIZE, MAX_DRAWS, MAX_K
from retrieval.arguments import check_text, integer, number
from retrieval.errors import InputError

if TYPE_CHECKING:
    from retrieval.answers.types import AnswerRequest

ANSWER_METHODS = ("greedy", "sample", "beam", "disc")
MAX_ANSWER_TOKENS = 65_536
_CHOICES: dict[str, tuple[str, ...]] = {
    "method": ANSWER_METHODS,
    "whitespace": get_args(Whitespace),
    "property_order": get_args(PropertyOrder),
    "formats": get_args(Formats),
    "extra_properties": get_args(ExtraProperties),
}


def checked_answer_fields(request: AnswerRequest) -> dict[str, Any]:
    """Return fields of a request as they are kept: plain numbers, the schema as text.

    Raises:
        InputError: a field is out of range; it is named.
    """
    check_text("query", request.query)
    if not request.query.strip():
        raise InputError("query", "must not be empty")
    for name, choices in _CHOICES.items():
        if getattr(request, name) not in choices:
            raise InputError(name, f"must be one of {', '.join(choices)}; got {getattr(request, name)!r}")
    fields: dict[str, Any] = {
        "max_tokens": integer("max_tokens", request.max_tokens, 1, MAX_ANSWER_TOKENS),
        "beam_size": integer("beam_size", request.beam_size, 1, MAX_BEAM_SIZE),
        "num_draws": integer("num_draws", request.num_draws, 1, MAX_DRAWS),
        "temperature": number("temperature", request.temperature, 0.01, 100.0),
    }
    if request.shortlist is not None:
        fields["shortlist"] = integer("shortlist", request.shortlist, 1, MAX_K)
    if request.seed is not None:
        fields["seed"] = integer("seed", request.seed, -(2**63), 2**63 - 1)
    if not isinstance(request.forced_spans, bool):
        raise InputError("forced_spans", f"must be True or False, got {request.forced_spans!r}")
    if request.prompt is not None:
        check_text("prompt", request.prompt)
    return fields | _checked_schema(request)


def _checked_schema(request: AnswerRequest) -> dict[str, Any]:
    if (request.schema is None) == (request.schema_name is None):
        got = "neither" if request.schema is None else "both"
        raise InputError("schema", f"needs either a schema or the name of one, got {got}")
    if request.schema_name is not None:
        check_text("schema_name", request.schema_name)
        return {}
    return {"schema": schema_text(request.schema)}


def schema_text(schema: object) -> str:
    """Return a schema as JSON text; text is taken as it is.

    Raises:
        InputError: it is neither text nor a JSON object or boolean.
    """
    if isinstance(schema, str):
        check_text("schema", schema)
        return schema
    if not isinstance(schema, Mapping | bool):
        raise InputError("schema", f"must be JSON text, a mapping or a boolean, got {type(schema).__name__}")
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("schema", f"is no JSON: {error}") from None
    check_text("schema", text)
    return text


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")
