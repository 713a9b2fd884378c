"""The check every answer passes before it leaves: jsonschema, with numbers as decimals."""

from __future__ import annotations

import json

import pytest

from retrieval.answers.validation import AnswerValidator, InvalidAnswerError


def check(schema: object, text: str) -> None:
    AnswerValidator(json.dumps(schema)).check(text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number", "multipleOf": 0.01}, "0.07"),  # 0.07 / 0.01 is 7.000000000000001 in binary
        ({"type": "integer"}, "1.0"),
        ({"type": "integer"}, "1e3"),
        ({"minimum": 0.1}, "0.1"),
        ({"items": [{"type": "string"}], "additionalItems": False}, '["a"]'),
        ({"minimum": 3, "exclusiveMinimum": True}, "4"),
        ({"dependencies": {"a": ["b"]}}, '{"a": 1, "b": 2}'),
        ({"type": "string", "x-genret-index": "titles"}, '"anything"'),
    ],
)
def test_valid_documents_pass(schema: object, text: str) -> None:
    check(schema, text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "number", "multipleOf": 0.01}, "0.075"),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer"}, "true"),
        ({"items": [{"type": "string"}], "additionalItems": False}, '["a", 1]'),
        ({"minimum": 3, "exclusiveMinimum": True}, "3"),
        ({"dependencies": {"a": ["b"]}}, '{"a": 1}'),
        ({"type": "string", "format": "date"}, '"2023-02-29"'),
        (True, '{"a": '),
        (True, "NaN"),
        (False, "1"),
    ],
)
def test_what_is_not_valid_is_refused(schema: object, text: str) -> None:
    with pytest.raises(InvalidAnswerError):
        check(schema, text)


def test_the_message_says_where_and_does_not_quote_the_document() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    with pytest.raises(
        InvalidAnswerError, match=r"\$\.a\[1\] breaks 'type' at #/properties/a/items/type"
    ) as caught:
        check(schema, '{"a": [1, "secret"]}')
    assert "secret" not in str(caught.value)


def test_formats_are_only_checked_where_they_are_enforced() -> None:
    AnswerValidator('{"format": "date"}', "annotate").check('"no date"')
