"""Documents linked by tiny random models: as one mention at a time, however they are cut and batched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genret import Mention, Retriever
from genret.retrieval.linking.documents.text_document import Document, Span
from genret.retrieval.linking.generating.generator import MentionGenerator
from genret.retrieval.linking.link_options import GenerateOptions
from genret.retrieval.linking.run_progress import LinkCounts
from tests.scripted_linking import LinkRun, Names, document

Row = dict[str, Any]
NAMES = {"Hamlet": ["Q1"], "Amazon": ["Q8", "Q9"], "Quicksilver": ["Q10", "Q11"], "Paris": ["Q4"]}
NAMES["Mercury"] = ["Q10"]
PIECES = ("Hamlet", "Paris", "Amazon", "Quicksilver", " ", "\r\n", "\n", "🦁", "e\u0301", "ß", "[", "}", ", ")


def linked(
    retriever: Retriever, documents: Sequence[Document], **options: Any
) -> tuple[list[Row], LinkCounts]:
    run = LinkRun(*documents, retriever=retriever, finder=Names(NAMES), **options)
    return run.rows, run.counts


def assert_same_rows(got: Sequence[Row], expected: Sequence[Row]) -> None:
    """All columns equal, logprobs and what follows from them to 1e-5."""
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert _flat(one) == pytest.approx(_flat(other), abs=1e-5)


def _flat(row: Row) -> Row:
    flat = {name: value for name, value in row.items() if name != "candidates"}
    for n, candidate in enumerate(row["candidates"]):
        flat |= {f"candidates[{n}].{name}": value for name, value in candidate.items()}
    return flat


@st.composite
def marked_documents(draw: st.DrawFn) -> list[Document]:
    documents = []
    for row in range(1, draw(st.integers(1, 4)) + 1):
        text = "".join(draw(st.lists(st.sampled_from(PIECES), max_size=14)))
        spans = None
        if text and draw(st.booleans()):
            edges = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 9))
            spans = tuple(
                Span(start, min(start + length, len(text)))
                for start, length in draw(st.lists(edges, max_size=4))
            )
        documents.append(Document("in.jsonl", row, f"d{row}", text, spans))
    return documents


def place(row: Row) -> tuple[int, int, int]:
    return row["row"], row["start"], row["end"]


def cut_in_two(document: Document, at: int, context: int) -> list[Document]:
    """The parts of a document before and behind a place, each with some of the text around it."""
    begin, end = max(0, at - context), min(len(document.text), at + context)
    spans = document.spans or ()
    first = tuple(span for span in spans if span.end <= end)
    second = tuple(
        Span(span.start - begin, span.end - begin, span.mention_id) for span in spans if span.start >= begin
    )
    marked = document.spans is not None
    source, row, doc_id = document.source, document.row, document.doc_id
    place = {"begin": at - begin, "offset": begin, "byte_offset": len(document.text[:begin].encode())}
    return [
        Document(source, row, doc_id, document.text[:end], first if marked else None, 0, at),
        Document(source, row, doc_id, document.text[begin:], second if marked else None, **place),
    ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=marked_documents(),
    sizes=st.fixed_dictionaries(
        {"batch_size": st.sampled_from([1, 2, 7, 32]), "cache_entries": st.sampled_from([0, 1, 100])}
    ),
    data=st.data(),
)
def test_rows_do_not_depend_on_how_documents_are_cut_ordered_and_batched(
    retriever: Retriever, documents: list[Document], sizes: dict[str, int], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, 40))
    options = {"k": 3, "candidates": data.draw(st.sampled_from(["named", "all"]))}
    alone = {"batch_size": 1, "cache_entries": 0, **options}
    expected = [row for one in documents for row in linked(retriever, [one], **alone)[0]]
    rows, counts = linked(retriever, documents, **sizes, **options)
    assert_same_rows(rows, expected)
    assert counts.num_documents == len(documents)
    assert counts.num_mentions == counts.num_rows == len(rows) == counts.num_linked + counts.num_nil

    order = data.draw(st.permutations(documents))
    shuffled, _ = linked(retriever, order, **sizes, **options)
    assert_same_rows(
        sorted(shuffled, key=lambda row: row["row"]), sorted(expected, key=lambda row: row["row"])
    )

    # The text around a part is as wide as the context and the longest mention.
    parts = [
        part
        for one in documents
        for part in (cut_in_two(one, cut, 30 + 11) if 0 < cut < len(one.text) else [one])
    ]
    in_parts, part_counts = linked(retriever, parts, **sizes, **options)
    # Given spans of a part come before those of the next one, whatever their order in the whole document.
    assert_same_rows(sorted(in_parts, key=place), sorted(expected, key=place))
    assert part_counts.num_documents == counts.num_documents


def test_rows_are_those_of_single_links(retriever: Retriever) -> None:
    text = "In Denmark, Hamlet met Madame Curie\r\non the Amazon 🦁; then Paris again."
    words = ["Hamlet", "Madame Curie\r\non", "Amazon", "🦁", "Paris", "Denmark, Hamlet"]
    marked = document(text, *words)
    rows, _ = linked(retriever, [marked], batch_size=4, k=5)
    for row, span in zip(rows, marked.spans or (), strict=True):
        mention = Mention(text[span.start : span.end], text[: span.start], text[span.end :])
        (single,) = retriever.link(mention, k=5)
        assert [c["entity_id"] for c in row["candidates"]] == [c.entity_id for c in single.candidates]
        # Entities that share a title have its probability each, so that the sum may exceed 1.
        for name in ("logprob", "score", "probability"):
            expected = [getattr(candidate, name) for candidate in single.candidates]
            assert [c[name] for c in row["candidates"]] == pytest.approx(expected, abs=1e-5)
        best = single.candidates[0]
        assert [row[name] for name in ("entity_id", "title", "surface")] == [
            *(best.entity_id, best.title, best.surface)
        ]
        assert (row["method"], row["certified"], row["nil_reason"]) == ("auto", None, None)
        assert row["probability"] == row["candidates"][0]["probability"] < 1 - single.nothing_fits + 1e-6


def test_samples_of_a_mention_do_not_depend_on_its_neighbours(retriever: Retriever) -> None:
    text = "Hamlet in Paris on the Amazon, by Marie Curie of Berlin"
    words = ["Hamlet", "Paris", "Amazon", "Marie Curie", "Berlin"]
    options = {"method": "disc", "k": 3, "seed": 11}
    together, _ = linked(retriever, [document(text, *words)], **options)
    for word, row in zip(words, together, strict=True):
        alone, _ = linked(retriever, [document(text, word)], batch_size=1, **options)
        assert_same_rows(alone, [row])
    other, _ = linked(retriever, [document(text, *words)], **{**options, "seed": 12})
    assert [row["mass"] for row in other] != [row["mass"] for row in together]


def test_few_candidates_are_all_scored_and_proven(retriever: Retriever) -> None:
    documents = [Document("f", 1, "d", "Quicksilver, Amazon; Amazon and Quicksilver")]
    options: dict[str, Any] = {"candidates": "named", "mentions": "found"}
    scored, _ = linked(retriever, documents, **options)
    # A beam this narrow loses titles; one that is proven is what scoring every title gives.
    narrow, _ = linked(retriever, documents, method="beam", beam_size=1, **options)
    proven, _ = linked(retriever, documents, method="beam", exact=True, exact_budget=100_000, **options)
    for ours, beam, best in zip(scored, narrow, proven, strict=True):
        assert ours["certified"] is True
        assert best["certified"] is True
        assert ours["logprob"] >= beam["logprob"] - 1e-4
        assert ours["entity_id"] == best["entity_id"]
        assert ours["logprob"] == pytest.approx(best["logprob"], abs=1e-4)
        # Namesakes share a title, whose probability counts for each of them.
        assert all(0 < c["probability"] <= 1 for c in ours["candidates"])


def test_generated_rows_are_the_links_that_the_generator_writes(retriever: Retriever) -> None:
    texts = ("Hamlet met 🦁 Paris.", "", "é Nile")
    documents = [Document("f", row, f"d{row}", text) for row, text in enumerate(texts, 1)]
    rows, counts = linked(retriever, documents, mentions="generated", beam_size=2, k=1)
    generator = MentionGenerator(retriever, GenerateOptions(method="beam", beam_size=2))
    expected = [
        (row, link.start, link.end, link.mention, link.entities[0].entity_id, link.title)
        for row, links in enumerate(generator.annotate(texts), 1)
        for link in links
    ]
    assert expected
    columns = ("row", "start", "end", "mention", "entity_id", "title")
    assert [tuple(row[column] for column in columns) for row in rows] == expected
    for row in rows:
        encoded = texts[row["row"] - 1].encode()
        assert encoded[row["start_byte"] : row["end_byte"]].decode() == row["mention"]
    assert counts.num_documents == 3
    assert counts.num_mentions == counts.num_linked == len(rows)
