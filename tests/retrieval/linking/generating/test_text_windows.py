"""Windows of a text: every character in exactly one, cut at the ends of paragraphs, sentences and words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.linking.generating.windows import cut_windows, halves

TEXTS = st.text(alphabet=st.sampled_from("ab. \n\r!?\u2029\u0301é日"), max_size=200)


def count(pieces: Sequence[str]) -> list[int]:
    """A token for every two characters of a piece."""
    return [-(-len(piece) // 2) for piece in pieces]


def windows(text: str, most: int, begin: int = 0, end: int | None = None) -> list[str]:
    bounds = cut_windows(text, begin, len(text) if end is None else end, most, count)
    return [text[first:last] for first, last in bounds]


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.integers(1, 12), st.integers(0, 20), st.integers(0, 20))
def test_every_character_is_in_one_window_that_fits(text: str, most: int, before: int, behind: int) -> None:
    begin, end = min(before, len(text)), max(len(text) - behind, min(before, len(text)))
    found = windows(text, most, begin, end)
    assert "".join(found) == text[begin:end]
    assert all(found)
    # A window is counted piece by piece, so that the whole of it never takes more.
    assert all(sum(count([window])) <= most for window in found)
    assert found == windows(text, most, begin, end)


def test_paragraphs_come_before_sentences_and_sentences_before_words() -> None:
    paragraphs = "One two three and four.\n\nFive six. Seven eight nine ten eleven twelve."
    assert windows(paragraphs, 22)[0] == "One two three and four."
    sentences = "One two three. Four five six seven eight nine"
    assert windows(sentences, 15)[0] == "One two three."
    words = "one two three four five six seven"
    assert windows(words, 8) == ["one two three", " four five six", " seven"]
    assert windows("abcdefghij", 2) == ["abcd", "efgh", "ij"]


def test_a_long_text_is_cut_alike_however_much_follows() -> None:
    text = "Some words here. And then others!\n" * 3000
    first = windows(text, 40)
    longer = windows(text + "More words.", 40)
    assert first[:-2] == longer[: len(first) - 2]
    assert all(re.search(r"[.!]$", window) for window in first[:-1])


def test_halves_are_cut_between_words() -> None:
    text = "one two three"
    assert halves(text, 0, len(text)) == ((0, 7), (7, 13))
    assert halves("abcd", 0, 4) == ((0, 2), (2, 4))
    assert halves("abcd", 1, 2) is None
