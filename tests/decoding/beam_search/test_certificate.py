"""The certificate of beam search: never wrong, and often given.

Random catalogues are small enough to score every row, so whether a list is the exact top-k is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
import torch

from genret.decoding.beam_search import BeamResult
from genret.decoding.params import BeamParams
from tests.beam_batches import LENGTH_PENALTIES, NUM_PER_BATCH, Batch
from tests.beam_oracles import (
    check_certificate,
    close,
    inner_prefixes,
    is_true_top_k,
    scores_of,
    textbook_beam_search,
)
from tests.tables_model import LOGITS

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to search a batch.

    Attributes:
        device: Where.
        static: Whether all shapes are known beforehand; searches that may go on exactly never are.
    """

    device: str
    static: bool

    def batch(self, seed: int) -> Batch:
        return Batch.random(seed, exact_share=0.0 if self.static else 0.4)


@pytest.fixture(
    params=[
        pytest.param(Way("cpu", static=False), id="cpu"),
        pytest.param(Way("cpu", static=True), id="cpu-static"),
        pytest.param(Way("cuda", static=False), id="cuda", marks=needs_cuda),
        pytest.param(Way("cuda", static=True), id="cuda-static", marks=needs_cuda),
    ]
)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Way:
    chosen: Way = request.param
    monkeypatch.setattr("genret.decoding.beam_search.trie_beam_search.suits_static", lambda _: chosen.static)
    return chosen


@dataclass(frozen=True, slots=True)
class Verdict:
    """One case: what the search claimed and what is true."""

    certified: bool
    true_top_k: bool
    something_pruned: bool
    went_on: bool  # computed prefixes after the beam search
    params: BeamParams
    kind: str


def verdicts_of(seed: int, way: Way) -> Iterable[Verdict]:
    """Search a batch and hold every list to the exhaustive scores."""
    batch = way.batch(seed)
    searched = batch.search(way.device)
    truths = batch.truths()
    assert len(searched.results) == NUM_PER_BATCH
    for query, result in enumerate(searched.results):
        params, truth = batch.params[query], truths[query]
        check_certificate(result, truth, params)
        check_nodes(batch, query, result, searched.meter.nodes[query])
        check_exactness(batch, query, result)
        yield Verdict(
            certified=result.certified,
            true_top_k=is_true_top_k(result, truth, params),
            something_pruned=math.isfinite(result.best_pruned_score),
            went_on=result.num_exact_nodes > 0,
            params=params,
            kind=batch.kinds[query],
        )


def check_nodes(batch: Batch, query: int, result: BeamResult, computed: int) -> None:
    """Every token computed is counted, no prefix is computed twice, and the budget holds to the token."""
    params = batch.params[query]
    assert result.num_nodes == computed
    assert result.num_nodes <= len(inner_prefixes(batch.allowed(query)))
    assert 0 <= result.num_exact_nodes <= result.num_nodes
    assert result.num_exact_nodes <= (params.exact_budget if params.exact else 0)


def check_exactness(batch: Batch, query: int, result: BeamResult) -> None:
    """An exact search that ends without a certificate has spent its budget, or had no room to go on."""
    params = batch.params[query]
    if params.exact and batch.room[query] is None and not result.certified:
        assert result.num_exact_nodes == params.exact_budget


def check_shares(verdicts: list[Verdict]) -> None:
    """The certificate is not vacuous: lists certify that lost prefixes, and lists without it are wrong."""

    def share(part: Iterable[Verdict], whole: Iterable[Verdict]) -> float:
        return len(list(part)) / len(list(whole))

    plain = [verdict for verdict in verdicts if not verdict.params.exact]
    exact = [verdict for verdict in verdicts if verdict.params.exact]
    pruned = [verdict for verdict in plain if verdict.something_pruned]
    uncertified = [verdict for verdict in verdicts if not verdict.certified]
    assert share(pruned, plain) > 0.4
    assert share((verdict for verdict in plain if verdict.certified), plain) > 0.4
    assert share((verdict for verdict in pruned if verdict.certified), pruned) > 0.05
    assert share((verdict for verdict in uncertified if not verdict.true_top_k), uncertified) > 0.5
    if exact:
        assert share((verdict for verdict in exact if verdict.certified), exact) > 0.5
        assert share((verdict for verdict in exact if verdict.certified and verdict.went_on), exact) > 0.1


def check_kinds(verdicts: list[Verdict]) -> None:
    """Every kind of logits and every penalty has certified lists that lost prefixes, and wrong lists."""
    pruned = [verdict for verdict in verdicts if verdict.something_pruned and not verdict.params.exact]
    certified = [verdict for verdict in pruned if verdict.certified]
    wrong = [verdict for verdict in pruned if not verdict.true_top_k]
    for chosen in (certified, wrong):
        assert {verdict.kind for verdict in chosen} == set(LOGITS)
        assert {verdict.params.length_penalty for verdict in chosen} == set(LENGTH_PENALTIES)


def test_certified_lists_are_the_true_top_k(way: Way) -> None:
    check_shares([verdict for seed in range(20) for verdict in verdicts_of(seed, way)])


@pytest.mark.slow
def test_certified_lists_are_the_true_top_k_in_ten_thousand_cases(way: Way) -> None:
    verdicts = [verdict for seed in range(1000, 1200) for verdict in verdicts_of(seed, way)]
    assert len(verdicts) == 10_000
    check_shares(verdicts)
    check_kinds(verdicts)


def compare_with_textbook(seed: int, way: Way) -> int:
    """Hold a batch to the search on paper. Returns how many cases rounding could not have decided."""
    batch = Batch.random(seed, exact_share=0.0)
    compared = 0
    for query, result in enumerate(batch.search(way.device).results):
        params = batch.params[query]
        book = textbook_beam_search(
            batch.allowed(query),
            lambda prefix, query=query: batch.model.next_logprobs(query, prefix),
            params,
            batch.max_depth,
            batch.room[query],
        )
        if book.smallest_gap < 3e-4:
            continue
        compared += 1
        assert [hypothesis.token_ids for hypothesis in result.hypotheses] == [e.row for e in book.found]
        for mine, theirs in zip(scores_of(result, params.length_penalty), book.found, strict=True):
            assert close(mine, theirs.score)
        assert result.certified == book.certified
        assert result.best_pruned_score == book.best_pruned_score or close(
            result.best_pruned_score, book.best_pruned_score
        )
        assert result.num_nodes == book.num_nodes
    return compared


def test_lists_certificates_and_nodes_are_those_of_the_search_on_paper(way: Way) -> None:
    assert sum(compare_with_textbook(seed, way) for seed in range(8)) > 100


@pytest.mark.slow
def test_the_search_on_paper_in_thousands_of_cases(way: Way) -> None:
    assert sum(compare_with_textbook(seed, way) for seed in range(2000, 2100)) > 2000
