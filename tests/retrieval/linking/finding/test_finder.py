"""The finder against trying every stretch of a text, on difficult, real and hostile texts; and folding."""

from __future__ import annotations

import math
import sys
import time
import unicodedata
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from genret.retrieval.linking.documents.text_document import Span
from genret.retrieval.linking.finding import finder as finder_module
from genret.retrieval.linking.finding.find_options import CASES, FindOptions
from genret.retrieval.linking.finding.finder import MentionFinder, likeliest
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
from genret.retrieval.linking.finding.mention_odds import Match, MentionOdds
from genret.retrieval.linking.finding.name_table import build_table
from genret.retrieval.normalize import normalize
from tests.own_process import TracedMemory, alone
from tests.retrieval.linking.finding.name_oracle import (
    NameIndex,
    Odds,
    Weights,
    find_by_trying,
    largest_total,
    plain,
)
from tests.shared_titles import wikipedia_titles

# Changing lengths, combining, decomposed, invisible, blank and line-ending characters of every sort.
PIECES = [
    *"abABsSiI 1_.-'",
    *("–", "’", "ß", "İ", "i\u0307", "é", "e\u0301", "E\u0301", "\u0301", "\u0345", "ǰ", "J\u030c", "ŉ"),
    *("東", "京", "ก", "\u0e31", "ᄀ", "\u1161", "가", "\u00ad", "\u200e", "\u212b", "Å", "Σ", "ς", "ﬁ"),
    *(" ", "  ", "\n", "\r\n", "\r", "\t", "\u00a0", "\n\n", "\r\n\r\n", "\n \n", "\u2029", "\u2028", "\x00"),
]
NAME_PIECES = [piece for piece in PIECES if not any(c in "\n\r\t\u00ad\u2028\u2029\x00" for c in piece)]
NAMES = (
    st.lists(st.sampled_from(NAME_PIECES), min_size=1, max_size=5)
    .map("".join)
    .map(normalize)
    .filter(fold_name)
)
CATALOGUES = st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=8)
ANY = FindOptions("insensitive", 1, None, None, stop_words="none")
MAX_STRETCHES = 16  # every choice of them is tried
POLICIES = st.builds(
    FindOptions,
    case=st.sampled_from(CASES),
    min_chars=st.integers(1, 3),
    max_entities=st.none() | st.integers(1, 3),
    max_short_entities=st.none() | st.integers(1, 2),
    stop_words=st.just("none"),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[str]], str]:
    catalogue = draw(CATALOGUES)
    names = [form for forms in catalogue for form in forms]
    variants = [*names, *map(str.upper, names), *map(str.lower, names)]
    text = draw(st.lists(st.sampled_from(PIECES) | st.sampled_from(variants), max_size=14))
    return catalogue, "".join(text)


def make_finder(
    catalogue: list[list[str]], options: FindOptions = ANY, piece_chars: int = 4096
) -> MentionFinder:
    index = NameIndex(catalogue)
    return MentionFinder(build_table(index), index, options, piece_chars)  # type: ignore[arg-type]


def as_triples(spans: list[Span]) -> list[tuple[int, int, int]]:
    return [(span.start, span.end, span.num_names) for span in spans]


def odds_in(finder: MentionFinder, catalogue: list[list[str]], policy: FindOptions, text: str) -> Odds:
    """Return the odds that are expected; in "smart" mode those that the finder gives each stretch."""
    judge = MentionOdds(finder._policy, text)
    weights = Weights([form for forms in catalogue for form in forms])

    def odds(start: int, end: int, name: str) -> float:
        if policy.case == "smart":
            match = judge.match(name, start, end)
            return match.log_odds if match else 0.0
        spellings = {plain(form, keep_case=True) for forms in catalogue for form in forms}
        found = max(weights.of(spelling) for spelling in spellings if plain(spelling) == name)
        return max(found, 2**-10) if found > -math.inf else 0.0

    return odds


@settings(max_examples=250)
@given(cases(), POLICIES, st.sampled_from([1, 3, 4096]))
@example(([["i"], ["s"]], "İ ß S"), ANY, 1)
@example(([["a b"]], "a\r\nb a\r\n\r\nb a\n b"), ANY, 1)
@example(([["a"], ["a b"], ["a b"]], "a b a"), replace(ANY, max_entities=1), 4096)
@example(([["the red"], ["red sea"], ["sea"]], "the red sea"), ANY, 1)
def test_the_mentions_are_the_likeliest_choice_of_all_stretches(
    case: tuple[list[list[str]], str], policy: FindOptions, piece_chars: int
) -> None:
    catalogue, text = case
    finder = make_finder(catalogue, policy, piece_chars)
    stretches = find_by_trying(text, catalogue, policy, odds_in(finder, catalogue, policy, text))
    assume(len(stretches) <= MAX_STRETCHES)
    found = finder.find(text)
    assert all(one.end <= other.start for one, other in pairwise(found))
    known = {(s.start, s.end, s.num_names): s.log_odds for s in stretches}
    total = sum(known[span.start, span.end, span.num_names] for span in found)
    assert total == pytest.approx(largest_total(stretches), abs=1e-6)


def test_of_equally_likely_choices_the_earlier_and_longer_is_taken() -> None:
    chain = [Match(0, 9, 2.0, 1), Match(0, 4, 1.0, 1), Match(2, 6, 2.0, 1), Match(5, 9, 1.0, 1)]
    assert likeliest(chain) == chain[:1]


def test_a_chain_that_is_too_long_is_decided_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder_module, "LOOK_BACK_CHARS", 6)
    finder = make_finder([["a b"], ["b a"], ["a b a"]])
    spans = finder.find("a b " * 20)
    assert len(spans) > 10
    assert all(one.end <= other.start for one, other in pairwise(spans))


@settings(max_examples=100)
@given(cases(), st.data())
def test_parts_of_a_text_have_the_mentions_of_the_whole(
    case: tuple[list[list[str]], str], data: st.DataObject
) -> None:
    catalogue, text = case
    policy = replace(ANY, case=data.draw(st.sampled_from(CASES)))
    finder = make_finder(catalogue, policy, data.draw(st.sampled_from([1, 4, 4096])))
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=3))})
    parts = [span for begin, end in pairwise(cuts) for span in finder.find(text, begin, end)]
    assert parts == finder.find(text)


@settings(max_examples=100)
@given(cases(), st.sampled_from(CASES))
def test_paragraphs_alone_have_the_mentions_of_the_whole(
    case: tuple[list[list[str]], str], letter_case: str
) -> None:
    catalogue, text = case
    finder = make_finder(catalogue, replace(ANY, case=letter_case))
    cuts = [0, *(match.end() for match in PARAGRAPH_BREAK.finditer(text)), len(text)]
    parts = [
        (span.start + begin, span.end + begin, span.num_names)
        for begin, end in pairwise(cuts)
        for span in finder.find(text[begin:end])
    ]
    assert parts == as_triples(finder.find(text))


@settings(max_examples=100)
@given(cases())
def test_a_mention_folds_to_the_name_of_its_entities(case: tuple[list[list[str]], str]) -> None:
    catalogue, text = case
    finder = make_finder(catalogue)
    for span in finder.find(text):
        ids = finder.entity_ids(text[span.start : span.end])
        name = fold_name(text[span.start : span.end])
        expected = [f"e{n}" for n, forms in enumerate(catalogue) if name in map(fold_name, forms)]
        assert list(ids) == expected
        assert len(ids) == span.num_names


@pytest.mark.parametrize(("begin", "end"), [(-1, 1), (2, 1), (0, 4), (4, 4)])
def test_a_stretch_outside_the_text_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"begin, end: expected 0 <= begin <= end <= 3"):
        make_finder([["a"]]).find("a b", begin, end)


@pytest.mark.shared_data
def test_titles_are_found_in_their_own_letters() -> None:
    titles = wikipedia_titles()[::50]
    index = NameIndex([[title] for title in titles])
    options = FindOptions(case="sensitive", min_chars=1, max_entities=None, stop_words="none")
    finder = MentionFinder(build_table(index), index, options)  # type: ignore[arg-type]
    text = "\n\n".join(titles)
    at = 0
    spans = {(span.start, span.end) for span in finder.find(text)}
    for title in titles:
        assert (at, at + len(title)) in spans, title
        at += len(title) + 2


MILLION = 1_000_000
NEW_YORK = [["New York"], ["a a a b"], ["東京"], ["e\u0301".upper()], ["..."], ["x " * 400 + "y"], ["'" * 20]]


@pytest.fixture(scope="module")
def hostile_finder() -> MentionFinder:
    return make_hostile_finder()


def make_hostile_finder() -> MentionFinder:
    index = NameIndex(NEW_YORK)
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
def test_time_and_memory_grow_with_the_text_alone(what: str, hostile_finder: MentionFinder) -> None:
    text = f"New York {HOSTILE[what]} New York"
    began = time.process_time()
    spans = hostile_finder.find(text)
    seconds = time.process_time() - began
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    # A quadratic step over a million characters takes minutes.
    assert seconds < 30, f"{seconds:.1f} s"


@pytest.mark.parametrize("what", HOSTILE)
def test_short_ones_have_the_mentions_at_their_ends(what: str, hostile_finder: MentionFinder) -> None:
    text = f"New York {HOSTILE[what][:2000]} New York"
    spans = hostile_finder.find(text)
    assert (spans[0].start, spans[-1].end) == (0, len(text))
    for place in range(0, len(text), 97):
        assert hostile_finder.find(text, 0, place) + hostile_finder.find(text, place) == spans


@pytest.mark.slow
def test_memory_for_a_long_document_is_that_of_its_mentions() -> None:
    num_spans, peak = alone(spans_and_peak_of_a_long_document)
    assert num_spans == pytest.approx(500_000 / 921, abs=2)
    assert peak < 4 * MILLION


def spans_and_peak_of_a_long_document() -> tuple[int, int]:
    hostile_finder = make_hostile_finder()
    hostile_finder.find("New York")  # loads what is loaded when it is first needed
    paragraph = (
        "It was a long way from the harbour to the hills, and nobody had ever walked it in one day. " * 10
    )
    text = (paragraph + "New\nYork.\n\n") * 54_000
    assert len(text) > 48 * MILLION
    with TracedMemory() as memory:
        begin = len(text) // 2
        spans = hostile_finder.find(text, begin, begin + 500_000)
    return len(spans), memory.peak


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
        ("Hawaiʻi", "hawai'i"),
        ("Franco–Prussian non\u2011breaking em—dash", "franco-prussian non-breaking em—dash"),
        ("“Heroes”", '"heroes"'),
        ("hy\u00adphen\u200b", "hyphen"),
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
        ("ہ", "ا", False),
        ("서", "울", False),
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
