"""Titles that a model wrote without a constraint, and rankings of another system (run:FILE)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from genret.retrieval.errors import SourceError
from genret.retrieval.evaluation.datasets.index_entities import EntityFinder
from genret.retrieval.evaluation.labelled_sets import LabelledQuery, RankedEntity
from genret.retrieval.evaluation.methods.generated import GeneratedTitle, Generator
from genret.retrieval.evaluation.methods.model_free_methods import RunFileMethod
from genret.retrieval.index.owners import FormOwners
from genret.retrieval.index.reader import Index
from genret.retrieval.retriever import Retriever
from genret.retrieval.text import TextTokenizer
from tests.checkpoints import make_checkpoint, make_index, train_tokenizer
from tests.evaluation_fixtures import make_method, query_set

QUERY = [LabelledQuery("q", "anything")]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    folder = tmp_path_factory.mktemp("written")
    checkpoint = make_checkpoint(folder / "model", "bart")
    with Retriever.open(make_index(folder, checkpoint), checkpoint) as opened:
        yield opened


def named(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, texts: Sequence[str], ends: bool = True
) -> tuple[RankedEntity, ...]:
    """What an unconstrained method makes of texts, written one letter a token as no row of the index is."""
    end = (retriever.index.end_token_id,) if ends else ()
    letters = [[t for letter in text for t in retriever.tokenizer.encode_text(letter)] for text in texts]
    written = [GeneratedTitle((*tokens, *end), -1, -float(rank)) for rank, tokens in enumerate(letters)]
    return answer(retriever, monkeypatch, f"unconstrained:{max(2, len(texts))}", written)


def answer(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, name: str, written: list[GeneratedTitle]
) -> tuple[RankedEntity, ...]:
    monkeypatch.setattr(Generator, "write", lambda _, prompts: [written] * len(prompts))
    (ranking,) = make_method(name, retriever, 10, 4).answer(QUERY, 0, lambda _: None)
    return ranking.entities


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" Hamlet", ["Q1"]),
        ("Hamlet", ["Q1"]),
        (" The  Scottish Play ", ["Q2"]),
        (" Amazon", ["Q8", "Q9"]),
        (" Quicksilver", ["Q10", "Q11"]),
        (" Maria Sk\u0142odowska", ["Q12"]),
        (" hamlet", ["invalid:hamlet"]),
        (" Hamle", ["invalid:Hamle"]),
        ("", ["invalid:"]),
    ],
)
def test_text_is_looked_up_after_the_text_policy(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    assert [e.entity_id for e in named(retriever, monkeypatch, [text])] == expected


def test_text_without_an_end_is_no_title(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [e.entity_id for e in named(retriever, monkeypatch, [" Hamlet"], ends=False)] == ["invalid:Hamlet"]


def test_several_texts_rank_their_entities_once(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = named(retriever, monkeypatch, [" Mercury", " nothing", " Quicksilver", " Hamlet"])
    assert [e.entity_id for e in found] == ["Q10", "invalid:nothing", "Q11", "Q1"]
    assert [e.score for e in found] == [0.0, -1.0, -2.0, -3.0]
    assert [e.logprob for e in found] == [0.0, -1.0, -2.0, -3.0]


def test_tokens_of_a_row_need_no_text(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    index = retriever.index
    for rank in range(index.num_rows):
        row = [GeneratedTitle(index.row_token_ids(rank), -1, 0.0)]
        expected = [index.entity(number).entity_id for number in index.entities_of(rank)]
        assert [e.entity_id for e in answer(retriever, monkeypatch, "unconstrained", row)] == expected


@pytest.mark.parametrize(("text", "first"), [(" Amazon", "Q9"), (" Quicksilver", "Q11")])
@pytest.mark.parametrize("is_row", [False, True])
def test_entities_of_a_title_come_by_their_share(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch, text: str, first: str, is_row: bool
) -> None:
    index = retriever.index
    weights = np.ones(index.num_entities)
    weights[index.entities.numbers([first])] = 3
    monkeypatch.setattr(Index, "weights", weights)
    if not is_row:
        assert named(retriever, monkeypatch, [text])[0].entity_id == first
        return
    (tokens,) = retriever.tokenizer.encode_titles([text.strip()], index.rendering)
    assert tokens is not None
    row = [GeneratedTitle(tuple(tokens), -1, 0.0)]
    assert answer(retriever, monkeypatch, "unconstrained", row)[0].entity_id == first


def test_texts_are_shared_as_rows_are(retriever: Retriever) -> None:
    titles = EntityFinder(retriever.index)
    for rank in range(retriever.index.num_rows):
        text = retriever.index.surface(rank)
        assert titles.named(f" {text} ", 10.0) == FormOwners(retriever.index, None, 10.0)(rank)
    assert titles.named("nobody", 10.0).entities == []
    assert titles.known(["Q3", "Q99", "Q1"]) == {"Q1", "Q3"}
    assert titles.entities(["Q3", "Q99"])["Q3"].title == "Othello"


@pytest.fixture
def titles(tmp_path: Path) -> EntityFinder:
    tokenizer = TextTokenizer(train_tokenizer(), "</s>", "trained")
    return EntityFinder(Index.open(make_index(tmp_path, tokenizer)))


def test_answers_are_those_of_the_file(titles: EntityFinder, tmp_path: Path) -> None:
    file = tmp_path / "theirs.run"
    file.write_text("q2 Q0 Q3 1 9.5 them\nq2 Q0 Q2 2 8 them\nq2 Q0 Q99 3 7 them\nq1 Q0 Q1 1 1 them\n")
    method = RunFileMethod(f"run:{file}", str(file), 2, titles)
    rankings = method.answer(query_set().queries[:3], 0, lambda _: None)
    assert [r.query_id for r in rankings] == ["q1", "q2", "q3"]
    assert [[(e.entity_id, e.title) for e in r.entities] for r in rankings] == [
        [("Q1", "Hamlet")],
        [("Q3", "Othello"), ("Q2", "Macbeth")],
        [],
    ]
    assert all(ranking.seconds == 0 for ranking in rankings)


def test_entities_that_the_index_lacks_do_not_exist(titles: EntityFinder, tmp_path: Path) -> None:
    file = tmp_path / "theirs.run"
    file.write_text("q1 Q0 Q99 1 1 them\n")
    (ranking,) = RunFileMethod("run:x", str(file), 5, titles).answer(
        query_set().queries[:1], 0, lambda _: None
    )
    assert [e.entity_id for e in ranking.entities] == ["invalid:Q99"]


def test_a_malformed_file_is_refused_with_its_line(titles: EntityFinder, tmp_path: Path) -> None:
    file = tmp_path / "theirs.run"
    file.write_text("q1 Q0 Q1 1 1 them\nq1 Q0 Q1\n")
    with pytest.raises(SourceError, match=r"theirs\.run.*2"):
        RunFileMethod("run:x", str(file), 5, titles).answer(query_set().queries, 0, lambda _: None)
