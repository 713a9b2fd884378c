"""The explored tree and its traces against recursion by hand: envelopes, weights, and what is computed."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.draws import FIRST, SECOND
from genret.decoding.disc.tree_proposer import TreeProposer
from genret.decoding.params import DiscParams
from genret.decoding.trace import Trace
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import check_nodes, inner_prefixes, prefixes_of
from tests.disc_oracles import (
    END,
    PROMPT,
    VOCAB,
    ByHand,
    CountingModel,
    Lockstep,
    batch_for,
    catalogue,
    drawn,
    rows_of,
    true_mass,
)
from tests.fakes import TableModel
from tests.tables_model import Meter, TablesModel


def proposer_for(model: TableModel, rows, params: list[DiscParams]):
    batch = batch_for(model, rows, params)
    return batch, TreeProposer(batch)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    runs=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
)
def test_weights_bounds_and_envelopes_follow_from_the_history(seed, runs, temperature):
    model, rows = TableModel.random(VOCAB, seed), catalogue(seed % 3)
    params = [DiscParams(num_draws=8, seed=seed, adaptive=True, temperature=temperature)]
    batch, proposer = proposer_for(model, rows, params)
    by_hand = ByHand(model, rows, temperature=temperature)
    truth = true_mass(model, rows, temperature=temperature)
    known, bound = {()}, 1.0
    for number, count in enumerate(runs):
        draws = batch.new_draws([(0, sample, number, 1) for sample in range(count)])
        proposer.run(draws, FIRST, None)
        before = by_hand.envelope((), known)
        for row, weight, log_bound in zip(
            rows_of(draws.tokens), draws.log_weight.tolist(), draws.log_bound.tolist(), strict=True
        ):
            assert row in rows
            exact = by_hand.logprob(row) - math.log(by_hand.proposal(row, known))
            assert weight == pytest.approx(exact, abs=1e-5)
            assert log_bound == pytest.approx(math.log(before), abs=1e-5)
            assert weight <= log_bound
        known |= {row[:depth] for row in rows_of(draws.tokens) for depth in range(len(row))}
        after = math.exp(proposer.log_upper_bounds()[0])
        assert after == pytest.approx(by_hand.envelope((), known), rel=1e-5)
        assert truth - 1e-6 <= after <= bound
        bound = after
    assert proposer.nodes_of_queries() == [len(known) - 1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**9), adaptive=st.booleans())
def test_the_envelope_of_a_whole_tree_is_the_mass(seed, adaptive):
    model, rows = TableModel.random(VOCAB, seed, scale=0.3), catalogue(seed % 3)
    batch, proposer = proposer_for(model, rows, [DiscParams(num_draws=2, seed=seed, adaptive=adaptive)])
    proposer.run(batch.new_draws([(0, sample, 0, 1) for sample in range(600)]), FIRST, None)
    inner = inner_prefixes(rows)
    assert proposer.nodes_of_queries() == [len(inner)]  # the root is no node of the session
    assert math.exp(proposer.log_upper_bounds()[0]) == pytest.approx(true_mass(model, rows), rel=1e-5)
    if adaptive:  # then every weight is the mass itself, and every draw is accepted
        draws = batch.new_draws([(0, sample, 1, 1) for sample in range(50)])
        proposer.run(draws, FIRST, None)
        assert torch.equal(draws.log_weight, draws.log_bound)
        assert proposer.nodes_of_queries() == [len(inner)]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    num_samples=st.integers(1, 6),
    num_draws=st.integers(1, 5),
    reject_early=st.booleans(),
)
def test_plain_draws_are_those_of_walks_made_one_by_one(seed, num_samples, num_draws, reject_early):
    model, rows = CountingModel(TableModel.random(VOCAB, seed)), catalogue(seed % 3)
    params = DiscParams(num_samples, num_draws, seed=seed, reject_early=reject_early)
    (result,) = drawn(model, rows, [params])
    lockstep = Lockstep(ByHand(model, rows), seed, num_draws, reject_early)
    assert [(s.hypothesis.token_ids, s.accepted, s.num_draws) for s in result.samples] == [
        lockstep.sample(sample) for sample in range(num_samples)
    ]
    # A phase shares its prefixes; the second one computes only what the first did not.
    assert sorted(row for _, row in model.nodes) == sorted(lockstep.entered[FIRST] | lockstep.entered[SECOND])
    assert result.num_nodes == len(model.nodes)
    assert result.num_steps == model.num_forwards


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("reject_early", [False, True])
def test_no_prefix_is_computed_twice(adaptive, reject_early):
    """Queries differ in K, so that some rest while others go on, and come back in the second phase."""
    model = CountingModel(TableModel.random(VOCAB, 5))
    rows = catalogue(2)
    prompts = [(i,) for i in range(24)]
    params = [
        DiscParams(1 + i % 3, 1 + i % 6, seed=i, adaptive=adaptive, reject_early=reject_early)
        for i in range(24)
    ]
    trie = TitleTrie.from_rows(rows, VOCAB)
    together = disc(model.prefill(prompts), trie, params)
    assert len(set(model.nodes)) == len(model.nodes)
    assert sum(result.num_nodes for result in together) == len(model.nodes)
    assert {result.num_steps for result in together} == {model.num_forwards}
    assert model.num_forwards <= 2 * (max(map(len, rows)) - 1)  # two walks, whatever queries are in them


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("length", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_long_title_costs_one_forward_for_every_token(adaptive, length):
    rows = [(1,) * (length - 1) + (END,), (2, END)]
    model, meter = TablesModel(torch.tensor([[[0.0, 9.0, -2.0]]]), [0]), Meter([0], keys=[set()])
    session = model.prefill(meter)
    params = DiscParams(num_samples=2, num_draws=2, adaptive=adaptive, reject_early=False, seed=1)
    (result,) = disc(session, TitleTrie.from_rows(rows, 3), [params])
    assert {len(s.hypothesis.token_ids) for s in result.samples} == {length}
    # The second phase may look at the other title, once the first has found the long one unlikely.
    num_others = model.key(0, (2,)) in meter.keys[0]
    assert num_others <= adaptive
    assert result.num_nodes == meter.nodes[0] == result.num_steps == length - 1 + num_others
    logits = session.root_logits[0]
    logprob = (logits.double() - float(logits.logsumexp(0))).tolist()  # normalised in float32, as in a step
    exact = (length - 1) * logprob[1] + logprob[0]
    assert result.samples[0].hypothesis.logprob == pytest.approx(exact, rel=1e-9)
    assert result.mass_lower <= result.mass_upper


CASES = [(which, seed) for which in range(3) for seed in range(6)]


def assert_draws_are_true(by_hand: ByHand, params: DiscParams, trace: Trace, result: DiscResult) -> None:
    written = prefixes_of(trace)
    assert len(trace.draws) == result.num_draws
    keys = [(draw.sample, draw.draw) for draw in trace.draws]
    assert keys == sorted(set(keys))
    counted = Counter(draw.sample for draw in trace.draws)
    assert set(counted.values()) <= {params.num_draws, 2 * params.num_draws}
    for draw in trace.draws:
        row = written[draw.node]
        assert row in by_hand.rows
        assert draw.valid_mass == pytest.approx(math.exp(by_hand.log_weight(row)), rel=1e-4)
        is_first = draw.draw < params.num_draws
        assert draw.acceptance_probability == (draw.valid_mass if is_first else 0.0)
        assert is_first or not draw.accepted
    for number, sample in enumerate(result.samples):
        mine = [draw for draw in trace.draws if draw.sample == number]
        (chosen,) = (draw for draw in mine if draw.chosen)
        assert written[chosen.node] == sample.hypothesis.token_ids
        assert chosen.accepted == sample.accepted
        assert chosen.valid_mass == math.exp(sample.log_weight)
        if sample.accepted:
            assert chosen.draw + 1 == sample.num_draws
            assert not any(draw.accepted for draw in mine if draw.draw < chosen.draw)
            assert len(mine) == params.num_draws
        elif params.num_draws > 1:
            assert chosen.draw >= params.num_draws
            assert not any(draw.accepted for draw in mine)
    first = [draw.valid_mass for draw in trace.draws if draw.draw < params.num_draws]
    assert math.fsum(first) / len(first) == pytest.approx(result.mass)


@pytest.mark.parametrize(("which", "seed"), CASES)
@pytest.mark.parametrize("num_draws", [1, 2, 5])
def test_every_number_is_the_models_own(which: int, seed: int, num_draws: int) -> None:
    rows = sorted(catalogue(which))
    model = CountingModel(TableModel.random(VOCAB, seed, scale=2.0))
    temperatures = [1.0, 0.5, 3.0]
    params = [
        DiscParams(num_samples=4, num_draws=num_draws, temperature=temperature, seed=seed, reject_early=False)
        for temperature in temperatures
    ]
    traces = [Trace() for _ in params]
    results = drawn(model, rows, params, traces=list(traces))
    for mine, trace, result in zip(params, traces, results, strict=True):
        by_hand = ByHand(model, rows, temperature=mine.temperature)
        assert not trace.is_full
        check_nodes(trace, sorted(rows), by_hand.after, tolerance=1e-5)
        assert_draws_are_true(by_hand, mine, trace, result)
        expanded = [node for node in trace.nodes if node.state == "expanded"]
        assert len(expanded) - 1 == result.num_nodes


@pytest.mark.parametrize("top_m", [None, 2])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_drawn_does_not_depend_on_who_is_traced(seed: int, top_m: int | None) -> None:
    rows = sorted(catalogue(seed % 3))
    model = TableModel.random(VOCAB, seed, scale=2.0)
    params = [
        DiscParams(num_samples=5, num_draws=3, seed=seed + q, top_m=top_m, reject_early=False)
        for q in range(3)
    ]
    plain = drawn(model, rows, params)
    traces: list[Trace | None] = [None, Trace(), None]
    assert drawn(model, rows, params, traces=traces) == plain
    assert drawn(model, rows, params, traces=[Trace() for _ in params]) == plain
    assert len(traces[1].draws) == plain[1].num_draws


def test_with_the_likeliest_tokens_alone_nobody_counts() -> None:
    rows = sorted(catalogue(0))
    model = TableModel.random(VOCAB, 4, scale=1.0)
    trace = Trace()
    drawn(model, rows, [DiscParams(num_samples=8, top_m=2, reject_early=False)], traces=[trace])
    by_hand = ByHand(model, rows)
    for node, prefix in zip(trace.nodes, prefixes_of(trace), strict=True):
        assert node.num_valid is None
        if node.state == "expanded":
            likeliest = sorted(model.logits(PROMPT, prefix).tolist(), reverse=True)[:2]
            after = by_hand.after(prefix)
            seen = [lp for token, lp in after if float(model.logits(PROMPT, prefix)[token]) in likeliest]
            mass = math.fsum(math.exp(logprob) for logprob in seen or [lp for _, lp in after])
            assert node.valid_mass == pytest.approx(mass, rel=1e-5)


@pytest.mark.parametrize("room", [0, 1, 2])
def test_draws_that_run_out_of_room_weigh_nothing(room: int) -> None:
    rows = sorted(catalogue(0))
    trace = Trace()
    params = DiscParams(num_samples=6, num_draws=3, seed=2, reject_early=False)
    (result,) = drawn(TableModel.random(VOCAB, 1), rows, [params], traces=[trace], room=[room])
    assert len(trace.draws) == result.num_draws
    written = prefixes_of(trace)
    for draw in trace.draws:
        if written[draw.node] in rows:
            assert draw.valid_mass > 0.0
        else:
            assert draw.valid_mass == draw.acceptance_probability == 0.0
            assert [draw.accepted, draw.chosen] == [False, False]
            assert len(written[draw.node]) == room
    assert sum(draw.chosen for draw in trace.draws) == len(result.samples)


@pytest.mark.parametrize(
    "options",
    [{"adaptive": True}, {"beam_size": 2}, {"reject_early": True}],
    ids=lambda options: next(iter(options)),
)
def test_other_draws_are_refused(options: dict[str, bool | int]) -> None:
    params = [DiscParams(**{"reject_early": False, **options})]
    model = TableModel.random(VOCAB, 0)
    with pytest.raises(ValueError, match="only draws that neither adapt nor"):
        drawn(model, catalogue(0), params, traces=[Trace()])
    assert drawn(model, catalogue(0), params, traces=[None]) == drawn(model, catalogue(0), params)


def test_one_trace_per_query_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"traces must have one entry per query \(1\), got 2"):
        drawn(TableModel.random(VOCAB, 0), catalogue(0), [DiscParams()], traces=[None, None])
