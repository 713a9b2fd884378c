"""Requests for JSON answers: what they may hold, and that schemas are kept as text in their own order."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from retrieval.answers.answer_types import AnswerRequest, AnswerResult
from retrieval.errors import InputError


def test_a_mapping_is_kept_as_text_with_its_order() -> None:
    schema = MappingProxyType({"type": "object", "properties": {"b": True, "a": {"const": "ü"}}})
    text = AnswerRequest("q", schema).schema
    assert text == '{"type": "object", "properties": {"b": true, "a": {"const": "ü"}}}'
    assert AnswerRequest("q", True).schema == "true"
    assert AnswerRequest("q", ' {"a":1}').schema == ' {"a":1}'


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": ""}, "query: must not be empty"),
        ({"query": 3}, "query: must be text, got int"),
        ({"schema": None}, "schema: needs either a schema or the name of one, got neither"),
        ({"schema_name": "x"}, "schema: needs either a schema or the name of one, got both"),
        ({"schema": 5}, "schema: must be JSON text, a mapping or a boolean, got int"),
        ({"schema": {"a": float("nan")}}, "schema: is no JSON: "),
        ({"schema": {"a": object()}}, "schema: is no JSON: a object is no JSON value"),
        ({"schema": "\ud800"}, "schema: not valid Unicode"),
        ({"method": "best"}, "method: must be one of greedy, sample, beam, disc; got 'best'"),
        ({"max_tokens": 0}, r"max_tokens: must be in \[1, 65536\], got 0"),
        ({"max_tokens": 1.5}, "max_tokens: must be an integer, got 1.5"),
        ({"temperature": 0.0}, r"temperature: must be in \[0.01, 100\], got 0.0"),
        ({"seed": 2**63}, "seed: must be in "),
        ({"beam_size": 0}, r"beam_size: must be in \[1, 1000\], got 0"),
        ({"num_draws": 257}, r"num_draws: must be in \[1, 256\], got 257"),
        ({"shortlist": 0}, r"shortlist: must be in \[1, 1000\], got 0"),
        ({"whitespace": "tabs"}, "whitespace: must be one of compact, spaced, flexible; got 'tabs'"),
        ({"property_order": "az"}, "property_order: must be one of schema, any; got 'az'"),
        ({"formats": True}, "formats: must be one of assert, annotate; got True"),
        ({"extra_properties": "no"}, "extra_properties: must be one of allowed, declared; got 'no'"),
        ({"forced_spans": 1}, "forced_spans: must be True or False, got 1"),
        ({"prompt": 1}, "prompt: must be text, got int"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AnswerRequest(**{"query": "q", "schema": "true", **fields})


def test_a_deep_mapping_is_refused_in_words() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(InputError, match="schema: is no JSON"):
        AnswerRequest("q", schema)


def test_the_width_of_a_request_is_its_branches() -> None:
    widths = {
        m: AnswerRequest("q", True, method=m, beam_size=7, num_draws=3).width for m in ("greedy", "sample")
    }
    assert widths == {"greedy": 1, "sample": 1}
    assert AnswerRequest("q", True, method="beam", beam_size=7).width == 7
    assert AnswerRequest("q", True, method="disc", num_draws=3).width == 3


def test_the_value_of_a_result_is_its_text_parsed() -> None:
    result = AnswerResult("q", "greedy", '{"a": [1, null]}', (), logprob=-1.0, num_tokens=3)
    assert result.value == {"a": [1, None]}
    assert json.dumps(result.value) == result.text
