"""Beam search against enumeration and on paper: lists, certificates, length penalties, mixed batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.beam_search.beams import best_columns, top_tokens
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DecodingCancelledError, InvalidLogitsError
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_batches import LENGTH_PENALTIES, NUM_PER_BATCH, Batch
from tests.beam_oracles import (
    check_certificate,
    close,
    inner_prefixes,
    is_true_top_k,
    scores_of,
    textbook_beam_search,
)
from tests.fakes import TableModel
from tests.no_sync import no_sync
from tests.tables_model import LOGITS
from tests.trie_oracles import needs_cuda

END = 0


def test_an_empty_catalogue_gives_an_empty_certified_list():
    trie = TitleTrie.from_rows([], 4)
    (result,) = beam_search(TableModel.random(4, 1).prefill([(1,)]), trie, [BeamParams(k=2)])
    assert result.hypotheses == ()
    assert result.certified


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_logits_are_an_error(bad):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    model = TableModel(3, lambda *_: torch.tensor([0.0, bad, 0.0]))
    with pytest.raises(InvalidLogitsError, match="NaN or infinite"):
        beam_search(model.prefill([(1,)]), trie, [BeamParams(5)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(({"k": k}, "k must be an integer in") for k in (0, 10**6, True, 1.5)),
        ({"beam_size": 0}, "beam_size must be an integer in"),
        *(
            ({"length_penalty": penalty}, r"length_penalty must be in \[-4, 4\]")
            for penalty in (math.nan, math.inf, -math.inf, 4.01, -4.01)
        ),
    ],
)
def test_parameters_out_of_range_are_named(arguments, said):
    with pytest.raises(ValueError, match=said):
        BeamParams(**arguments)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_parameters_for_another_number_of_queries_are_refused(count):
    trie = TitleTrie.from_rows({(1, END)}, 3)
    session = TableModel.random(3, 1).prefill([(1,), (2,)])
    with pytest.raises(ValueError, match=rf"params must have one entry per query \(2\), got {count}"):
        beam_search(session, trie, [BeamParams(5)] * count)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    rows=st.integers(1, 4),
    columns=st.sampled_from([1, 2, 9, 511, 512, 513, 2000]),
    count=st.sampled_from([1, 2, 7, 40, 600]),
    values=st.sampled_from([1, 3, 50, 10**6]),
    missing=st.sampled_from([0.0, 0.5, 0.999, 1.0]),
)
def test_the_best_columns_are_the_leftmost_of_the_largest(seed, rows, columns, count, values, missing):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(values, (rows, columns), generator=generator).double()
    table[torch.rand(rows, columns, generator=generator) < missing] = -math.inf
    with no_sync():
        best = best_columns(table, count)
    for row, found, places in zip(table.tolist(), best.values.tolist(), best.columns.tolist(), strict=True):
        order = sorted((c for c in range(columns) if row[c] > -math.inf), key=lambda c: (-row[c], c))[:count]
        assert places[: len(order)] == order
        assert found == [row[c] for c in order] + [-math.inf] * (count - len(order))
        assert all(0 <= place < columns for place in places)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    vocab=st.sampled_from([1, 31, 64, 333, 1000, 4097]),
    count=st.integers(1, 60),
    values=st.sampled_from([1, 4, 10**6]),
)
def test_the_likeliest_tokens_are_those_of_topk(seed, vocab, count, values):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(values, (3, vocab), generator=generator).float()
    logits[torch.rand(3, vocab, generator=generator) < 0.2] = -math.inf
    count = min(count, vocab)
    with no_sync():
        found, tokens = top_tokens(logits, count)
    assert torch.equal(found, logits.topk(count, dim=1).values)
    assert torch.equal(found, logits.gather(1, tokens))
    assert all(len(set(row)) == count for row in tokens.tolist())


SEEDS = range(300, 304)
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]


def said(result: BeamResult) -> BeamResult:
    """A result without what is the batch's and not the query's own."""
    return dataclasses.replace(result, num_steps=0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_in_a_crowd_gets_what_it_gets_alone(seed: int, exact: bool) -> None:
    batch = Batch.random(seed).only(exact=exact)
    for query, crowded in enumerate(batch.search().results):
        alone = batch.only([query]).search().results[0]
        assert said(crowded) == said(alone)


@pytest.mark.parametrize("exact", [False, True])
def test_forwards_are_shared(exact: bool) -> None:
    """A batch takes as many forwards as its slowest query, and not one per query."""
    batch = Batch.random(301).only(exact=exact).unbounded()
    together = batch.search().meter.forwards
    alone = [batch.only([query]).search().meter.forwards for query in range(len(batch.params))]
    if exact:  # a forward writes at one depth, so queries may wait for each other
        assert together < sum(alone) / 3
    else:
        assert together == max(alone)


@pytest.mark.parametrize("exact", [False, True])
def test_cancelled_queries_leave_the_others_as_they_are(exact: bool) -> None:
    batch = Batch.random(302).only(exact=exact)
    tokens = [CancelToken() if query % 3 == 0 else None for query in range(len(batch.params))]
    for token in tokens:
        if token is not None:
            token.cancel()
    undisturbed = batch.search().results
    searched = batch.search(cancel=tokens)
    for query, answer in enumerate(searched.answers):
        if query % 3 == 0:
            assert isinstance(answer, DecodingCancelledError)
            assert searched.meter.nodes[query] == 0
        else:
            assert isinstance(answer, BeamResult)
            assert said(answer) == said(undisturbed[query])


class Verdict(NamedTuple):
    """One case: what the search claimed and what is true."""

    certified: bool
    true_top_k: bool
    something_pruned: bool
    went_on: bool  # computed prefixes after the beam search
    params: BeamParams
    kind: str


def verdicts_of(seed: int, device: str) -> Iterable[Verdict]:
    """Search a batch and hold every list to the exhaustive scores, and its nodes to what the model ran."""
    batch = Batch.random(seed)
    searched = batch.search(device)
    truths = batch.truths()
    assert len(searched.results) == NUM_PER_BATCH
    for query, result in enumerate(searched.results):
        params, truth = batch.params[query], truths[query]
        check_certificate(result, truth, params)
        # No prefix is computed twice, and the budget holds to the token.
        assert result.num_nodes == searched.meter.nodes[query]
        assert result.num_nodes <= len(inner_prefixes(batch.allowed(query)))
        assert 0 <= result.num_exact_nodes <= result.num_nodes
        assert result.num_exact_nodes <= (params.exact_budget if params.exact else 0)
        if params.exact and batch.room[query] is None and not result.certified:
            assert result.num_exact_nodes == params.exact_budget
        pruned = math.isfinite(result.best_pruned_score)
        correct, went_on = is_true_top_k(result, truth, params), result.num_exact_nodes > 0
        yield Verdict(result.certified, correct, pruned, went_on, params, batch.kinds[query])


def check_shares(verdicts: list[Verdict]) -> None:
    """The certificate is not vacuous: lists certify that lost prefixes, and lists without it are wrong."""

    def share(whole: list[Verdict], holds: Callable[[Verdict], bool]) -> float:
        return sum(map(holds, whole)) / len(whole)

    plain = [verdict for verdict in verdicts if not verdict.params.exact]
    exact = [verdict for verdict in verdicts if verdict.params.exact]
    uncertified = [verdict for verdict in verdicts if not verdict.certified]
    assert share(plain, lambda verdict: verdict.something_pruned) > 0.4
    assert share(plain, lambda verdict: verdict.certified) > 0.4
    assert share([v for v in plain if v.something_pruned], lambda verdict: verdict.certified) > 0.05
    assert share(uncertified, lambda verdict: not verdict.true_top_k) > 0.5
    if exact:
        assert share(exact, lambda verdict: verdict.certified) > 0.5
        assert share(exact, lambda verdict: verdict.certified and verdict.went_on) > 0.1


def check_kinds(verdicts: list[Verdict]) -> None:
    """Every kind of logits and every penalty has certified lists that lost prefixes, and wrong lists."""
    pruned = [verdict for verdict in verdicts if verdict.something_pruned and not verdict.params.exact]
    certified = [verdict for verdict in pruned if verdict.certified]
    wrong = [verdict for verdict in pruned if not verdict.true_top_k]
    for chosen in (certified, wrong):
        assert {verdict.kind for verdict in chosen} == set(LOGITS)
        assert {verdict.params.length_penalty for verdict in chosen} == set(LENGTH_PENALTIES)


@pytest.mark.parametrize("device", DEVICES)
def test_certified_lists_are_the_true_top_k(device: str) -> None:
    check_shares([verdict for seed in range(20) for verdict in verdicts_of(seed, device)])


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_certified_lists_are_the_true_top_k_in_ten_thousand_cases(device: str) -> None:
    verdicts = [verdict for seed in range(1000, 1200) for verdict in verdicts_of(seed, device)]
    assert len(verdicts) == 10_000
    check_shares(verdicts)
    check_kinds(verdicts)


def compare_with_textbook(seed: int, device: str) -> int:
    """Hold a batch to the search on paper. Returns how many cases rounding could not have decided."""
    batch = Batch.random(seed, exact_share=0.0)
    compared = 0
    for query, result in enumerate(batch.search(device).results):
        params = batch.params[query]
        book = textbook_beam_search(batch.tokens(query), params, batch.max_depth, batch.room[query])
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


@pytest.mark.parametrize(
    ("seeds", "least"), [(range(8), 100), pytest.param(range(2000, 2100), 2000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("device", DEVICES)
def test_lists_certificates_and_nodes_are_those_of_the_search_on_paper(
    device: str, seeds: range, least: int
) -> None:
    assert sum(compare_with_textbook(seed, device) for seed in seeds) > least
