"""Offsets in code points, bytes and UTF-16 units agree with Python's own encoders."""

from __future__ import annotations

import pickle
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.retrieval.linking.documents.text_document import (
    Document,
    DocumentPlace,
    OffsetIndex,
    Span,
    cut_stream,
    cut_text,
)

ENCODINGS: dict[str, tuple[str, int]] = {
    "codepoint": ("utf-32-le", 4),
    "byte": ("utf-8", 1),
    "utf16": ("utf-16-le", 2),
}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
LONG = "a\r\ne\u0301 \U0001f469\u200d\U0001f680 中 ß"


def count(text: str, unit: str) -> int:
    encoding, size = ENCODINGS[unit]
    return len(text.encode(encoding)) // size


@pytest.mark.parametrize("unit", list(ENCODINGS))
@given(text=TEXTS, repeats=st.sampled_from([1, 60, 400]))
def test_both_ways(unit: str, text: str, repeats: int) -> None:
    text *= repeats  # beyond the checkpoints
    index = OffsetIndex(text, unit)
    places = range(0, len(text) + 1, max(1, len(text) // 50))
    assert index.length == count(text, unit)
    for position in (*places, len(text)):
        units = count(text[:position], unit)
        assert index.units_before(position) == units
        assert index.position_of(units) == position


@pytest.mark.parametrize("unit", list(ENCODINGS))
@pytest.mark.parametrize("repeats", [1, 300])
def test_offsets_inside_a_code_point_are_none(unit: str, repeats: int) -> None:
    text = LONG * repeats
    index = OffsetIndex(text, unit)
    begins = {}
    units = 0
    for position, character in enumerate(text):
        begins[units] = position
        units += count(character, unit)
    begins[units] = len(text)
    assert [index.position_of(at) for at in range(units + 1)] == [begins.get(at) for at in range(units + 1)]


@given(before=TEXTS, text=TEXTS, data=st.data())
def test_a_part_places_its_spans_in_the_whole_document(before: str, text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    part = Document("s", 1, "d", text, offset=len(before), byte_offset=len(before.encode()))
    whole = before + text
    place = part.place(Span(start, end))
    assert place[:2] == (len(before) + start, len(before) + end)
    assert whole[place.start : place.end] == text[start:end]
    assert whole.encode()[place.start_byte : place.end_byte] == text[start:end].encode()


def test_documents_are_equal_and_travel_whatever_was_placed() -> None:
    document = Document("s", 1, "d", "ñandú", (Span(0, 5),))
    assert document.place(Span(0, 5)) == DocumentPlace(0, 5, 0, 7)
    assert document == Document("s", 1, "d", "ñandú", (Span(0, 5),))
    assert pickle.loads(pickle.dumps(document)) == document


PIECES = [
    "a",
    "bc",
    " ",
    "\n",
    "\r\n",
    "\n\n",
    "\r\n\r\n",
    "\u0301",
    "\u200d",
    "中",
    "\U0001f469",
    "\U0001f3fd",
]
CUT_TEXTS = st.one_of(st.text(st.characters(codec="utf-8")), st.lists(st.sampled_from(PIECES)).map("".join))
SIZES = st.integers(2, 30)


def pieces(text: str, size: int) -> list[str]:
    return [text[begin:end] for begin, end in cut_text(text, size)]


@given(CUT_TEXTS, SIZES)
def test_parts_cover_the_text_once(text: str, size: int) -> None:
    parts = list(cut_text(text, size))
    assert parts[0][0] == 0
    assert parts[-1][1] == len(text)
    assert all(before[1] == behind[0] for before, behind in pairwise(parts))
    assert all(begin < end <= begin + size for begin, end in parts) or (text == "" and parts == [(0, 0)])
    assert len(parts) <= 2 * len(text) // size + 2 or any(c.isspace() for c in text)


@given(CUT_TEXTS, SIZES, st.lists(st.integers(0, 40)))
def test_a_stream_is_cut_as_the_whole(text: str, size: int, cuts: list[int]) -> None:
    streamed = [text[a:b] for a, b in pairwise(sorted({0, len(text), *(c for c in cuts if c < len(text))}))]
    assert list(cut_stream(streamed, size)) == pieces(text, size)


@given(CUT_TEXTS, SIZES)
def test_nothing_inside_of_crlf_or_in_front_of_a_mark(text: str, size: int) -> None:
    for _, end in list(cut_text(text, size))[:-1]:
        assert text[end - 1 : end + 1] != "\r\n"
    for begin, end in list(cut_text(text, size))[:-1]:
        window = text[begin : begin + size + 1]
        marks = [i for i in range(1, size + 1) if unicodedata.combining(window[i])]
        spaces = [i for i in range(1, size + 1) if window[i - 1].isspace() and window[i].isalnum()]
        if spaces:
            assert end - begin not in marks


@given(st.lists(st.sampled_from(["ab", "c", "def"]), min_size=1), st.integers(4, 20))
def test_words_stay_whole(words: list[str], size: int) -> None:
    text = " ".join(words)
    assert [word for part in pieces(text, size) for word in part.split()] == words


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        pytest.param("aaa bbb\n\nccc\nddd eee", 16, ["aaa bbb\n\n", "ccc\nddd eee"], id="blank line"),
        pytest.param(
            "aaa bbb\r\n \t\r\n\r\nccc\nddd eee",
            20,
            ["aaa bbb\r\n \t\r\n\r\n", "ccc\nddd eee"],
            id="blank lines with spaces",
        ),
        pytest.param("aaa bbb ccc\nddd eee fff", 16, ["aaa bbb ccc\n", "ddd eee fff"], id="line end"),
        pytest.param(
            "aaa\n\nbbb ccc ddd eee", 16, ["aaa\n\nbbb ccc ", "ddd eee"], id="a blank line too far in front"
        ),
        pytest.param("aaa bbb ccc ddd", 8, ["aaa bbb ", "ccc ddd"], id="white space"),
        pytest.param("a bbbbbbbbbbbb", 8, ["a ", "bbbbbbbb", "bbbb"], id="white space far in front"),
        pytest.param("abcdefghij", 4, ["abcd", "efgh", "ij"], id="hard"),
        pytest.param("abce\u0301fg", 4, ["abc", "e\u0301fg"], id="combining mark"),
        pytest.param(
            "e" + "\u0301" * 6, 4, ["e\u0301\u0301\u0301", "\u0301\u0301\u0301"], id="nothing but marks"
        ),
        pytest.param("ab\r\ncd", 3, ["ab", "\r\n", "cd"], id="crlf"),
        pytest.param(
            "ab\U0001f469\u200d\U0001f680c", 4, ["ab", "\U0001f469\u200d\U0001f680c"], id="joined emoji"
        ),
        pytest.param("abcd", 4, ["abcd"], id="as long as a part"),
        pytest.param("", 4, [""], id="empty"),
    ],
)
def test_where_it_is_cut(text: str, size: int, expected: list[str]) -> None:
    assert pieces(text, size) == expected
