"""The finder against trying every stretch of a text, on texts made of all that is difficult."""

from __future__ import annotations

import math
from itertools import combinations, pairwise

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from genret.retrieval.linking.documents import text_document as part_documents
from genret.retrieval.linking.documents.text_document import Document, Span, cut_text, part_document
from genret.retrieval.linking.finding import finder as finder_module
from genret.retrieval.linking.finding.find_options import CASES, FindOptions
from genret.retrieval.linking.finding.finder import MentionFinder, likeliest
from genret.retrieval.linking.finding.folding import PARAGRAPH_BREAK, fold_name
from genret.retrieval.linking.finding.mention_odds import Match, MentionOdds
from genret.retrieval.linking.finding.name_table import build_table
from genret.retrieval.normalize import normalize
from tests.retrieval.linking.finding.name_oracle import (
    NameIndex,
    Odds,
    Policy,
    Weights,
    find_by_trying,
    largest_total,
    plain,
)

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


INDEX = NameIndex([["a b"], ["b a"], ["b"], ["a b a b"], ["ä"], ["東a"]])
OPTIONS = FindOptions(case="insensitive", min_chars=1, stop_words="none")
FINDER = MentionFinder(build_table(INDEX), INDEX, OPTIONS)  # type: ignore[arg-type]
WORDS = st.sampled_from(["a", "b", "A  B", "a\u0308", "東a", "c", "a\nb", "b\r\na", "😀"])
PARAGRAPHS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
BREAKS = st.sampled_from(["\n\n", "\r\n\r\n", "\n \t\n", "\n\n\n"])


def spans_in_parts(text: str, size: int) -> tuple[list[tuple[int, int]], list[int]]:
    document = Document("s", 1, "d", text)
    found, cuts = [], []
    for part in cut_text(text, size):
        piece = part_document(document, part)
        spans = FINDER.find(piece.text, piece.begin, piece.end)
        found += [(span.start + piece.offset, span.end + piece.offset) for span in spans]
        cuts.append(part[1])
    return found, cuts


@pytest.fixture(params=[0, 5])
def context_chars(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(part_documents, "CONTEXT_CHARS", request.param)
    return int(request.param)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(PARAGRAPHS, BREAKS), min_size=1, max_size=30), st.integers(60, 120))
def test_parts_cut_at_blank_lines_need_no_context(
    context_chars: int, paragraphs: list[tuple[str, str]], size: int
) -> None:
    # No paragraph fills the second half of a part, so every cut is behind a blank line.
    text = "".join(paragraph + blank for paragraph, blank in paragraphs)
    found, cuts = spans_in_parts(text, size)
    assert all(not text[:cut].endswith(("a", "b", "c", " ")) for cut in cuts[:-1])
    assert found == [(span.start, span.end) for span in FINDER.find(text)]


@settings(max_examples=150)
@given(st.lists(WORDS | BREAKS, max_size=80).map(" ".join), st.integers(10, 60))
def test_parts_cut_anywhere_agree_where_the_paragraph_is_in_sight(text: str, size: int) -> None:
    found, _ = spans_in_parts(text, size)  # with 8,192 characters of context: all of it
    assert found == [(span.start, span.end) for span in FINDER.find(text)]
