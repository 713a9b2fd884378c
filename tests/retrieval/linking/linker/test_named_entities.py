"""Candidates that are called what the mention says: nobody, one, several."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from genret.retrieval.linking.documents.text_document import Document, Span
from genret.retrieval.prompts import NameEvidence
from genret.retrieval.types import Entity
from tests.scripted_linking import LinkRun, Names, ScriptedRetriever, document

ENTITIES = {
    "E1": Entity("E1", "Nile", ("River Nile",)),
    "E2": Entity("E2", "Paris"),
    "E3": Entity("E3", "Paris (Texas)", ("Paris",)),
}
NAMES = {"nile": ["E1"], "river nile": ["E1"], "Paris": ["E2", "E3"], "ghost": ["E9"]}


def run(*texts: str, **options: Any) -> LinkRun:
    return LinkRun(
        *(document(text, text, row=n) for n, text in enumerate(texts, 1)),
        retriever=ScriptedRetriever(entities=ENTITIES),
        finder=Names(NAMES),
        **{"candidates": "named", **options},
    )


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


def test_repeated_names_are_looked_up_once() -> None:
    named = run("nile", "nile", "nobody", "nobody")
    assert named.counts.num_cached == 2
    assert named.column("nil_reason") == [None, None, "no_name", "no_name"]


def test_nobody_of_that_name_is_nil() -> None:
    (row,) = run("nobody").rows
    assert (row["nil_reason"], row["entity_id"], row["candidates"], row["error"]) == (
        "no_name",
        None,
        [],
        None,
    )


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
    linked = LinkRun(
        Document("f", 1, "a", text, (Span(start, end),)),
        retriever=retriever,
        finder=Names(NAMES),
        **{"candidates": "named", "k": 9, **options},
    )
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
    other = {"title_weight": 2.0, "name_evidence": NameEvidence(mention=1.0, spelling=1.0, context=5.0)}
    title, alias = first + 2 / 3, 5 * (second + 1 / 3)
    assert weighed("Texas: in Paris .", 10, 15, other) == pytest.approx(
        {"E3": alias / (title + alias), "E2": title / (title + alias)}
    )
    assert list(weighed("Texas: in Paris .", 10, 15, other)) == ["E3", "E2"]


def test_a_run_sets_the_weight_of_titles() -> None:
    title, alias = math.exp(-1.0) + 0.5 / 2, math.exp(-2.0) + 0.5 / 2
    alone = weighed("in Paris .", 3, 8, title_weight=1.0)
    assert alone == pytest.approx({"E2": title / (title + alias), "E3": alias / (title + alias)})


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

    def of(text: str) -> list[str]:
        linked = LinkRun(
            document(text, text),
            retriever=ScriptedRetriever(entities=cats),
            finder=Names(names),
            candidates="named",
        )
        return [c["entity_id"] for c in linked.rows[0]["candidates"]]

    assert of("Jungle cat") == ["lower", "upper"]
    assert of("Jungle Cat") == ["upper", "lower"]


@pytest.mark.parametrize(
    "options", [{"min_logprob": -9.0}, {"filter": "kind = 'river'"}, {"method": "disc", "min_mass": 0.1}]
)
def test_the_model_is_asked_where_only_it_can_tell(options: dict[str, Any]) -> None:
    named = run("nile", **options)
    ((request,),) = named.retriever.batches
    assert request.allow_ids == ("E1",)
    assert named.column("method") == [options.get("method", "beam")]


def test_an_id_that_the_index_lacks_is_nobody() -> None:
    assert run("ghost").column("nil_reason") == ["no_name"]


def test_an_empty_mention_fails_before_it_is_looked_up() -> None:
    assert run(" ").column("error") == ["mention: must not be empty"]


def test_the_same_query_with_another_name_is_another_question() -> None:
    # Markup in the text: both are put to the model as "[Paris] [nile]".
    text = "[Paris] [nile]"
    first = Document("f", 1, "a", "Paris] [nile", (Span(0, 12),))
    second = Document("f", 2, "b", "[Paris] nile", (Span(8, 12),))
    third = Document("f", 3, "c", "Paris [nile]", (Span(0, 5),))
    linked = LinkRun(
        first,
        second,
        third,
        retriever=ScriptedRetriever(entities=ENTITIES),
        finder=Names(NAMES),
        candidates="named",
    )
    assert linked.retriever.queries == [text]
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
    run = LinkRun(
        Document("docs", 1, "found", "nile nobody"),
        marked,
        retriever=ScriptedRetriever(entities=ENTITIES),
        finder=Names(NAMES),
        candidates=candidates,
        context_chars=0,
    )
    columns = zip(*(run.column(name) for name in ("mention_source", "entity_id", "method")), strict=True)
    assert list(columns) == expected
