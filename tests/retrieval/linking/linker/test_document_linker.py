"""Rows, counts and complaints of `open_linker` over scripted answers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import genret.retrieval.linking
from genret.retrieval.errors import EvidenceMissingError, IndexChecksumError, InputError, ModelError
from genret.retrieval.linking import link_documents
from genret.retrieval.linking.documents.text_document import BadDocument, Document, Span
from genret.retrieval.linking.generating import generator
from genret.retrieval.linking.generating.generator import GeneratedMention
from genret.retrieval.linking.link_options import GenerateOptions, LinkOptions
from genret.retrieval.linking.output.part_files import SCHEMA
from genret.retrieval.linking.run_progress import LinkCounts, LinkListener
from genret.retrieval.prompts import NameEvidence
from genret.retrieval.types import Entity
from tests.linking_fakes import NIL_REASONS
from tests.scripted_linking import DIGEST, LinkRun, Names, ScriptedRetriever, document

# 🦁 is four bytes and two UTF-16 units, é here two code points (e, combining acute) and three bytes.
EMOJI = "A 🦁 lion\r\nin Cafe\u0301 Nile"


def test_row_has_every_column_of_the_schema() -> None:
    text = EMOJI
    spans = (Span(text.index("lion"), text.index("lion") + 4, "m1"),)
    run = LinkRun(Document("in.jsonl", 7, "doc", text, spans), k=2)
    first, second = (pytest.approx(part / (1 + math.exp(-1))) for part in (1, math.exp(-1)))
    best = {"title": "Title lion", "logprob": -1.0, "score": 0.0, "probability": first}
    other = {"title": "Title lion", "logprob": -2.0, "score": -1.0, "probability": second}
    place = {"start": 4, "end": 8, "start_byte": 7, "end_byte": 11, "mention": "lion", "mention_id": "m1"}
    assert run.rows == [
        {
            **dict.fromkeys(("nil_reason", "mass", "error")),
            "source": "in.jsonl",
            "row": 7,
            "doc_id": "doc",
            **place,
            "surface": "lion",
            "entity_id": "Elion",
            **best,
            "certified": False,
            "mention_source": "given",
            "method": "beam",
            "candidates": [{"entity_id": "Elion", **best}, {"entity_id": "Elion'", **other}],
            "index_digest": DIGEST,
        }
    ]
    assert list(run.rows[0]) == SCHEMA.names
    assert pa.Table.from_pylist(run.rows, schema=SCHEMA).num_rows == 1
    assert run.counts == LinkCounts(num_documents=1, num_mentions=1, num_linked=1, num_rows=1)


def test_overlapping_mentions_are_rows_of_their_own_in_the_order_given() -> None:
    run = LinkRun(document("New York City", "York", "New York City", "New York", (4, 8)))
    assert run.column("mention") == ["York", "New York City", "New York", "York"]
    assert run.counts.num_cached == 1
    assert run.rows[0] == run.rows[3]


def test_context_is_cut_at_the_templates_width_and_never_leaves_the_document() -> None:
    first = document("0123456789abcdef name fedcba9876543210", "name")
    second = document("name", "name", row=2)
    run = LinkRun(first, second)
    assert sorted(run.retriever.queries) == ["789abcdef [name] fedcba987", "[name]"]
    wide = LinkRun(first, second, context_chars=3)
    assert sorted(wide.retriever.queries) == ["[name]", "ef [name] fe"]
    assert LinkRun(first, context_chars=0).retriever.queries == ["[name]"]
    assert LinkRun(first, prompt="bare").retriever.queries == ["[name]"]
    assert LinkRun(first, prompt="bare").retriever.batches[0][0].prompt == "bare"


def test_the_cache_lives_on_from_shard_to_shard_and_is_bounded() -> None:
    run = LinkRun(document("a", "a"), document("b", "b", row=2), document("c", "c", row=3), cache_entries=2)
    for text, cached in (("c", 1), ("b", 2), ("a", 2), ("c", 2)):  # a was given up, then c
        run.link(document(text, text))
        assert run.counts.num_cached == cached
    assert run.retriever.queries == ["[a]", "[b]", "[c]", "[a]", "[c]"]
    off = LinkRun(document("a", "a"), cache_entries=0)
    off.link(document("a", "a"))
    assert off.retriever.queries == ["[a]", "[a]"]
    assert off.counts.num_cached == 0


def test_batches_are_full_across_documents_and_sorted_by_length() -> None:
    texts = ["m" * (1 + n % 9) + str(n) for n in range(64)]
    documents = (document(text, text, row=n) for n, text in enumerate(texts, 1))
    run = LinkRun(*documents, batch_size=8, candidates="all")
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
    (row,) = run.rows
    assert [row[name] for name in ("mass", "method", "certified", "probability")] == [0.5, "disc", None, 0.75]
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
    run.link(document("broken", "broken"))
    assert (len(run.retriever.queries), run.counts.num_cached) == (3, 0)  # failures are not kept


def test_long_contexts_are_cut_evenly_around_the_mention() -> None:
    text = "abcdefgh name ijklmnop"
    run = LinkRun(document(text, "name"), retriever=ScriptedRetriever(max_tokens=12), context_chars=100)
    assert run.retriever.queries == ["abcdefgh [name] ijklmnop", "gh [name] ij"]
    assert run.column("error") == [None]
    short_left = "b name ijklmnop"
    run = LinkRun(document(short_left, "name"), retriever=ScriptedRetriever(max_tokens=12), context_chars=100)
    assert run.retriever.queries[-1] == "b [name] ijk"
    both = document("short and far too long", "short", "far too long")
    run = LinkRun(both, retriever=ScriptedRetriever(max_tokens=9))
    assert run.column("error") == [None, "mention: too long: 14 tokens, the model takes at most 9"]
    assert run.counts.num_failed == 1
    assert "characters [10, 22)" in run.complaints[0]


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

    linker = LinkRun(cache_entries=10).linker
    written = 0
    for rows in linker.link(documents(), LinkListener(LinkCounts(), lambda line: None)):
        assert read - written <= 64
        assert len(rows) <= 64
        written += len(rows)
    assert written == 2000


def test_rows_of_one_huge_document_come_in_blocks() -> None:
    text = "ab" * 10_000
    spans = tuple(Span(n, n + 2) for n in range(0, 20_000, 2))
    run = LinkRun(Document("f", 1, "huge", text, spans), prompt="bare")
    sizes = [len(rows) for rows in run.blocks]
    assert sum(sizes) == 10_000
    assert max(sizes) <= 4 * 16 * 16
    assert len(run.retriever.queries) == 1


def test_documents_without_mentions_are_reported_now_and_then() -> None:
    run = LinkRun(*(document("", row=n) for n in range(1, 2501)), candidates="all")
    assert [report["num_documents"] for report in run.reports] == [999, 1999]
    assert run.counts.num_documents == 2500


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt": "no such"}, "prompt"),
        ({"filter": "unknown = 1"}, "filter"),
        ({"min_probability": 0.5, "k": 1}, "min_probability"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_read(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        LinkRun(**options)


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

    def asked(**options: Any) -> Any:
        retriever = ScriptedRetriever(entities=entities)
        ((request,),) = LinkRun(
            document("m", "m"), finder=names, retriever=retriever, **options
        ).retriever.batches
        return request

    named, weighed = asked(candidates="named"), asked(candidates="named", vector_weight=2.0)
    given, drawn = asked(candidates="all"), asked(candidates="all", decoder="disc")
    assert [r.is_ranked for r in (named, given, drawn, weighed)] == [False, True, True, False]
    assert [r.similarity_weight for r in (named, weighed)] == [0.0, 2.0]
    assert asked(candidates="named", method="beam").vector_weight is None


ENTITIES = {
    "E1": Entity("E1", "Nile", ("River Nile",)),
    "E2": Entity("E2", "Paris"),
    "E3": Entity("E3", "Paris (Texas)", ("Paris",)),
}
NAMES = {"nile": ["E1"], "river nile": ["E1"], "Paris": ["E2", "E3"], "ghost": ["E9"]}


def run(*texts: str, **options: Any) -> LinkRun:
    return link_named(*(document(text, text, row=n) for n, text in enumerate(texts, 1)), **options)


def link_named(*documents: Document, retriever: ScriptedRetriever | None = None, **options: Any) -> LinkRun:
    asked = retriever or ScriptedRetriever(entities=ENTITIES)
    return LinkRun(*documents, retriever=asked, finder=Names(NAMES), **{"candidates": "named", **options})


def test_the_only_entity_of_a_name_needs_no_model() -> None:
    named = run("NILE", "River Nile", "nile")
    assert named.retriever.queries == []
    assert named.column("entity_id") == ["E1"] * 3
    assert named.column("surface") == ["Nile", "River Nile", "Nile"]
    for row in named.rows:
        assert (row["method"], row["logprob"], row["score"], row["probability"]) == ("name", None, None, 1.0)
        assert row["certified"] is True
        assert row["candidates"] == [
            {"entity_id": "E1", "title": "Nile", "logprob": None, "score": None, "probability": 1.0}
        ]
    assert named.counts.num_linked == 3
    assert named.counts.num_cached == 0
    assert named.retriever.index.num_passes == 1  # over the ids, for the whole window


def test_nobody_of_that_name_is_nil() -> None:
    named = run("nile", "nile", "nobody", "nobody", "ghost", " ")  # the index lacks the id of a ghost
    assert named.counts.num_cached == 2
    assert named.column("nil_reason") == [None, None, "no_name", "no_name", "no_name", "error"]
    for row in named.rows[2:]:
        assert (row["entity_id"], row["candidates"]) == (None, [])
    assert named.column("error") == [None] * 5 + ["mention: must not be empty"]


def test_several_are_put_to_the_model_and_all_of_them_are_listed() -> None:
    named = run("Paris", "paris", k=1)
    (batch,) = named.retriever.batches
    assert [(request.allow_ids, request.k) for request in batch] == [(("E2", "E3"), 2)] * 2
    assert named.column("method") == ["beam", "beam"]
    assert [len(candidates) for candidates in named.column("candidates")] == [1, 1]


def weighed(text: str, start: int, end: int, config: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return id -> probability of the candidates of one mention, in their order."""
    retriever = ScriptedRetriever(entities=ENTITIES)
    retriever.config = replace(retriever.config, **(config or {}))
    linked = link_named(document(text, (start, end)), retriever=retriever, **{"k": 9, **options})
    return {c["entity_id"]: c["probability"] for c in linked.rows[0]["candidates"]}


def test_name_text_and_model_weigh_as_the_page_says() -> None:
    """(P(e | q) + mention · P(e | m)) · context^[a word nearby], in proportion."""
    first, second = math.exp(-1.0), math.exp(-2.0)  # what the script has for P(e | q)
    title, alias = first + 0.5 * 10 / 11, second + 0.5 / 11
    alone = weighed("in Paris .", 3, 8)
    assert alone == pytest.approx({"E2": title / (title + alias), "E3": alias / (title + alias)})
    near = weighed("Texas: in Paris .", 10, 15)
    total = title + 9 * alias
    assert near == pytest.approx({"E2": title / total, "E3": 9 * alias / total})
    apart = first + 0.5 / 2, second + 0.5 / 2  # a run may set the weight of titles
    alone = weighed("in Paris .", 3, 8, title_weight=1.0)
    assert alone == pytest.approx({"E2": apart[0] / sum(apart), "E3": apart[1] / sum(apart)})
    other = {"title_weight": 2.0, "name_evidence": NameEvidence(mention=1.0, spelling=1.0, context=5.0)}
    title, alias = first + 2 / 3, 5 * (second + 1 / 3)
    assert weighed("Texas: in Paris .", 10, 15, other) == pytest.approx(
        {"E3": alias / (title + alias), "E2": title / (title + alias)}
    )
    assert list(weighed("Texas: in Paris .", 10, 15, other)) == ["E3", "E2"]


def test_a_word_counts_as_a_whole_and_near_the_mention_only() -> None:
    alone = weighed("in Paris .", 3, 8)
    far = "Texas " + "x" * 600
    for text in ("Texasville: in Paris .", f"{far} in Paris ."):
        start = text.index("Paris")
        assert weighed(text, start, start + 5) == pytest.approx(alone)


def test_samples_say_themselves_how_probable_an_entity_is() -> None:
    assert weighed("Texas: in Paris .", 10, 15, method="disc") == {"E2": 0.75, "E3": 0.1875}


def test_a_title_that_only_letter_case_tells_apart_is_the_one_that_is_spelled_so() -> None:
    cats = {"lower": Entity("lower", "Jungle cat"), "upper": Entity("upper", "Jungle Cat")}
    names = {"jungle cat": ["upper", "lower"]}

    for text, expected in (("Jungle cat", ["lower", "upper"]), ("Jungle Cat", ["upper", "lower"])):
        retriever = ScriptedRetriever(entities=cats)
        run = LinkRun(document(text, text), retriever=retriever, finder=Names(names), candidates="named")
        assert [c["entity_id"] for c in run.rows[0]["candidates"]] == expected


@pytest.mark.parametrize(
    "options", [{"min_logprob": -9.0}, {"filter": "kind = 'river'"}, {"method": "disc", "min_mass": 0.1}]
)
def test_the_model_is_asked_where_only_it_can_tell(options: dict[str, Any]) -> None:
    named = run("nile", **options)
    ((request,),) = named.retriever.batches
    assert request.allow_ids == ("E1",)
    asked = {name: value for name, value in options.items() if name != "min_logprob"}
    assert {name: getattr(request, name) for name in asked} == asked
    assert named.column("method") == [options.get("method", "beam")]


def test_the_same_query_with_another_name_is_another_question() -> None:
    # Markup in the text: both are put to the model as "[Paris] [nile]".
    marked = (("Paris] [nile", (0, 12)), ("[Paris] nile", (8, 12)), ("Paris [nile]", (0, 5)))
    linked = link_named(*(document(text, span, row=n) for n, (text, span) in enumerate(marked)))
    assert linked.retriever.queries == ["[Paris] [nile]"]
    assert linked.column("nil_reason") == ["no_name", None, None]
    assert linked.column("method") == ["auto", "name", "beam"]


@pytest.mark.parametrize(
    ("candidates", "expected"),
    [
        ("auto", [("found", "E1", "name"), ("given", "Enile", "beam"), ("given", "Enobody", "beam")]),
        ("named", [("found", "E1", "name"), ("given", "E1", "name"), ("given", None, "auto")]),
        ("all", [("found", "Enile", "beam"), ("given", "Enile", "beam"), ("given", "Enobody", "beam")]),
    ],
)
def test_found_mentions_are_names_and_given_ones_may_be_anything(
    candidates: str, expected: list[tuple[str, str | None, str]]
) -> None:
    """One context for both, so that an answer kept for the one must not be given to the other."""
    marked = Document("docs", 2, "marked", "nile nobody", (Span(0, 4), Span(5, 11)))
    found = Document("docs", 1, "found", "nile nobody")
    run = link_named(found, marked, candidates=candidates, context_chars=0)
    columns = zip(*(run.column(name) for name in ("mention_source", "entity_id", "method")), strict=True)
    assert list(columns) == expected


PARIS = (Entity("Q4", "Paris"), Entity("Q5", "Paris"), Entity("Q6", "Paris"))


class ScriptedGenerator:
    """Links every "Paris" of a text; where it holds "!", with too little probability; "broken" fails."""

    made: list[GenerateOptions]

    def __init__(self, retriever: object, options: GenerateOptions | None = None) -> None:
        self.made.append(options)

    def annotate_documents(
        self, documents: Iterable[Document | BadDocument]
    ) -> Iterator[tuple[Document | BadDocument, Any]]:
        for one in documents:
            if isinstance(one, BadDocument):
                yield one, []
            else:
                yield one, ModelError("the model is broken") if one.text == "broken" else self._links(one)

    def _links(self, document: Document) -> list[GeneratedMention]:
        start = document.text.find("Paris", document.begin, document.end)
        if start < 0:
            return []
        is_nil = "!" in document.text
        return [
            GeneratedMention(start, start + 5, "Paris", "Paris", PARIS, (0.5, 0.25, 0.25), -1.5, -0.5, is_nil)
        ]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[GenerateOptions]:
    monkeypatch.setattr(generator, "MentionGenerator", ScriptedGenerator)
    ScriptedGenerator.made = []
    return ScriptedGenerator.made


def test_links_become_rows_with_the_entities_of_the_title() -> None:
    document = Document("f", 3, "d", "é: Paris", byte_offset=10, offset=9, begin=0)
    run = LinkRun(document, mentions="generated", k=2)
    (row,) = run.rows
    assert list(row) == SCHEMA.names
    assert (row["start"], row["end"], row["start_byte"], row["end_byte"]) == (12, 17, 14, 19)
    found = tuple(row[name] for name in ("mention", "entity_id", "title", "surface"))
    assert found == ("Paris", "Q4", "Paris", "Paris")
    best = pytest.approx(-1.5 + math.log(0.5))
    assert (row["logprob"], row["score"], row["probability"], row["certified"]) == (best, best, 0.5, None)
    found = [(candidate["entity_id"], candidate["probability"]) for candidate in row["candidates"]]
    assert found == [("Q4", 0.5), ("Q5", 0.25)]
    assert row["candidates"][1]["logprob"] == pytest.approx(-1.5 + math.log(0.25))
    assert (row["mention_source"], row["method"], row["mention_id"]) == ("generated", "beam", None)
    assert run.counts == LinkCounts(num_documents=0, num_mentions=1, num_linked=1, num_rows=1)


def test_unlikely_titles_failures_and_bad_documents() -> None:
    documents = [
        Document("f", 1, "a", "Paris!"),
        BadDocument("f", 2, "no JSON"),
        Document("f", 3, "c", "broken"),
        Document("f", 4, "d", "nothing here"),
        Document("f", 5, "e", "Paris"),
    ]
    run = LinkRun(*documents, mentions="generated")
    assert run.column("nil_reason") == ["min_logprob", "error", None]
    assert run.column("row") == [1, 3, 5]
    assert run.rows[1]["error"] == "the model is broken"
    assert (run.rows[1]["start"], run.rows[1]["end"]) == (0, 6)
    assert run.complaints == [
        "f, line 2: no JSON",
        "f, line 3: document 'c', characters [0, 6): the model is broken",
    ]
    expected = LinkCounts(4, 3, num_linked=1, num_nil=2, num_failed=1, num_bad_documents=1, num_rows=3)
    assert run.counts == expected
    assert run.reports[-1]["num_documents"] == 4


def test_options_reach_the_generator(made: list[GenerateOptions]) -> None:
    LinkRun(mentions="generated")
    LinkRun(mentions="generated", beam_size=1, batch_size=9, min_logprob=-3.0, filter="kind = 'x'")
    LinkRun(mentions="generated", method="disc", seed=7, beam_size=2)
    assert made[0] == GenerateOptions(method="beam", batch_size=4)
    least = {"min_logprob": -3.0, "filter": "kind = 'x'"}
    assert made[1] == GenerateOptions(method="greedy", beam_size=1, batch_size=9, **least)  # type: ignore[arg-type]
    assert made[2] == GenerateOptions(method="disc", seed=7, beam_size=2, batch_size=4)


REFUSED: dict[str, Any] = {"candidates": "named", "context_chars": 5, "min_probability": 0.5, "exact": True}
REFUSED |= {"length_penalty": 0.5, "aggregate": "max", "method": "shortlist", "decoder": "disc"}
REFUSED |= {"shortlist_size": 5, "vector_weight": 0.5, "min_mass": 0.5, "adaptive": True}


@pytest.mark.parametrize("field", REFUSED)
def test_options_that_nobody_would_look_at_are_refused(field: str) -> None:
    method = {"method": "disc"} if field in ("min_mass", "adaptive") else {}
    with pytest.raises(InputError, match=f"^{field}: .*does not go with generated mentions"):
        LinkRun(mentions="generated", **method, **{field: REFUSED[field]})


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The options of every finder that was opened; each finds "Nile"."""
    made: list[object] = []

    def open_finder(index: object, options: object, cache_dir: object) -> Names:
        made.append(options)
        return Names({"Nile": ["E1"]})

    monkeypatch.setattr("genret.retrieval.linking.linker.open_finder", open_finder)
    return made


IN_TEXT = "must lie in the text, 0 <= start < end <= 3;"


def link(documents: Any, options: LinkOptions | None = None, **more: Any) -> Iterator[dict[str, Any]]:
    retriever = ScriptedRetriever(entities={"E1": Entity("E1", "Nile")})
    return link_documents(retriever, documents, options, **more)  # type: ignore[arg-type]


def test_texts_are_linked_by_the_names_of_the_index(opened: list[object]) -> None:
    rows = list(link(["The Nile.", "nothing", "A Nile"]))
    assert [(row["doc_id"], row["start"], row["entity_id"]) for row in rows] == [
        ("documents:1", 4, "E1"),
        ("documents:3", 2, "E1"),
    ]
    assert opened == [LinkOptions().find]
    endless = itertools.repeat("Nile")
    assert next(link(endless, batch_size=1))["doc_id"] == "documents:1"


def test_the_finder_is_not_made_where_nothing_is_looked_for(opened: list[object]) -> None:
    counts = LinkCounts()
    marked = Document("notes", 1, "n", "Mercury is liquid", (Span(0, 7, "m"),))
    (row,) = link([marked], counts=counts)
    assert (row["mention"], row["mention_id"], row["entity_id"]) == ("Mercury", "m", "EMercury")
    assert counts.num_linked == 1
    assert opened == []


def test_failed_mentions_are_rows_and_complaints(caplog: pytest.LogCaptureFixture) -> None:
    document = Document("notes", 1, "n", "broken", (Span(0, 6),))
    lines: list[str] = []
    (row,) = link([document], complain=lines.append)
    assert row["nil_reason"] == "error"
    assert lines == ["notes, line 1: document 'n', characters [0, 6): the model is broken in two lines"]
    assert not caplog.records
    list(link([document]))
    assert [record.getMessage() for record in caplog.records] == lines


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ("a text", r"documents: must be a sequence of documents, got str"),
        (["x", 5], r"documents\[1\]: must be a str or a Document, got int"),
        (["\ud800"], r"documents\[0\]: not valid Unicode: half a surrogate pair at character 1"),
        ([document("abc", (0, 1), (2, 4))], rf"documents\[0\].spans\[1\]: {IN_TEXT} got start 2, end 4"),
        ([document("abc", (1, 1))], rf"documents\[0\].spans\[0\]: {IN_TEXT} got start 1, end 1"),
    ],
)
def test_what_is_no_document_is_named(documents: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(link(documents))


def test_options_are_checked_before_anything_is_read() -> None:
    with pytest.raises(InputError, match="prompt: unknown template"):
        link([], LinkOptions(prompt="x"))
    with pytest.raises(InputError, match="batch_size: must be an integer of at least 1, got 0"):
        link([], batch_size=0)


def test_names_are_exported_lazily() -> None:
    assert dir(genret.retrieval.linking) == sorted(genret.retrieval.linking.__all__)
    for name in genret.retrieval.linking.__all__:
        assert getattr(genret.retrieval.linking, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = genret.retrieval.linking.nonsense
