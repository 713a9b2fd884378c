"""The check that every answer passes before it leaves, and the titles that are part of it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from genret.decoding.grammar.json_grammar import TitleSlotValue
from genret.decoding.grammar.leaves.leaf import TitleSlotName
from genret.retrieval.answers.validation import AnswerValidator, InvalidAnswerError, standing


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


TITLES, PEOPLE = TitleSlotName("titles"), TitleSlotName("people")


def values(text: bytes, *written: tuple[str, str, TitleSlotName]) -> list[TitleSlotValue]:
    """Pointers, strings and sets, in the order in which the strings stand in the document."""
    found: list[TitleSlotValue] = []
    at = 0
    for pointer, string, name in written:
        spelled = json.dumps(string, ensure_ascii=False).encode()
        if not found or found[-1].pointer != pointer or found[-1].name == name:
            at = text.index(spelled, at) + len(spelled)
        found.append(TitleSlotValue(pointer, name, (0,), at - len(spelled), at))
    return found


@pytest.mark.parametrize(
    ("document", "written", "left"),
    [
        ('"A"', [("", "A", TITLES)], [0]),
        (
            '{"u":"A","v":["B","B"]}',
            [("/u", "A", TITLES), ("/v/0", "B", TITLES), ("/v/1", "B", TITLES)],
            [0, 1, 2],
        ),
        ('{"a/b":"A","m~n":"B"}', [("/a~1b", "A", TITLES), ("/m~0n", "B", TITLES)], [0, 1]),
        ('{"u":"A"}', [("/u", "A", PEOPLE), ("/u", "A", TITLES)], [0, 1]),
        ('{"u":"A","u":"B"}', [("/u", "A", TITLES), ("/u", "B", TITLES)], [1]),
        ('{"u":"A","u":"A"}', [("/u", "A", TITLES), ("/u", "A", TITLES)], [1]),
        ('{"u":"A","u":"plain"}', [("/u", "A", TITLES)], []),
        ('{"u":"A","u":5}', [("/u", "A", TITLES)], []),
        ('{"u":{"t":"A"},"u":{"s":"B"}}', [("/u/t", "A", TITLES), ("/u/s", "B", TITLES)], [1]),
        (
            '{"u":["A","B"],"u":["C"]}',
            [("/u/0", "A", TITLES), ("/u/1", "B", TITLES), ("/u/0", "C", TITLES)],
            [2],
        ),
    ],
    ids=[
        "alone",
        "several",
        "escaped",
        "two sets",
        "again",
        "the same",
        "plain",
        "number",
        "inside",
        "items",
    ],
)
def test_what_a_parser_keeps_is_reported(
    document: str, written: Sequence[tuple[str, str, TitleSlotName]], left: list[int]
) -> None:
    text = document.encode()
    found = values(text, *written)
    assert standing(found, text) == [found[number] for number in left]
