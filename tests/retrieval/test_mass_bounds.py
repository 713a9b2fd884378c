"""What `shortlist` and `auto` say about P_L(S) is a probability, and its bounds stay in order if rounded."""

from __future__ import annotations

import pytest

from retrieval import Retriever, RetrieveRequest
from retrieval.index.reader import Index
from retrieval.text import TextTokenizer
from retrieval.types import RetrievalResult
from tests.checkpoints import END, checkpoint_config, make_index, train_tokenizer
from tests.fake_vectors import MadeUpVectors
from tests.fakes import likely_titles

CONFIG = checkpoint_config()
TOKENIZER = TextTokenizer(train_tokenizer(), END, "tiny")
QUERIES = [f"query {letter}" for letter in "abcdefghijklmnop"]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    """Answers by a model that writes nothing but titles of the catalogue."""
    index = Index.open(make_index(tmp_path_factory.mktemp("i"), TOKENIZER, rendering=CONFIG.rendering))
    model = likely_titles(index, seed=5, boost=60.0)
    return Retriever(index, model, TOKENIZER, CONFIG, ranker=MadeUpVectors.of(index).opened())


def answers(retriever: Retriever, **options: object) -> list[RetrievalResult]:
    asked = [RetrieveRequest(query, k=12, **options) for query in QUERIES]  # type: ignore[arg-type]
    replies = retriever.retrieve_batch(asked)
    return [reply for reply in replies if isinstance(reply, RetrievalResult)]


@pytest.mark.parametrize("size", [3, 11, 12, None])
@pytest.mark.parametrize(
    "options",
    [
        {"method": "shortlist"},
        {"method": "auto"},
        {"method": "auto", "vector_weight": 0.0},
        {"decoder": "disc", "seed": 1, "num_samples": 64},
        {"decoder": "disc", "seed": 1, "num_samples": 64, "temperature": 2.0},
    ],
)
def test_bounds_of_a_mass_of_one_stay_in_order(
    retriever: Retriever, options: dict[str, object], size: int | None
) -> None:
    found = answers(retriever, shortlist_size=size, **options)
    assert len(found) == len(QUERIES)
    for result in found:
        assert result.mass_lower is not None
        upper = 1.0 if result.mass_upper is None else result.mass_upper
        assert 0.0 <= result.mass_lower <= upper <= 1.0
        if size in (12, None):
            assert result.mass_lower == pytest.approx(1.0, abs=1e-4)
            is_ranked = "method" not in options or options == {"method": "auto"}
            assert result.certified is (None if is_ranked else True)
        for candidate in result.candidates:
            assert candidate.probability is not None
            assert 0.0 <= candidate.probability <= 1.0
            assert candidate.logprob <= 1e-5
