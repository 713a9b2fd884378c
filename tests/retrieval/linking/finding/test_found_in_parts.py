"""Documents in parts, cut and given context as they are for linking, have the mentions of the whole."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrieval.linking.documents import text_document as part_documents
from retrieval.linking.documents.text_document import Document, cut_text, part_document
from retrieval.linking.finding.find_options import FindOptions
from retrieval.linking.finding.finder import MentionFinder
from retrieval.linking.finding.name_table import build_table
from tests.retrieval.linking.finding.name_oracle import NameIndex

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


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.tuples(PARAGRAPHS, BREAKS), min_size=1, max_size=30), st.integers(60, 120))
def test_parts_cut_at_blank_lines_need_no_context(
    context_chars: int, paragraphs: list[tuple[str, str]], size: int
) -> None:
    # No paragraph fills the second half of a part, so every cut is behind a blank line.
    text = "".join(paragraph + blank for paragraph, blank in paragraphs)
    found, cuts = spans_in_parts(text, size)
    assert all(not text[:cut].endswith(("a", "b", "c", " ")) for cut in cuts[:-1])
    assert found == [(span.start, span.end) for span in FINDER.find(text)]


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS | BREAKS, max_size=80).map(" ".join), st.integers(10, 60))
def test_parts_cut_anywhere_agree_where_the_paragraph_is_in_sight(text: str, size: int) -> None:
    found, _ = spans_in_parts(text, size)  # with 8,192 characters of context: all of it
    assert found == [(span.start, span.end) for span in FINDER.find(text)]
