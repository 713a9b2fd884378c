"""Rows of mentions that a generator writes: places, candidates, failures, options that do not go with it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from genret.retrieval.errors import InputError, ModelError
from genret.retrieval.linking.documents.text_document import BadDocument, Document
from genret.retrieval.linking.generating import generator
from genret.retrieval.linking.generating.written_links import GeneratedMention
from genret.retrieval.linking.link_options import GenerateOptions
from genret.retrieval.linking.output.part_files import SCHEMA
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.types import Entity
from tests.scripted_linking import LinkRun

PARIS = (Entity("Q4", "Paris"), Entity("Q5", "Paris"), Entity("Q6", "Paris"))


class ScriptedGenerator:
    """Links every "Paris" of a text; where it holds "!", with too little probability; "broken" fails."""

    made: list[GenerateOptions]

    def __init__(self, retriever: object, options: GenerateOptions | None = None) -> None:
        assert options is not None
        self.made.append(options)

    def annotate_documents(
        self, documents: Iterable[Document | BadDocument]
    ) -> Iterator[tuple[Document | BadDocument, Any]]:
        for document in documents:
            if isinstance(document, BadDocument):
                yield document, []
            elif document.text == "broken":
                yield document, ModelError("the model is broken")
            else:
                yield document, self._links(document)

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
    assert (row["mention"], row["entity_id"], row["title"], row["surface"]) == (
        "Paris",
        "Q4",
        "Paris",
        "Paris",
    )
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
    assert run.counts == LinkCounts(
        num_documents=4,
        num_mentions=3,
        num_linked=1,
        num_nil=2,
        num_failed=1,
        num_bad_documents=1,
        num_rows=3,
    )
    assert run.reports[-1]["num_documents"] == 4


def test_options_reach_the_generator(made: list[GenerateOptions]) -> None:
    LinkRun(mentions="generated")
    LinkRun(mentions="generated", beam_size=1, batch_size=9, min_logprob=-3.0, filter="kind = 'x'")
    LinkRun(mentions="generated", method="disc", seed=7, beam_size=2)
    assert made[0] == GenerateOptions(method="beam", batch_size=4)
    assert made[1] == GenerateOptions(
        method="greedy", beam_size=1, batch_size=9, min_logprob=-3.0, filter="kind = 'x'"
    )
    assert made[2] == GenerateOptions(method="disc", seed=7, beam_size=2, batch_size=4)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"candidates": "named"}, "candidates"),
        ({"context_chars": 5}, "context_chars"),
        ({"min_probability": 0.5}, "min_probability"),
        ({"method": "disc", "min_mass": 0.5}, "min_mass"),
        ({"method": "disc", "adaptive": True}, "adaptive"),
        ({"exact": True}, "exact"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"aggregate": "max"}, "aggregate"),
        ({"method": "shortlist"}, "method"),
        ({"decoder": "disc"}, "decoder"),
        ({"shortlist_size": 5}, "shortlist_size"),
        ({"vector_weight": 0.5}, "vector_weight"),
    ],
)
def test_options_that_nobody_would_look_at_are_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match="does not go with generated mentions") as error:
        LinkRun(mentions="generated", **options)
    assert error.value.field == field
