"""Where all entities are scored, their similarities are those of the index: nothing is embedded anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from retrieval import Retriever
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from tests.checkpoints import END, checkpoint_config, make_index, train_tokenizer
from tests.fake_vectors import MadeUpVectors
from tests.fakes import TableModel

CONFIG = checkpoint_config()
TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
MODEL = TableModel.random(TOKENIZER.vocab_size, seed=1)


class CountedVectors(MadeUpVectors):
    """Counts the entities that a query is compared with."""

    num_compared = 0

    def similarities(self, vector: npt.NDArray[Any], entities: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        self.num_compared += len(entities)
        return super().similarities(vector, entities)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.open(make_index(tmp_path_factory.mktemp("i"), TOKENIZER, rendering=CONFIG.rendering))


@pytest.mark.parametrize("method", ["auto", "shortlist"])
@pytest.mark.parametrize("denied", [(), ("Q3", "Q7", "Q8")])
def test_every_entity_is_compared_once_and_no_text_is_embedded(
    index: Index, method: str, denied: tuple[str, ...]
) -> None:
    vectors = CountedVectors.of(index)
    retriever = Retriever(index, MODEL, TOKENIZER, CONFIG, ranker=vectors.opened(), is_named=False)
    (found,) = retriever.retrieve(["one"], k=12, method=method, vector_weight=3.0, deny_ids=denied)
    assert vectors.num_compared == 12 - len(denied)
    assert vectors.asked == [["one"]]
    assert len(found.candidates) == 12 - len(denied)
    assert found.certified
    assert found.shortlist_size == 12 - len(denied)
    alike = vectors.all_similarities("one")
    for candidate in found.candidates:
        (number,) = (n for n in range(12) if index.entity(n).entity_id == candidate.entity_id)
        assert candidate.similarity is not None
        assert candidate.similarity == pytest.approx(float(alike[number]), abs=1e-6)
        assert candidate.score == pytest.approx(candidate.logprob + 3 * candidate.similarity, abs=1e-5)
