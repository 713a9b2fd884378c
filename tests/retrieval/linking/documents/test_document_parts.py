"""Long texts are cut at the same places every time, within bounds, and where a reader would cut them."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.linking.documents.text_document import cut_stream, cut_text

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
TEXTS = st.one_of(st.text(st.characters(codec="utf-8")), st.lists(st.sampled_from(PIECES)).map("".join))
SIZES = st.integers(2, 30)


def pieces(text: str, size: int) -> list[str]:
    return [text[begin:end] for begin, end in cut_text(text, size)]


@given(TEXTS, SIZES)
def test_parts_cover_the_text_once(text: str, size: int) -> None:
    parts = list(cut_text(text, size))
    assert parts[0][0] == 0
    assert parts[-1][1] == len(text)
    assert all(before[1] == behind[0] for before, behind in pairwise(parts))
    assert all(begin < end <= begin + size for begin, end in parts) or (text == "" and parts == [(0, 0)])
    assert len(parts) <= 2 * len(text) // size + 2 or any(c.isspace() for c in text)


@given(TEXTS, SIZES, st.lists(st.integers(0, 40)))
def test_a_stream_is_cut_as_the_whole(text: str, size: int, cuts: list[int]) -> None:
    streamed = [text[a:b] for a, b in pairwise(sorted({0, len(text), *(c for c in cuts if c < len(text))}))]
    assert list(cut_stream(streamed, size)) == pieces(text, size)


@given(TEXTS, SIZES)
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
        ("aaa bbb\n\nccc\nddd eee", 16, ["aaa bbb\n\n", "ccc\nddd eee"]),
        ("aaa bbb\r\n \t\r\n\r\nccc\nddd eee", 20, ["aaa bbb\r\n \t\r\n\r\n", "ccc\nddd eee"]),
        ("aaa bbb ccc\nddd eee fff", 16, ["aaa bbb ccc\n", "ddd eee fff"]),
        ("aaa\n\nbbb ccc ddd eee", 16, ["aaa\n\nbbb ccc ", "ddd eee"]),
        ("aaa bbb ccc ddd", 8, ["aaa bbb ", "ccc ddd"]),
        ("a bbbbbbbbbbbb", 8, ["a ", "bbbbbbbb", "bbbb"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("abce\u0301fg", 4, ["abc", "e\u0301fg"]),
        ("e" + "\u0301" * 6, 4, ["e\u0301\u0301\u0301", "\u0301\u0301\u0301"]),
        ("ab\r\ncd", 3, ["ab", "\r\n", "cd"]),
        ("ab\U0001f469\u200d\U0001f680c", 4, ["ab", "\U0001f469\u200d\U0001f680c"]),
        ("abcd", 4, ["abcd"]),
        ("", 4, [""]),
    ],
    ids=[
        "blank line",
        "blank lines with spaces",
        "line end",
        "a blank line too far in front",
        "white space",
        "white space far in front",
        "hard",
        "combining mark",
        "nothing but marks",
        "crlf",
        "joined emoji",
        "as long as a part",
        "empty",
    ],
)
def test_where_it_is_cut(text: str, size: int, expected: list[str]) -> None:
    assert pieces(text, size) == expected
