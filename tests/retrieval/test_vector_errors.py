"""What keeps evidence from being used is told to whoever asks, each by an error of its own."""

from __future__ import annotations

import traceback

import pytest

from retrieval import Retriever, RetrieveRequest
from retrieval.errors import (
    EvidenceMissingError,
    GenretError,
    IndexChecksumError,
    InputError,
    MissingExtraError,
)
from retrieval.evidence.evidence import Evidence
from retrieval.index.reader import Index
from retrieval.ranking.ranker import Ranker
from retrieval.ranking.rankings import DEFAULT_RANKING
from retrieval.text import TextTokenizer
from tests.checkpoints import END, checkpoint_config, make_index, train_tokenizer
from tests.fakes import TableModel

CONFIG = checkpoint_config()
TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
MODEL = TableModel.random(TOKENIZER.vocab_size, seed=1)
PROBLEMS = {
    "missing": EvidenceMissingError("the index has no vectors"),
    "damaged": IndexChecksumError("vectors.faiss", "expected 1, got 2"),
    "extra": MissingExtraError("faiss", "vectors"),
    "input": InputError("encoder", "expected a model"),
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.open(make_index(tmp_path_factory.mktemp("i"), TOKENIZER, rendering=CONFIG.rendering))


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


def test_requests_of_a_batch_have_errors_of_their_own(index: Index) -> None:
    retriever = Retriever(index, MODEL, TOKENIZER, CONFIG, is_named=False)
    asked = [
        RetrieveRequest("one", method="shortlist", shortlist_size=2, deny_ids=(denied,))
        for denied in ("Q1", "Q2")
    ]
    first, second = retriever.retrieve_batch(asked)
    assert isinstance(first, GenretError)
    assert isinstance(second, EvidenceMissingError)
    assert first is not second
    assert str(first) == str(second)
