"""Queries of one batch do not disturb one another: options, filters and room are each query's own."""

from __future__ import annotations

import dataclasses
import random

import pytest

from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.params import BeamParams
from decoding.trie.title_trie import TitleTrie
from tests.beam_batches import Batch, random_catalogue
from tests.tables_model import VOCAB, TablesModel

SEEDS = range(300, 304)


def said(result: BeamResult) -> BeamResult:
    """A result without what is the batch's and not the query's own."""
    return dataclasses.replace(result, num_steps=0)


def crowd_of(seed: int, exact: bool) -> Batch:
    """Queries of all kinds, ties among their scores included; all of them exact, or none."""
    return Batch.random(seed).only(range(50), exact=exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_in_a_crowd_gets_what_it_gets_alone(seed: int, exact: bool) -> None:
    batch = crowd_of(seed, exact)
    for query, crowded in enumerate(batch.search().results):
        alone = batch.only([query]).search().results[0]
        assert said(crowded) == said(alone)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_of_queries_does_not_matter(seed: int, exact: bool) -> None:
    batch = crowd_of(seed, exact)
    order = list(range(len(batch.params)))
    random.Random(seed).shuffle(order)
    straight, shuffled = batch.search().results, batch.only(order).search().results
    for place, query in enumerate(order):
        assert said(shuffled[place]) == said(straight[query])


def test_one_query_asked_with_many_options_at_once() -> None:
    rows = random_catalogue(random.Random(1))
    model = TablesModel.random(1, ["usual"])
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = [
        BeamParams(k, width, penalty, exact, budget)
        for k in (1, 4, 40)
        for width in (1, 3, 40)
        for penalty in (0.0, 1.0)
        for exact, budget in ((False, 0), (True, 0), (True, 3), (True, 1000))
    ]
    crowd = beam_search(model.only([0] * len(params)).prefill(), trie, params)
    for mine, result in zip(params, crowd, strict=True):
        (alone,) = beam_search(model.prefill(), trie, [mine])
        assert said(result) == said(alone)
    assert any(result.num_exact_nodes for result in crowd)
    assert len({result.hypotheses for result in crowd}) > 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_that_is_done_is_not_computed_any_more(seed: int) -> None:
    """The nodes of a batch are those of its queries run one at a time."""
    batch = crowd_of(seed, exact=False)
    together = batch.search().meter.nodes
    assert together == [batch.only([query]).search().meter.nodes[0] for query in range(len(batch.params))]


@pytest.mark.parametrize("exact", [False, True])
def test_forwards_are_shared(exact: bool) -> None:
    """A batch takes as many forwards as its slowest query, and not one per query."""
    batch = dataclasses.replace(crowd_of(301, exact), room=[None] * 50)
    together = batch.search().meter.forwards
    alone = [batch.only([query]).search().meter.forwards for query in range(len(batch.params))]
    if exact:  # a forward writes at one depth, so queries may wait for each other
        assert together < sum(alone) / 3
    else:
        assert together == max(alone)


@pytest.mark.parametrize("exact", [False, True])
def test_cancelled_queries_leave_the_others_as_they_are(exact: bool) -> None:
    batch = crowd_of(302, exact)
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
