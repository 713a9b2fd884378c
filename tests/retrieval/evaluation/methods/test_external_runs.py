"""`run:FILE`: rankings of another system."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.errors import SourceError
from retrieval.evaluation.datasets.index_entities import EntityFinder
from retrieval.evaluation.methods.model_free_methods import RunFileMethod
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from tests.checkpoints import make_index, train_tokenizer
from tests.evaluation_fixtures import query_set


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
