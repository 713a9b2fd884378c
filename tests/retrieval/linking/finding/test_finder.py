"""The finder against trying every stretch of a text, on difficult, real and hostile texts."""

from __future__ import annotations

import gzip
import json
import math
import re
import time
from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from genret.retrieval.linking.documents.text_document import Span
from genret.retrieval.linking.finding import finder as finder_module
from genret.retrieval.linking.finding.find_options import CASES, FindOptions, load_stop_words
from genret.retrieval.linking.finding.finder import MentionFinder, likeliest
from genret.retrieval.linking.finding.folding import PARAGRAPH_BREAK, fold_name
from genret.retrieval.linking.finding.mention_odds import Match, MentionOdds
from genret.retrieval.linking.finding.name_table import build_table
from genret.retrieval.normalize import normalize
from tests.own_process import TracedMemory, alone
from tests.retrieval.linking.finding.name_oracle import (
    NameIndex,
    Odds,
    Policy,
    Weights,
    find_by_trying,
    largest_total,
    plain,
)
from tests.shared_titles import shared_file, wikipedia_titles

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
ANY = Policy()
MAX_STRETCHES = 16  # every choice of them is tried
POLICIES = st.builds(
    Policy,
    case=st.sampled_from(CASES),
    min_chars=st.integers(1, 3),
    max_entities=st.none() | st.integers(1, 3),
    max_short_entities=st.none() | st.integers(1, 2),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[list[str]], str]:
    catalogue = draw(CATALOGUES)
    names = [form for forms in catalogue for form in forms]
    variants = [*names, *map(str.upper, names), *map(str.lower, names)]
    text = draw(st.lists(st.sampled_from(PIECES) | st.sampled_from(variants), max_size=14))
    return catalogue, "".join(text)


def make_finder(catalogue: list[list[str]], policy: Policy = ANY, piece_chars: int = 4096) -> MentionFinder:
    index = NameIndex(catalogue)
    options = FindOptions(
        policy.case, policy.min_chars, policy.max_entities, policy.max_short_entities, stop_words="none"
    )
    return MentionFinder(build_table(index), index, options, piece_chars)  # type: ignore[arg-type]


def as_triples(spans: list[Span]) -> list[tuple[int, int, int]]:
    return [(span.start, span.end, span.num_names) for span in spans]


def odds_in(finder: MentionFinder, catalogue: list[list[str]], policy: Policy, text: str) -> Odds:
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
@example(([["i"], ["s"]], "İ ß S"), Policy(), 1)
@example(([["a b"]], "a\r\nb a\r\n\r\nb a\n b"), Policy(), 1)
@example(([["a"], ["a b"], ["a b"]], "a b a"), Policy(max_entities=1), 4096)
@example(([["the red"], ["red sea"], ["sea"]], "the red sea"), Policy(), 1)
def test_the_mentions_are_the_likeliest_choice_of_all_stretches(
    case: tuple[list[list[str]], str], policy: Policy, piece_chars: int
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


MATCHES = st.builds(
    lambda start, length, log_odds: Match(start, start + length, log_odds, 1),
    st.integers(0, 12),
    st.integers(1, 5),
    st.floats(0.0625, 9, width=16),
)


@settings(max_examples=300)
@given(st.lists(MATCHES, max_size=9, unique_by=lambda match: match[:2]))
def test_the_likeliest_of_a_chain_is_the_best_of_all_subsets(matches: list[Match]) -> None:
    chain = sorted(matches, key=lambda match: (match.start, -match.end))
    chosen = likeliest(chain)
    totals = [
        sum(match.log_odds for match in subset)
        for size in range(len(chain) + 1)
        for subset in combinations(chain, size)
        if all(one.end <= other.start for one, other in pairwise(subset))
    ]
    assert all(one.end <= other.start for one, other in pairwise(chosen))
    assert sum(match.log_odds for match in chosen) == pytest.approx(max(totals))


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
    policy = Policy(case=data.draw(st.sampled_from(CASES)))
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
    finder = make_finder(catalogue, Policy(case=letter_case))
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


SETS = ("conel22", "geovirus", "lgl", "msnbc", "reuters128", "news_fair_v2", "rss500")
_WORD_BEGIN = re.compile(r"\b(?=\w)")


def texts() -> list[str]:
    """Texts in ASCII with single blanks: what has to be folded is for other tests."""
    found = []
    for name in SETS:
        with gzip.open(shared_file("el", f"{name}.dev.jsonl.gz"), "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        found += [row["left"] + row["mention"] + row["right"] for row in rows[:40]]
    return [" ".join(text.encode("ascii", "ignore").decode().split()) for text in found]


def look_up(text: str, titles: list[str]) -> list[tuple[int, int, float, int]]:
    """Return (begin, end, odds, number of entities) of all titles between Python's word boundaries."""
    count = Counter(title.lower() for title in titles)
    weights = Weights(titles)
    value = {title.lower(): max(weights.of(title), 2**-10) for title in titles if not title.isdecimal()}
    longest = max(map(len, count))
    stop_words = load_stop_words("english")
    found = []
    for match in _WORD_BEGIN.finditer(text):
        begin = match.start()
        for end in range(min(len(text), begin + longest), begin + 1, -1):
            name = text[begin:end].lower()
            if name in value and name not in stop_words and not re.match(r"\w", text[end:]):
                found.append((begin, end, value[name], count[name]))
    return found


@pytest.mark.shared_data
def test_the_finder_finds_the_best_of_what_a_dictionary_finds() -> None:
    # Letters and digits at both ends: \b knows no other names. Short, as texts have few others.
    titles = [t for t in wikipedia_titles() if t[0].isalnum() and t[-1].isalnum() and len(t) <= 20]
    titles = [t for t in titles if t.isascii()][::9]
    assert len(titles) > 40_000
    index = NameIndex([[title] for title in titles])
    options = FindOptions(case="insensitive")
    finder = MentionFinder(build_table(index), index, options)  # type: ignore[arg-type]
    text = "\n".join(texts())
    stretches = look_up(text.replace("\n", " "), titles)
    best = [0.0] * (len(text) + 1)  # up to every place
    ends: dict[int, list[tuple[int, float]]] = {}
    for begin, end, odds, _ in stretches:
        ends.setdefault(end, []).append((begin, odds))
    for at in range(1, len(text) + 1):
        best[at] = max([best[at - 1], *(best[begin] + odds for begin, odds in ends.get(at, ()))])
    known = {(begin, end, num): odds for begin, end, odds, num in stretches}
    found = finder.find(text)
    total = sum(known[span.start, span.end, span.num_names] for span in found)
    assert total == pytest.approx(best[-1])
    assert len(found) > 300


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
