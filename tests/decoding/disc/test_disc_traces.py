"""What DISC writes down, against the model's own softmax and plain walks."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest

from decoding.disc import DiscResult, disc
from decoding.params import DiscParams
from decoding.trace import Trace
from decoding.trie.title_trie import TitleTrie
from tests.disc_oracles import PROMPT, VOCAB, ByHand, CountingModel, Row, catalogue
from tests.fakes import TableModel

CASES = [(which, seed) for which in range(3) for seed in range(6)]


def run(
    model: TableModel,
    rows: list[Row],
    params: list[DiscParams],
    traces: list[Trace | None] | None = None,
    room: list[int | None] | None = None,
) -> list[DiscResult]:
    session = model.prefill([PROMPT] * len(params))
    results = disc(session, TitleTrie.from_rows(rows, VOCAB), params, None, room, traces=traces)
    assert all(isinstance(result, DiscResult) for result in results)
    return results


def prefixes_of(trace: Trace) -> list[Row]:
    written: list[Row] = []
    for place, node in enumerate(trace.nodes):
        assert node.parent < place
        written.append(() if node.parent < 0 else (*written[node.parent], node.token))
        assert node.depth == len(written[-1])
    assert len(set(written)) == len(written)
    return written


def assert_nodes_are_true(by_hand: ByHand, trace: Trace) -> None:
    rows = sorted(by_hand.rows)
    below: dict[int, float] = defaultdict(float)
    for node, prefix in zip(trace.nodes, prefixes_of(trace), strict=True):
        assert node.total_logprob == pytest.approx(by_hand.logprob(prefix), abs=1e-5)
        if node.parent >= 0:
            below[node.parent] += math.exp(node.total_logprob - trace.nodes[node.parent].total_logprob)
        if node.state == "expanded":
            after = by_hand.after(prefix)
            mass = math.fsum(math.exp(logprob) for _, logprob in after)
            assert node.valid_mass == pytest.approx(mass, rel=1e-5)
            assert node.num_valid == len(after)
        else:
            assert (node.valid_mass, node.num_valid) == (None, None)
        assert (node.state == "finished") == (prefix in by_hand.rows)
        assert node.row == (rows.index(prefix) if node.state == "finished" else -1)
    for place, mass in below.items():
        assert mass <= trace.nodes[place].valid_mass + 1e-6


def assert_draws_are_true(by_hand: ByHand, params: DiscParams, trace: Trace, result: DiscResult) -> None:
    written = prefixes_of(trace)
    assert len(trace.draws) == result.num_draws
    keys = [(draw.sample, draw.number) for draw in trace.draws]
    assert keys == sorted(set(keys))
    counted = Counter(draw.sample for draw in trace.draws)
    assert set(counted.values()) <= {params.num_draws, 2 * params.num_draws}
    for draw in trace.draws:
        row = written[draw.node]
        assert row in by_hand.rows
        weight = math.prod(
            math.fsum(math.exp(logprob) for _, logprob in by_hand.after(row[:depth]))
            for depth in range(len(row))
        )
        assert draw.valid_mass == pytest.approx(weight, rel=1e-4)
        is_first = draw.number < params.num_draws
        assert draw.acceptance == (draw.valid_mass if is_first else 0.0)
        assert is_first or not draw.accepted
    for number, sample in enumerate(result.samples):
        mine = [draw for draw in trace.draws if draw.sample == number]
        (chosen,) = (draw for draw in mine if draw.chosen)
        assert written[chosen.node] == sample.hypothesis.token_ids
        assert chosen.accepted == sample.accepted
        assert chosen.valid_mass == math.exp(sample.log_weight)
        if sample.accepted:
            assert chosen.number + 1 == sample.num_draws
            assert not any(draw.accepted for draw in mine if draw.number < chosen.number)
            assert len(mine) == params.num_draws
        elif params.num_draws > 1:
            assert chosen.number >= params.num_draws
            assert not any(draw.accepted for draw in mine)
    first = [draw.valid_mass for draw in trace.draws if draw.number < params.num_draws]
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
    results = run(model, rows, params, list(traces))
    for mine, trace, result in zip(params, traces, results, strict=True):
        by_hand = ByHand(model, set(rows), temperature=mine.temperature)
        assert not trace.is_full
        assert_nodes_are_true(by_hand, trace)
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
    plain = run(model, rows, params)
    traces: list[Trace | None] = [None, Trace(), None]
    assert run(model, rows, params, traces) == plain
    assert run(model, rows, params, [Trace() for _ in params]) == plain
    assert len(traces[1].draws) == plain[1].num_draws


def test_with_the_likeliest_tokens_alone_nobody_counts() -> None:
    rows = sorted(catalogue(0))
    model = TableModel.random(VOCAB, 4, scale=1.0)
    trace = Trace()
    run(model, rows, [DiscParams(num_samples=8, top_m=2, reject_early=False)], [trace])
    by_hand = ByHand(model, set(rows))
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
    (result,) = run(TableModel.random(VOCAB, 1), rows, [params], [trace], [room])
    assert len(trace.draws) == result.num_draws
    written = prefixes_of(trace)
    for draw in trace.draws:
        if written[draw.node] in rows:
            assert draw.valid_mass > 0.0
        else:
            assert (draw.valid_mass, draw.acceptance, draw.accepted, draw.chosen) == (0.0, 0.0, False, False)
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
        run(model, sorted(catalogue(0)), params, [Trace()])
    assert run(model, sorted(catalogue(0)), params, [None]) == run(model, sorted(catalogue(0)), params)


def test_one_trace_per_query_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"traces must have one entry per query \(1\), got 2"):
        run(TableModel.random(VOCAB, 0), sorted(catalogue(0)), [DiscParams()], [None, None])
