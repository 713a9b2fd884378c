"""The last resort of DISC against lists made by hand: what is chosen among, what it is worth, how often."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.disc.algorithm import WeightedDraw, candidates, choose_by_weight
from decoding.disc.draws import FIRST, SECOND, DrawBatch
from decoding.disc.tree_proposer import TreeProposer
from decoding.params import DiscParams
from decoding.stopping import StopPoll
from decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import PROMPT, VOCAB, ByHand, catalogue
from tests.fakes import TableModel, chi_square

ALPHA = 1e-4


def batch_of(model: TableModel, rows, params: list[DiscParams]) -> DrawBatch:
    stop = StopPoll(len(params), None, None, torch.device("cpu"))
    return DrawBatch(
        model.prefill([PROMPT] * len(params)),
        TitleTrie.from_rows(rows, VOCAB),
        params,
        stop,
        range(len(params)),
    )


def two_phases(batch: DrawBatch, wanted):
    """The draws of both phases, the first for all results and the second for those wanted."""
    proposer, params = TreeProposer(batch), batch.params
    first = batch.new_draws(
        [(q, s, 0, p.num_draws) for q, p in enumerate(params) for s in range(p.num_samples)]
    )
    proposer.run(first, FIRST, None)
    fresh = batch.new_draws([(q, s, 0, params[q].num_draws) for q, s in wanted])
    proposer.run(fresh, SECOND, None)
    return first, fresh


def rows_of(draws) -> list[tuple[int, ...]]:
    written = torch.stack(draws.tokens, dim=1).tolist()
    return [tuple(token for token in tokens if token >= 0) for tokens in written]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), adaptive=st.booleans(), num_draws=st.integers(2, 5))
def test_candidates_are_the_rows_known_and_the_fresh_draws_of_others(seed, adaptive, num_draws):
    model, rows = TableModel.random(VOCAB, seed), catalogue(seed % 3)
    params = [DiscParams(3, num_draws, seed=seed + n, adaptive=adaptive) for n in range(2)]
    batch, wanted = batch_of(model, rows, params), [(0, 1), (1, 0), (1, 2)]
    first, fresh = two_phases(batch, wanted)
    first_rows, fresh_rows, by_hand = rows_of(first), rows_of(fresh), ByHand(model, rows)
    found = candidates(batch, first, fresh, wanted[:2])  # the third was decided
    assert list(found) == wanted[:2]
    for (query, number), mine in found.items():
        known = {r for q, r in zip(first.query.tolist(), first_rows, strict=True) if q == query}
        if not adaptive:
            known = set()
        old = [one for one in mine if not one.is_fresh]
        assert sorted(first_rows[one.draw] for one in old) == sorted(known)  # each once
        for one in old:
            assert first.query[one.draw] == query
            assert one.log_weight == pytest.approx(by_hand.logprob(first_rows[one.draw]), abs=1e-5)
        new = {one.draw: one.log_weight for one in mine if one.is_fresh}
        assert set(new) == {
            n
            for n, row in enumerate(fresh_rows)
            if (int(fresh.query[n]), int(fresh.sample[n])) == (query, number) and row not in known
        }
        for draw, log_weight in new.items():
            assert log_weight == float(fresh.log_weight[draw]) - math.log(num_draws)


@pytest.mark.statistical
@pytest.mark.parametrize("num_draws", [2, 5])
def test_what_all_candidates_are_worth_is_the_mass_on_average(num_draws):
    """The rows known, exactly, and the rest without bias: at four standard errors, alpha = 6e-5."""
    model, rows = TableModel.random(VOCAB, 12), catalogue(0)
    truth = math.fsum(math.exp(ByHand(model, rows).logprob(row)) for row in rows)
    for adaptive in (False, True):
        params = [DiscParams(2, num_draws, seed=n, adaptive=adaptive) for n in range(2000)]
        batch, wanted = batch_of(model, rows, params), [(n, 0) for n in range(2000)]
        found = candidates(batch, *two_phases(batch, wanted), wanted)
        worth = torch.tensor([math.fsum(math.exp(one.log_weight) for one in mine) for mine in found.values()])
        assert abs(float(worth.mean()) - truth) < 4 * float(worth.std()) / math.sqrt(len(worth))


@pytest.mark.statistical
def test_a_candidate_is_chosen_as_often_as_it_is_worth():
    weights = [0.5, 0.0, 1e-3, 2.0, 0.25, 0.0]
    mine = [
        WeightedDraw(n < 3, n, math.log(weight) - 700 if weight else -math.inf)
        for n, weight in enumerate(weights)
    ]
    batch = batch_of(TableModel.random(VOCAB, 1), catalogue(0), [DiscParams(seed=n) for n in range(500)])
    chosen = choose_by_weight(batch, {(n, s): mine for n in range(500) for s in range(40)})
    counts = Counter((one.draw,) for one in chosen.values())
    assert sum(counts.values()) == 20_000
    law = {(n,): weight / sum(weights) for n, weight in enumerate(weights) if weight}
    assert chi_square(counts, law) > ALPHA


def test_where_nothing_weighs_anything_nothing_is_chosen():
    batch = batch_of(TableModel.random(VOCAB, 1), catalogue(0), [DiscParams()])
    one = WeightedDraw(True, 4, -3.0)
    nothing = WeightedDraw(True, 3, -math.inf)
    chosen = choose_by_weight(batch, {(0, 0): [], (0, 1): [nothing], (0, 2): [nothing, one, nothing]})
    assert chosen == {(0, 2): one}
    assert choose_by_weight(batch, {}) == {}
