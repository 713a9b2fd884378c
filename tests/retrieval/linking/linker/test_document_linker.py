"""Rows, counts and complaints of `DocumentLinker` over scripted answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from genret.retrieval.errors import EvidenceMissingError, IndexChecksumError, InputError
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from genret.retrieval.linking.link_options import LinkOptions, WorkerOptions
from genret.retrieval.linking.linker import DocumentLinker
from genret.retrieval.linking.output.part_files import SCHEMA
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.types import Entity
from tests.linking_fakes import NIL_REASONS
from tests.scripted_linking import DIGEST, LinkRun, Names, ScriptedRetriever, document

# 🦁 is four bytes and two UTF-16 units, é here two code points (e, combining acute) and three bytes.
EMOJI = "A 🦁 lion\r\nin Cafe\u0301 Nile"


def test_row_has_every_column_of_the_schema() -> None:
    text = EMOJI
    spans = (Span(text.index("lion"), text.index("lion") + 4, "m1"),)
    run = LinkRun(Document("in.jsonl", 7, "doc", text, spans), k=2)
    shares = [1 / (1 + math.exp(-1)), math.exp(-1) / (1 + math.exp(-1))]
    assert run.rows == [
        {
            "source": "in.jsonl",
            "row": 7,
            "doc_id": "doc",
            "mention_id": "m1",
            "start": 4,
            "end": 8,
            "start_byte": 7,
            "end_byte": 11,
            "mention": "lion",
            "entity_id": "Elion",
            "title": "Title lion",
            "surface": "lion",
            "logprob": -1.0,
            "score": 0.0,
            "probability": pytest.approx(shares[0]),
            "nil_reason": None,
            "candidates": [
                {
                    "entity_id": "Elion",
                    "title": "Title lion",
                    "logprob": -1.0,
                    "score": 0.0,
                    "probability": pytest.approx(shares[0]),
                },
                {
                    "entity_id": "Elion'",
                    "title": "Title lion",
                    "logprob": -2.0,
                    "score": -1.0,
                    "probability": pytest.approx(shares[1]),
                },
            ],
            "certified": False,
            "mass": None,
            "mention_source": "given",
            "method": "beam",
            "error": None,
            "index_digest": DIGEST,
        }
    ]
    assert list(run.rows[0]) == SCHEMA.names
    assert pa.Table.from_pylist(run.rows, schema=SCHEMA).num_rows == 1
    assert run.counts == LinkCounts(num_documents=1, num_mentions=1, num_linked=1, num_rows=1)


def test_mentions_across_line_ends_and_combining_marks_are_placed_in_characters_and_bytes() -> None:
    crossing = "lion\r\nin Cafe\u0301"
    run = LinkRun(document(EMOJI, crossing, "Nile", "🦁"))
    encoded = EMOJI.encode()
    for row in run.rows:
        assert EMOJI[row["start"] : row["end"]] == row["mention"]
        assert encoded[row["start_byte"] : row["end_byte"]].decode() == row["mention"]
    assert run.column("mention") == [crossing, "Nile", "🦁"]
    # The template writes line ends as blanks, as it does for `Retriever.link`.
    assert "[lion in Cafe\u0301]" in " ".join(run.retriever.queries)


def test_overlapping_mentions_are_rows_of_their_own_in_the_order_given() -> None:
    run = LinkRun(document("New York City", "York", "New York City", "New York", (4, 8)))
    assert run.column("mention") == ["York", "New York City", "New York", "York"]
    assert run.counts.num_cached == 1
    assert run.rows[0] == run.rows[3]


def test_context_is_cut_at_the_templates_width_and_never_leaves_the_document() -> None:
    first, second = (
        document("0123456789abcdef name fedcba9876543210", "name"),
        document("name", "name", row=2),
    )
    run = LinkRun(first, second)
    assert sorted(run.retriever.queries) == ["789abcdef [name] fedcba987", "[name]"]
    wide = LinkRun(first, second, context_chars=3)
    assert sorted(wide.retriever.queries) == ["[name]", "ef [name] fe"]
    assert LinkRun(first, context_chars=0).retriever.queries == ["[name]"]
    assert LinkRun(first, prompt="bare").retriever.queries == ["[name]"]
    assert LinkRun(first, prompt="bare").retriever.batches[0][0].prompt == "bare"


def test_parts_of_a_document_have_the_offsets_of_the_whole() -> None:
    whole = "é🦁 Nile and Paris"
    spans = (Span(3, 7), Span(12, 17))
    cut = 10
    parts = [
        Document("f", 1, "d", whole, spans, begin=0, end=cut),
        Document(
            "f",
            1,
            "d",
            whole[3:],
            tuple(Span(s.start - 3, s.end - 3) for s in spans),
            begin=cut - 3,
            offset=3,
            byte_offset=len(whole[:3].encode()),
        ),
    ]
    run = LinkRun(*parts, context_chars=2)
    together = LinkRun(Document("f", 1, "d", whole, spans), context_chars=2)
    assert run.rows == together.rows
    assert run.counts.num_documents == 1
    assert run.column("start_byte") == [7, 16]


def test_repeated_mentions_are_asked_about_once() -> None:
    documents = [document("x Nile y Nile", "Nile", row=n) for n in range(1, 101)]
    run = LinkRun(*documents)
    assert run.retriever.queries == ["x [Nile] y Nile"]
    assert (run.counts.num_mentions, run.counts.num_cached, run.counts.num_rows) == (100, 99, 100)
    assert run.column("row") == list(range(1, 101))


def test_the_cache_lives_on_from_shard_to_shard_and_is_bounded() -> None:
    run = LinkRun(document("a", "a"), document("b", "b", row=2), document("c", "c", row=3), cache_entries=2)
    for text, cached in (("c", 1), ("b", 2), ("a", 2), ("c", 2)):  # a was given up, then c
        counts = run.counts
        list(run.linker.link([document(text, text)], counts, run.complaints.append))
        assert counts.num_cached == cached
    assert run.retriever.queries == ["[a]", "[b]", "[c]", "[a]", "[c]"]
    off = LinkRun(document("a", "a"), cache_entries=0)
    list(off.linker.link([document("a", "a")], off.counts, off.complaints.append))
    assert off.retriever.queries == ["[a]", "[a]"]
    assert off.counts.num_cached == 0


def test_batches_are_full_across_documents_and_sorted_by_length() -> None:
    texts = ["m" * (1 + n % 9) + str(n) for n in range(64)]
    run = LinkRun(*(document(text, text, row=n) for n, text in enumerate(texts, 1)), batch_size=8)
    assert [len(batch) for batch in run.retriever.batches] == [8] * 8
    lengths = [len(query) for query in run.retriever.queries]
    assert lengths == sorted(lengths)
    assert run.column("mention") == texts
    assert [report["num_mentions"] for report in run.reports] == [8 * n for n in range(1, 9)]


@pytest.mark.parametrize(
    ("mention", "options", "reason"),
    [
        ("nothing", {}, "no_match"),
        ("withheld", {"method": "disc", "min_mass": 0.6}, "abstained"),
        ("m-4", {"min_logprob": -3.0}, "min_logprob"),
        ("m-3", {"min_logprob": -3.0}, None),
        ("m", {"min_probability": 0.74}, "min_probability"),
        ("m", {"min_probability": 0.73}, None),
        ("m", {"method": "disc", "min_probability": 0.76}, "min_probability"),
        ("m", {"method": "disc", "min_probability": 0.75}, None),
        ("broken", {}, "error"),
    ],
)
def test_nil_says_why(mention: str, options: dict[str, Any], reason: str | None) -> None:
    run = LinkRun(document(mention, mention), k=2, **options)
    (row,) = run.rows
    assert row["nil_reason"] == reason
    assert reason is None or reason in NIL_REASONS
    is_nil = reason is not None
    for name in ("entity_id", "title", "surface", "logprob", "score", "probability"):
        assert (row[name] is None) == is_nil
    assert bool(row["candidates"]) == (reason not in ("no_match", "abstained", "error"))
    assert (run.counts.num_linked, run.counts.num_nil) == (not is_nil, is_nil)
    assert run.counts.num_failed == (reason == "error")
    dropped = LinkRun(document(mention, mention), k=2, keep_nil=False, **options)
    assert len(dropped.rows) == dropped.counts.num_rows == (not is_nil)
    assert dropped.counts.num_nil == is_nil


def test_mass_and_method_of_disc_are_written() -> None:
    run = LinkRun(document("m", "m"), method="disc", k=1, seed=5)
    assert (run.rows[0]["mass"], run.rows[0]["method"], run.rows[0]["certified"]) == (0.5, "disc", None)
    assert run.rows[0]["probability"] == 0.75
    assert run.retriever.batches[0][0].seed == 5


def test_lists_that_were_not_proven_are_counted_where_that_was_asked_for() -> None:
    texts = ("a", "vague", "nothing", "broken")
    documents = [document(text, text, row=n) for n, text in enumerate(texts, 1)]
    assert LinkRun(*documents, exact=True).counts.num_unproven == 1
    assert LinkRun(*documents).counts.num_unproven == 0


def test_failed_mentions_are_rows_and_hurt_no_neighbour() -> None:
    run = LinkRun(document("fine broken  fine", "fine", "broken", (11, 13)))
    assert run.column("error") == [None, "the model is broken in two lines", "mention: must not be empty"]
    assert run.column("nil_reason") == [None, "error", "error"]
    # The empty one fails at once, the other when the model is asked.
    assert run.complaints == [
        "in.jsonl, line 1: document 'd1', characters [11, 13): mention: must not be empty",
        "in.jsonl, line 1: document 'd1', characters [5, 11): the model is broken in two lines",
    ]
    assert run.counts == LinkCounts(
        num_documents=1, num_mentions=3, num_linked=1, num_nil=2, num_failed=2, num_rows=3
    )


def test_failures_are_not_kept() -> None:
    run = LinkRun(document("broken", "broken"))
    list(run.linker.link([document("broken", "broken")], run.counts, run.complaints.append))
    assert len(run.retriever.queries) == 2
    assert run.counts.num_cached == 0


def test_long_contexts_are_cut_evenly_around_the_mention() -> None:
    text = "abcdefgh name ijklmnop"
    run = LinkRun(document(text, "name"), retriever=ScriptedRetriever(max_tokens=12), context_chars=100)
    assert run.retriever.queries == ["abcdefgh [name] ijklmnop", "gh [name] ij"]
    assert run.column("error") == [None]
    short_left = "b name ijklmnop"
    run = LinkRun(document(short_left, "name"), retriever=ScriptedRetriever(max_tokens=12), context_chars=100)
    assert run.retriever.queries[-1] == "b [name] ijk"


def test_a_mention_that_cannot_fit_at_all_fails_alone() -> None:
    text = "short and far too long"
    run = LinkRun(document(text, "short", "far too long"), retriever=ScriptedRetriever(max_tokens=9))
    assert run.column("error") == [None, "mention: too long: 14 tokens, the model takes at most 9"]
    assert run.counts.num_failed == 1
    assert "characters [10, 22)" in run.complaints[0]


def test_bad_documents_are_counted_and_complained_about() -> None:
    run = LinkRun(BadDocument("in.jsonl", 1, "no JSON"), document("a", "a", row=2))
    assert run.complaints == ["in.jsonl, line 1: no JSON"]
    assert run.counts == LinkCounts(
        num_documents=1, num_mentions=1, num_linked=1, num_bad_documents=1, num_rows=1
    )


def test_empty_documents_have_no_rows() -> None:
    run = LinkRun(document(""), Document("f", 2, "e", ""), document("text"), finder=Names({"text": ["E"]}))
    assert run.rows == []
    assert run.blocks == []
    assert run.counts == LinkCounts(num_documents=3)


def test_mentions_come_from_the_spans_or_from_the_finder() -> None:
    marked, unmarked = document("Nile Paris", "Nile"), Document("f", 2, "u", "Nile Paris")
    none = document("Nile Paris", row=3)  # marked to have none
    finder = Names({"Paris": ["E1"]})
    sources = {
        "auto": [("Nile", "given"), ("Paris", "found")],
        "given": [("Nile", "given")],
        "found": [("Paris", "found")] * 3,
    }
    for mentions, expected in sources.items():
        run = LinkRun(marked, unmarked, none, finder=finder, mentions=mentions)
        assert list(zip(run.column("mention"), run.column("mention_source"), strict=True)) == expected
    assert LinkRun(unmarked, mentions="found").rows == []


def test_documents_are_read_no_further_than_a_window_ahead() -> None:
    read = 0

    def documents() -> Iterator[Document]:
        nonlocal read
        for n in range(1, 2001):
            read = n
            yield document(f"name{n}", f"name{n}", row=n)

    worker = WorkerOptions("-", batch_size=4, cache_entries=10)
    linker = DocumentLinker(ScriptedRetriever(), LinkOptions(), worker)  # type: ignore[arg-type]
    written = 0
    for rows in linker.link(documents(), LinkCounts(), lambda line: None):
        assert read - written <= 64
        assert len(rows) <= 64
        written += len(rows)
    assert written == 2000


def test_rows_of_one_huge_document_come_in_blocks() -> None:
    text = "ab" * 50_000
    spans = tuple(Span(n, n + 2) for n in range(0, 100_000, 2))
    retriever = ScriptedRetriever()
    linker = DocumentLinker(
        retriever,  # type: ignore[arg-type]
        LinkOptions(prompt="bare"),
        WorkerOptions("-", batch_size=4),
    )
    blocks = linker.link([Document("f", 1, "huge", text, spans)], LinkCounts(), lambda line: None)
    sizes = [len(rows) for rows in blocks]
    assert sum(sizes) == 50_000
    assert max(sizes) <= 4 * 16 * 16
    assert len(retriever.queries) == 1


def test_documents_without_mentions_are_reported_now_and_then() -> None:
    run = LinkRun(*(document("", row=n) for n in range(1, 2501)))
    assert [report["num_documents"] for report in run.reports] == [999, 1999]
    assert run.counts.num_documents == 2500


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt": "no such"}, "prompt"),
        ({"filter": "unknown = 1"}, "filter"),
        ({"candidates": "named"}, "candidates"),
        ({"min_probability": 0.5, "k": 1}, "min_probability"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_read(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError) as error:
        LinkRun(**options)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("method", "asked"), [("auto", ["a", "b"]), ("shortlist", ["a", "b"]), ("beam", [None])]
)
def test_evidence_is_asked_with_the_mention_alone(method: str, asked: list[str | None]) -> None:
    retriever = ScriptedRetriever()
    retriever.ranker.can_propose = True
    # Markup in the text: both are put to the model as "[a] [b]".
    documents = document("a [b]", "a"), document("[a] b", "b", row=2)
    run = LinkRun(*documents, retriever=retriever, method=method)
    assert run.retriever.queries == ["[a] [b]"] * len(asked)
    (batch,) = retriever.batches
    assert [request.shortlist_query for request in batch] == asked


def test_options_of_a_shortlist_are_asked_for() -> None:
    options = {"shortlist_size": 7, "vector_weight": 2.0, "decoder": "disc", "seed": 3}
    run = LinkRun(document("m", "m"), **options)
    ((request,),) = run.retriever.batches
    assert {name: getattr(request, name) for name in options} == options
    assert request.method == "auto"


@pytest.mark.parametrize("can_propose", [False, True])
def test_evidence_that_cannot_be_used_is_refused_before_anything_is_read(can_propose: bool) -> None:
    retriever = ScriptedRetriever()
    retriever.ranker.problem = IndexChecksumError("vectors.faiss", "differs")
    retriever.ranker.can_propose = can_propose  # by what is left: rows must not depend on a worker
    LinkRun(document("m", "m"), retriever=retriever, method="beam")
    for method in ("auto", "shortlist"):
        with pytest.raises(IndexChecksumError, match=r"vectors\.faiss: differs"):
            LinkRun(document("m", "m"), retriever=retriever, method=method)
    assert len(retriever.batches) == 1


def test_a_shortlist_needs_evidence_unless_few_may_be_meant() -> None:
    with pytest.raises(EvidenceMissingError):
        LinkRun(document("m", "m"), method="shortlist")
    few = ScriptedRetriever()
    few.index.num_entities = 100
    LinkRun(document("m", "m"), retriever=few, method="shortlist")
    LinkRun(document("m", "m"), finder=Names({"m": ["Em"]}), candidates="named", method="shortlist")
    with pytest.raises(EvidenceMissingError):
        LinkRun(document("m", "m"), retriever=few, method="shortlist", shortlist_size=99)


def test_named_candidates_have_an_order_of_their_own_and_any_entities_that_of_the_ranking() -> None:
    names = Names({"m": ["Em", "En"]})
    entities = {one: Entity(one, "m") for one in ("Em", "En")}
    (named,), (given,), (drawn,), (weighed,) = (
        LinkRun(
            document("m", "m"), finder=names, retriever=ScriptedRetriever(entities=entities), **options
        ).retriever.batches[0]
        for options in (
            {"candidates": "named"},
            {"candidates": "all"},
            {"candidates": "all", "decoder": "disc"},
            {"candidates": "named", "vector_weight": 2.0},
        )
    )
    assert [r.is_ranked for r in (named, given, drawn, weighed)] == [False, True, True, False]
    assert [r.similarity_weight for r in (named, weighed)] == [0.0, 2.0]
    retriever = ScriptedRetriever(entities=entities)
    LinkRun(document("m", "m"), finder=names, retriever=retriever, candidates="named", method="beam")
    ((beam,),) = retriever.batches
    assert beam.vector_weight is None
