"""Titles in values that a parser drops, since their key comes again, are no part of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from decoding.grammar.json_grammar import TitleSlotValue
from decoding.grammar.leaves.leaf import TitleSlotName
from retrieval.answers.validation import standing

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
