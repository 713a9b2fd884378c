"""Texts and names that are made to take long, or too much memory."""

from __future__ import annotations

import time

import pytest

from genret.retrieval.linking.finding.find_options import FindOptions
from genret.retrieval.linking.finding.finder import MentionFinder
from genret.retrieval.linking.finding.name_table import build_table
from tests.own_process import TracedMemory, alone
from tests.retrieval.linking.finding.name_oracle import NameIndex

MILLION = 1_000_000
NAMES = [["New York"], ["a a a b"], ["東京"], ["e\u0301".upper()], ["..."], ["x " * 400 + "y"], ["'" * 20]]


@pytest.fixture(scope="module")
def finder() -> MentionFinder:
    return make_finder()


def make_finder() -> MentionFinder:
    index = NameIndex(NAMES)
    return MentionFinder(build_table(index), index, FindOptions(case="insensitive"))  # type: ignore[arg-type]


HOSTILE = {
    "one word": "a" * 5 * MILLION,
    "blanks": " " * 5 * MILLION,
    "line ends": "\r\n" * MILLION,
    "line ends and blanks": "\n  " * MILLION,
    "no-break blanks": "\u00a0" * MILLION,
    "paragraph separators": "\u2029" * MILLION,
    "one mark": "\u0301" * 2 * MILLION,
    "marks out of order": "e" + "\u0301\u0327" * MILLION,
    "decomposed letters": "e\u0301" * MILLION,
    "decomposed Hangul": "ᄀ\u1161" * MILLION,
    "soft hyphens": "\u00ad" * 2 * MILLION,
    "blanks and soft hyphens": " \u00ad" * MILLION,
    "almost a name": "a " * MILLION,
    "almost a long name": "x " * MILLION,
    "almost a name across blanks": ("New" + " " * 1000) * 1000,
    "points": "." * MILLION,
    "apostrophes": "' " * MILLION,
    "characters that fold to two": "ß" * MILLION,
    "ideographs": "東" * MILLION,
    "other planes": "😀" * MILLION,
    "zeros": "\x00" * MILLION,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", HOSTILE)
def test_time_and_memory_grow_with_the_text_alone(what: str, finder: MentionFinder) -> None:
    text = f"New York {HOSTILE[what]} New York"
    began = time.process_time()
    spans = finder.find(text)
    seconds = time.process_time() - began
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    # A quadratic step over a million characters takes minutes.
    assert seconds < 30, f"{seconds:.1f} s"


@pytest.mark.parametrize("what", HOSTILE)
def test_short_ones_have_the_mentions_at_their_ends(what: str, finder: MentionFinder) -> None:
    text = f"New York {HOSTILE[what][:2000]} New York"
    spans = finder.find(text)
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    for place in range(0, len(text), 97):
        assert finder.find(text, 0, place) + finder.find(text, place) == spans


@pytest.mark.slow
def test_memory_for_a_long_document_is_that_of_its_mentions() -> None:
    num_spans, peak = alone(spans_and_peak_of_a_long_document)
    assert num_spans == pytest.approx(500_000 / 921, abs=2)
    assert peak < 4 * MILLION


def spans_and_peak_of_a_long_document() -> tuple[int, int]:
    finder = make_finder()
    finder.find("New York")  # loads what is loaded when it is first needed
    paragraph = (
        "It was a long way from the harbour to the hills, and nobody had ever walked it in one day. " * 10
    )
    text = (paragraph + "New\nYork.\n\n") * 54_000
    assert len(text) > 48 * MILLION
    with TracedMemory() as memory:
        begin = len(text) // 2
        spans = finder.find(text, begin, begin + 500_000)
    return len(spans), memory.peak
