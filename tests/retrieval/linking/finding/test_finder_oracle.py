"""The finder against trying every stretch of a text, on texts made of all that is difficult."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval.linking.documents.document import Span
from retrieval.linking.finding.folding import PARAGRAPH_BREAK, fold_name
from retrieval.linking.finding.mention_finder import MentionFinder
from retrieval.linking.finding.options import CASES, FindOptions
from retrieval.linking.finding.table_building import build_table
from retrieval.normalize import normalize
from tests.retrieval.linking.finding.name_oracle import NameIndex, Policy, find_by_trying

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


@settings(max_examples=250, deadline=None)
@given(cases(), POLICIES, st.sampled_from([1, 3, 4096]))
@example(([["i"], ["s"]], "İ ß S"), Policy(), 1)
@example(([["a b"]], "a\r\nb a\r\n\r\nb a\n b"), Policy(), 1)
@example(([["a"], ["a b"], ["a b"]], "a b a"), Policy(max_entities=1), 4096)
def test_the_finder_finds_what_trying_everything_finds(
    case: tuple[list[list[str]], str], policy: Policy, piece_chars: int
) -> None:
    catalogue, text = case
    found = as_triples(make_finder(catalogue, policy, piece_chars).find(text))
    assert found == find_by_trying(text, catalogue, policy)


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_parts_of_a_text_have_the_mentions_of_the_whole(
    case: tuple[list[list[str]], str], data: st.DataObject
) -> None:
    catalogue, text = case
    finder = make_finder(catalogue, piece_chars=data.draw(st.sampled_from([1, 4, 4096])))
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=3))})
    parts = [span for begin, end in pairwise(cuts) for span in finder.find(text, begin, end)]
    assert parts == finder.find(text)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_paragraphs_alone_have_the_mentions_of_the_whole(case: tuple[list[list[str]], str]) -> None:
    catalogue, text = case
    finder = make_finder(catalogue)
    cuts = [0, *(match.end() for match in PARAGRAPH_BREAK.finditer(text)), len(text)]
    parts = [
        (span.start + begin, span.end + begin, span.num_names)
        for begin, end in pairwise(cuts)
        for span in finder.find(text[begin:end])
    ]
    assert parts == as_triples(finder.find(text))


@settings(max_examples=100, deadline=None)
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
