from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.retrieval.linking.finding.folding import (
    PARAGRAPH_BREAK,
    FoldedWindow,
    fold_name,
    fold_piece,
    is_boundary,
    is_continuation,
    start_pattern,
    unit_begin,
)

ODD = [
    *"aB -’–\t\r\n\u00a0\u00ad\u2028\u2029\u0301\u0327\u0345ßİǰŉ東กกั\u1161ᄀÅﬁ\x00",
    "e\u0301",
    "\u212b",
    "a" + "\u0301\u0327" * 20,
]
TEXTS = st.lists(st.sampled_from(ODD) | st.characters(exclude_categories=["Cs"]), max_size=30).map("".join)


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("  Andre\u0301 \t O’Neill\u00a0 ", "andr\u00e9 o'neill"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("İzmir", "i\u0307zmir"),
        ("Hawaiʻi", "hawai'i"),
        ("Franco–Prussian non\u2011breaking em—dash", "franco-prussian non-breaking em—dash"),
        ("“Heroes”", '"heroes"'),
        ("hy\u00adphen\u200b", "hyphen"),
        ("ΟΔΥΣΣΕΥΣ", "οδυσσευσ"),
        ("e\u00ad\u0301", "\u00e9"),
        ("\u00ad", ""),
    ],
)
def test_names_are_folded(text: str, folded: str) -> None:
    assert fold_name(text) == folded


def test_case_can_be_kept() -> None:
    assert fold_name("New\nYork’s  Straße İ", keep_case=True) == "New York's Straße İ"


@pytest.mark.parametrize(
    "blank", ["\n\n", "\r\n\r\n", "\n \t\n", "\r\r", "\u2029", "\n\n\n", "\x0b\x0c", "\n\u2028"]
)
def test_paragraphs_break_at(blank: str) -> None:
    match = PARAGRAPH_BREAK.search(f"a{blank}b")
    assert match.group() == blank
    assert fold_piece(f"a{blank}b").text == "a\nb"


@pytest.mark.parametrize("blank", ["\n", "\r\n", "\r", " \n ", "\u2028", "\u00a0"])
def test_lines_are_no_paragraphs(blank: str) -> None:
    assert PARAGRAPH_BREAK.search(f"a{blank}b") is None
    assert fold_piece(f"a{blank}b").text == "a b"


def test_all_that_composes_with_its_left_neighbour_is_a_continuation() -> None:
    # The other characters stay as they are whatever stands before them, so texts can be cut there.
    composed = set()
    for point in range(sys.maxunicode + 1):
        character = chr(point)
        decomposed = unicodedata.decomposition(character)
        if unicodedata.combining(character):
            composed.add(character)
        elif decomposed and not decomposed.startswith("<"):
            composed.update(chr(int(part, 16)) for part in decomposed.split()[1:])
    composed.update(map(chr, [*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)]))  # Hangul, by arithmetic
    assert len(composed) > 900
    assert [f"U+{ord(c):04X}" for c in sorted(composed) if not is_continuation(c)] == []


@settings(max_examples=300)
@given(TEXTS, st.integers(1, 8), st.data())
def test_every_unit_folds_to_what_stands_in_its_place(
    text: str, piece_chars: int, data: st.DataObject
) -> None:
    window = FoldedWindow(text, 0, piece_chars)
    while not window.is_whole:
        window.read()
    assert window.text.strip() == fold_name(text)
    assert fold_piece(text, keep_case=True).text.strip() == fold_name(text, keep_case=True)
    places = [at for at in range(len(window.text) + 1) if window.place(at) is not None]
    begin, end = sorted(data.draw(st.lists(st.sampled_from(places), min_size=2, max_size=2)))
    source = text[window.place(begin) : window.place(end)]
    assert fold_piece(source).text.strip() == window.text[begin:end].strip()


def test_units_begin_behind_white_space_and_marks() -> None:
    text = "a \u00ad\n b\u0301c"
    assert [unit_begin(text, at) for at in range(len(text) + 1)] == [0, 5, 5, 5, 5, 5, 7, 7, 8]


@pytest.mark.parametrize(
    ("left", "right", "is_free"),
    [
        ("a", "b", False),
        ("a", "1", False),
        ("a", "_", False),
        ("é", "l", False),
        ("ہ", "ا", False),
        ("서", "울", False),
        ("a", " ", True),
        ("a", "'", True),
        ("-", "a", True),
        ("東", "京", True),
        ("a", "京", True),
        ("第", "2", True),
        ("ア", "メ", True),
        ("ไ", "ท", True),
        ("\U00020000", "\U00020001", True),
    ],
)
def test_words_end(left: str, right: str, is_free: bool) -> None:
    assert is_boundary(left + right, 1) is is_free
    assert is_boundary(left, 0)
    assert is_boundary(left, 1)


def test_places_where_names_may_begin() -> None:
    pattern = start_pattern("-.]^")
    text = "ab .net x-y ]^ (東京) _c"
    assert [text[m.start() :][:2] for m in pattern.finditer(text)] == [
        *("ab", ".n", "ne", "x-", "-y", "y ", "]^", "^ ", "東京", "京)", "_c")
    ]
    assert [m.start() for m in start_pattern("").finditer("a-b .")] == [0, 2]
