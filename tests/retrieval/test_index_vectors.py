"""Vectors that a retriever opens with its index, asks, or does without; errors that keep it from that."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret import Retriever
from genret.index_builder.build_options import VectorBuildOptions
from genret.retrieval.errors import EvidenceMissingError, IndexChecksumError, InputError, MissingExtraError
from genret.retrieval.evidence.evidence import Evidence
from genret.retrieval.index.reader import Index
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.ranking.rankings import DEFAULT_RANKING
from genret.retrieval.vectors.embedder import VectorMethod
from tests.checkpoints import make_index
from tests.fake_vectors import MadeUpVectors
from tests.fakes import TableModel, recorded
from tests.table_retrievers import CONFIG, TOKENIZER

MODEL = TableModel.random(TOKENIZER.vocab_size, seed=1)


@pytest.fixture
def folder(tmp_path: Path, trigrams: VectorMethod) -> Path:
    """An index with vectors and no other evidence."""
    wish = VectorBuildOptions(trigrams)
    return make_index(tmp_path, TOKENIZER, rendering=CONFIG.rendering, vectors=wish, evidence=None)


def opened(folder: Path, encoder: str | None = None) -> Retriever:
    index = Index.open(folder)
    ranker = Ranker.open(index, encoder)
    return Retriever(index, MODEL, TOKENIZER, CONFIG, ranker=ranker)


def test_an_index_with_vectors_proposes_what_is_alike(folder: Path) -> None:
    with opened(folder) as retriever:
        assert retriever.vectors is not None
        assert retriever.ranker.problems == {}
        (result,) = retriever.retrieve("mercury planett", k=2, method="shortlist", shortlist_size=2)
        assert {c.entity_id for c in result.candidates} == {"Q10", "Q11"}
        for candidate in result.candidates:
            assert candidate.similarity > 0.3
        (auto,) = retriever.retrieve("mercury planett", k=12, shortlist_size=2)
        assert {"Q10", "Q11"} <= {c.entity_id for c in auto.candidates}
        assert all(c.similarity is not None for c in auto.candidates)
        assert all(set(c.shares) <= {"vectors", "model"} for c in auto.candidates)
        retriever.warm_up()


def test_an_encoder_that_lies_elsewhere_must_be_the_one_that_made_the_vectors(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("trigrams", "another"):
        (tmp_path / name).mkdir()
    with opened(folder, str(tmp_path / "trigrams")) as retriever:
        assert retriever.ranker.problems == {}
    with caplog.at_level(logging.WARNING), opened(folder, str(tmp_path / "another")) as retriever:
        assert list(retriever.ranker.problems) == ["vectors"]
        assert retriever.retrieve("one", shortlist_size=2)[0].missing_evidence == ("vectors",)
    (record,) = caplog.records
    assert "the vectors of" in record.getMessage()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.open(make_index(tmp_path_factory.mktemp("plain"), TOKENIZER, rendering=CONFIG.rendering))


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_rows_read_together_are_those_read_one_by_one(index: Index, data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, index.num_rows - 1), max_size=40))
    read = index.rows.token_ids_of(np.array(ranks, dtype=np.int64))
    assert read == [index.row_token_ids(rank) for rank in ranks]


@pytest.mark.parametrize("rank", [-1, 21, 2**40, -(2**40)])
def test_a_rank_without_a_row_is_refused(index: Index, rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank: expected 0 <= rank < 21, got {rank}$"):
        index.rows.token_ids_of(np.array([3, rank], dtype=np.int64))


PROBLEMS = {
    "missing": EvidenceMissingError("the index has no vectors"),
    "damaged": IndexChecksumError("vectors.faiss", "expected 1, got 2"),
    "extra": MissingExtraError("faiss", "vectors"),
    "input": InputError("encoder", "expected a model"),
}


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_an_error_asked_for_again_holds_no_frames_of_those_before(index: Index, name: str) -> None:
    problem = PROBLEMS[name]
    ranker = Ranker(Evidence(index, problems={"vectors": problem}), DEFAULT_RANKING, DEFAULT_RANKING)
    retriever = Retriever(index, MODEL, TOKENIZER, CONFIG, ranker=ranker, is_named=False)
    depths = []
    for _ in range(4):
        with pytest.raises(type(problem)) as caught:
            retriever.retrieve("one", method="shortlist", shortlist_size=2)
        depths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert caught.value is not problem
        assert str(caught.value) == str(problem)
        assert vars(caught.value) == vars(problem)
    assert len(set(depths)) == 1
    assert problem.__traceback__ is None


@pytest.mark.parametrize("method", ["auto", "shortlist"])
@pytest.mark.parametrize("denied", [(), ("Q3", "Q7", "Q8")])
def test_every_entity_is_compared_once_and_no_text_is_embedded(
    index: Index, monkeypatch: pytest.MonkeyPatch, method: str, denied: tuple[str, ...]
) -> None:
    vectors = MadeUpVectors(index)
    compared = recorded(monkeypatch, vectors, "similarities")
    retriever = Retriever(index, MODEL, TOKENIZER, CONFIG, ranker=vectors.opened(), is_named=False)
    (found,) = retriever.retrieve(["one"], k=12, method=method, vector_weight=3.0, deny_ids=denied)
    assert sum(len(entities) for _, entities in compared) == 12 - len(denied)
    assert vectors.asked == [["one"]]
    assert len(found.candidates) == 12 - len(denied)
