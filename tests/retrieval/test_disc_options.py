"""DISC through the retrieval methods: least mass, bounds, adaptive draws, prefixes per draw, abstention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.retrieval.defaults import small_model_dir
from genret.retrieval.index.reader import Index
from genret.retrieval.methods import decoded_methods as methods
from tests.fake_vectors import MadeUpVectors
from tests.fakes import likely_titles, recorded
from tests.sample_index import build_sample_index
from tests.table_retrievers import CONFIG, TOKENIZER, answers


@pytest.fixture
def retriever(table_index: Path) -> Iterator[Retriever]:
    index = Index.open(table_index)
    with Retriever(index, likely_titles(index), TOKENIZER, CONFIG) as opened:
        yield opened


def one(retriever: Retriever, **options: Any) -> RetrievalResult:
    (result,) = retriever.retrieve("query", method="disc", seed=3, num_samples=32, **options)
    return result


@pytest.mark.parametrize("options", [{}, {"adaptive": True}, {"beam_size": 3}, {"top_m": 40}])
def test_an_answer_is_withheld_exactly_below_the_least_mass(
    retriever: Retriever, options: dict[str, Any]
) -> None:
    answered = one(retriever, **options)
    mass = answered.bounded_mass
    assert 0.0 < mass < 1.0
    assert answered.candidates
    same = one(retriever, min_mass=mass, **options)
    assert (same.candidates, same.abstained, same.no_match) == (answered.candidates, False, False)
    withheld = one(retriever, min_mass=math.nextafter(mass, 1.0), **options)
    assert (withheld.candidates, withheld.abstained, withheld.no_match) == ((), True, True)
    for name in ("mass", "mass_stderr", "mass_lower", "mass_upper", "num_draws", "num_nodes", "num_accepted"):
        assert getattr(withheld, name) == getattr(answered, name)


@pytest.mark.parametrize(("least", "abstained"), [(None, False), (0.0, False), (1e-9, True), (1.0, True)])
def test_a_filter_that_allows_nothing_has_no_mass(
    retriever: Retriever, least: float | None, abstained: bool
) -> None:
    result = one(retriever, allow_ids=[], min_mass=least)
    assert (result.mass, result.mass_stderr, result.mass_lower, result.mass_upper) == (0.0, 0.0, 0.0, 0.0)
    assert (result.no_match, result.abstained, result.num_nodes) == (True, abstained, 0)


def test_requests_are_batched_by_their_way_of_sampling_and_keep_their_answers(
    retriever: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = recorded(monkeypatch, methods, "disc")
    kinds: list[dict[str, Any]] = [
        {},
        {"adaptive": True},
        {"beam_size": 2, "num_samples": 4},
        {"beam_size": 4, "num_samples": 2},
        {"top_m": 40},
        {"min_mass": 1.0},
        {"beam_size": 1, "min_mass": 0.0},
        {"method": "beam", "top_m": 7},
    ]
    requests = [
        RetrieveRequest(f"query {n}", **{"method": "disc", "num_samples": 8, "seed": n, **kinds[n % 8]})
        for n in range(16)
    ]
    together = answers(retriever, *requests)
    assert len(runs) == 5
    assert {(p.adaptive, p.beam_size, p.top_m): len(of) for _, _, of, *_ in runs for p in of} == {
        (False, 1, None): 6,
        (True, 1, None): 2,
        (False, 2, None): 2,
        (False, 4, None): 2,
        (False, 1, 40): 2,
    }
    for request, reply in zip(requests, together, strict=True):
        (alone,) = answers(retriever, request)
        for name in ("candidates", "mass", "abstained"):
            assert getattr(reply, name) == getattr(alone, name)
        assert reply.abstained == (request.min_mass == 1.0)


QUERIES = [f"query {letter}" for letter in "abcdefghijklmnop"]


@pytest.fixture(scope="module")
def certain(table_index: Path) -> Retriever:
    """Answers by a model that writes nothing but titles of the catalogue."""
    index = Index.open(table_index)
    model = likely_titles(index, seed=5, boost=60.0)
    return Retriever(index, model, TOKENIZER, CONFIG, ranker=MadeUpVectors(index).opened())


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
    certain: Retriever, options: dict[str, object], size: int | None
) -> None:
    asked = [RetrieveRequest(query, shortlist_size=size, k=12, **options) for query in QUERIES]  # type: ignore[arg-type]
    for result in answers(certain, *asked):
        upper = 1.0 if result.mass_upper is None else result.mass_upper
        assert 0.0 <= result.mass_lower <= upper <= 1.0
        if size in (12, None):
            assert result.mass_lower == pytest.approx(1.0, abs=1e-4)
            is_ranked = "method" not in options or options == {"method": "auto"}
            assert result.certified is (None if is_ranked else True)
        for candidate in result.candidates:
            assert 0.0 <= candidate.probability <= 1.0
            assert candidate.logprob <= 1e-5


VAN_GOGH = "who painted sunflowers and cut off part of his ear"
LEAST = 0.2


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    index = build_sample_index(tmp_path_factory.mktemp("sample") / "sample.index", has_evidence=False)
    with Retriever.open(index, small_model_dir(), device="cpu") as opened:
        yield opened


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_least_mass_tells_what_the_catalogue_holds_from_what_it_lacks(
    shipped: Retriever, adaptive: bool
) -> None:
    """The painter is a person; about animals the model has nothing to say here: 0.88 against 0.00001."""
    options: dict[str, Any] = {"method": "disc", "seed": 1, "num_samples": 8, "adaptive": adaptive}
    found, lacking = (
        shipped.retrieve(VAN_GOGH, k=3, filter=f"kind = '{kind}'", min_mass=LEAST, **options)[0]
        for kind in ("person", "animal")
    )
    assert found.candidates[0].title == "Vincent van Gogh"
    assert not found.abstained
    # Not by chance: the bounds alone decide both.
    assert found.mass_lower > 2 * LEAST
    assert lacking.mass_upper < LEAST / 2
    assert (lacking.abstained, lacking.candidates) == (True, ())
    assert found.num_draws > 0
    assert lacking.num_draws > 0
    (unasked,) = shipped.retrieve(VAN_GOGH, filter="kind = 'animal'", **options)
    assert unasked.candidates, "without a threshold the least unlikely animal is named"
    assert unasked.mass == lacking.mass
