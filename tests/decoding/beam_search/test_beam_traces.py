"""Traces of beam searches against the model's own softmax and the set of rows."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from genret.decoding import trace as trace_module
from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.cancellation import CancelToken
from genret.decoding.params import BeamParams
from genret.decoding.trace import Trace
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_batches import Batch
from tests.beam_oracles import at_most, check_nodes, close, prefixes_of, score, scores_of
from tests.tables_model import VOCAB, Meter, TablesModel
from tests.text_constraint import free_text
from tests.trie_oracles import needs_cuda

SEEDS = range(12)


def traced(batch: Batch, traces: Sequence[Trace | None], meter: Meter | None = None) -> list[BeamResult]:
    return batch.search(meter=meter, traces=traces).results


def assert_nodes_are_true(batch: Batch, query: int, trace: Trace) -> None:
    check_nodes(trace, batch.rows, batch.tokens(query).after)


def assert_what_was_cut_came_next(batch: Batch, query: int, trace: Trace) -> None:
    """Every step has as many as were wanted, and none that is missing was likelier. Not exact."""
    tokens = batch.tokens(query)
    written = dict(zip(prefixes_of(trace), trace.nodes, strict=True))
    for depth in range(batch.max_depth):
        live = [p for p, node in written.items() if len(p) == depth and node.state == "expanded"]
        possible = {
            (*prefix, token): written[prefix].total_logprob + logprob
            for prefix in live
            for token, logprob in tokens.after(prefix)
            if logprob > -math.inf and (*prefix, token) not in tokens.rows
        }
        there = {prefix: logprob for prefix, logprob in possible.items() if prefix in written}
        missing = [logprob for prefix, logprob in possible.items() if prefix not in written]
        assert len(there) == min(len(possible), 3 * batch.params[query].width)
        assert all(at_most(logprob, min(there.values())) for logprob in missing)
        going_on = [written[prefix].total_logprob for prefix in there if written[prefix].state == "expanded"]
        cut = [written[prefix].total_logprob for prefix in there if written[prefix].state == "pruned"]
        assert len(going_on) <= batch.params[query].width
        if going_on and cut:
            assert max(cut) <= min(going_on)


def assert_closed_are_no_better(batch: Batch, query: int, trace: Trace, result: BeamResult) -> None:
    penalty, k = batch.params[query].length_penalty, batch.params[query].k
    truth = batch.truths()[query].logprob
    closed = [p for p, n in zip(prefixes_of(trace), trace.nodes, strict=True) if n.state == "closed"]
    if closed:
        assert len(result.hypotheses) >= k
    for prefix in closed:
        kth = result.hypotheses[k - 1].score(penalty)
        for row, logprob in truth.items():
            if row[: len(prefix)] == prefix:
                assert at_most(score(logprob, len(row), penalty), kth)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_number_is_the_models_own(seed: int) -> None:
    batch = Batch.random(seed, num_queries=12)
    traces = [Trace() for _ in batch.params]
    meter = Meter([0] * 12, keys=[set() for _ in range(12)])
    results = traced(batch, traces, meter)
    for query, (trace, result) in enumerate(zip(traces, results, strict=True)):
        assert not trace.is_full
        assert_nodes_are_true(batch, query, trace)
        written = prefixes_of(trace)
        run = {p for p, node in zip(written, trace.nodes, strict=True) if node.state == "expanded"} - {()}
        # At the end of the room the model has been run, and nobody listens any more.
        unheard = {p for p in written if len(p) == batch.room[query] and p not in batch.allowed(query)}
        keys = {batch.model.key(query, prefix) for prefix in run}
        assert keys <= meter.keys[query] <= keys | {batch.model.key(query, prefix) for prefix in unheard}
        assert len(run) <= result.num_nodes <= len(run) + len(unheard)
        finished = {n.row: n.total_logprob for n in trace.nodes if n.state == "finished"}
        for hypothesis in result.hypotheses:
            assert finished[hypothesis.row] == hypothesis.logprob
        assert_closed_are_no_better(batch, query, trace, result)
        if not batch.params[query].exact:
            assert_what_was_cut_came_next(batch, query, trace)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_found_does_not_depend_on_who_is_traced(seed: int) -> None:
    batch = Batch.random(100 + seed, num_queries=12)
    rng = random.Random(seed)
    some = [Trace() if rng.random() < 0.5 else None for _ in batch.params]
    everything = [Trace() for _ in batch.params]
    plain = batch.search().results
    assert traced(batch, some) == plain
    assert traced(batch, everything) == plain
    assert [None if one is None else whole for one, whole in zip(some, everything, strict=True)] == some


def test_a_certified_exact_search_leaves_nothing_merely_pruned() -> None:
    seen = {"certified": 0, "not": 0}
    for seed in SEEDS:
        batch = Batch.random(200 + seed, num_queries=12, exact_share=1.0)
        traces = [Trace() for _ in batch.params]
        for trace, result in zip(traces, traced(batch, traces), strict=True):
            states = [node.state for node in trace.nodes[1:]]
            seen["certified" if result.certified else "not"] += bool(states)
            if result.certified and len(result.hypotheses) > 1:
                assert "pruned" not in states
    assert min(seen.values()) > 10


def test_the_prefixes_that_a_full_list_ended_are_closed() -> None:
    rows = sorted([(1, 0), (2, 2, 0), (2, 3, 0), (3, 3, 3, 0)])
    model = TablesModel.random(3, ["usual"])
    model.tables[:] = -5.0
    model.tables[:, :, 0] = 0.0  # whatever is written, the end is likeliest behind it
    trace = Trace()
    (result,) = beam_search(
        model.prefill(), TitleTrie.from_rows(rows, VOCAB), [BeamParams(k=1, beam_size=1)], traces=[trace]
    )
    assert [h.token_ids for h in result.hypotheses] == [(1, 0)]
    states = dict(zip(prefixes_of(trace), (node.state for node in trace.nodes), strict=True))
    assert states == {(): "expanded", (1,): "expanded", (2,): "pruned", (3,): "pruned", (1, 0): "finished"}
    trace = Trace()
    beam_search(
        model.prefill(), TitleTrie.from_rows(rows, VOCAB), [BeamParams(k=1, beam_size=3)], traces=[trace]
    )
    states = dict(zip(prefixes_of(trace), (node.state for node in trace.nodes), strict=True))
    assert {p for p, state in states.items() if state == "closed"} == {(2, 2), (2, 3), (3, 3)}


def test_several_searches_share_one_trace() -> None:
    batch = Batch.random(5, num_queries=6, exact_share=0.0)
    wider = batch.only(range(6), beam_size=40, k=70)
    traces = [Trace() for _ in batch.params]
    traced(batch, traces)
    traced(wider, traces)
    alone = [Trace() for _ in batch.params]
    traced(wider, alone)
    for query, (both, last) in enumerate(zip(traces, alone, strict=True)):
        assert_nodes_are_true(batch, query, both)
        states = dict(zip(prefixes_of(both), (node.state for node in both.nodes), strict=True))
        assert all(states[p] == n.state for p, n in zip(prefixes_of(last), last.nodes, strict=True))


def test_a_cancelled_query_is_not_in_the_way_of_others() -> None:
    batch = Batch.random(7, num_queries=4)
    token = CancelToken()
    token.cancel()
    traces = [Trace() for _ in batch.params]
    answers = batch.search(cancel=[token, None, None, None], traces=traces).answers
    alone = traced(batch, [Trace() for _ in batch.params])
    assert [a.hypotheses for a in answers[1:]] == [a.hypotheses for a in alone[1:]]
    assert not any(node.state == "expanded" for node in traces[0].nodes)


@pytest.mark.parametrize(("most_left", "most"), [(3, 9), (1, 2), (0, 1), (20, 30)])
def test_a_trace_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch, most_left: int, most: int) -> None:
    monkeypatch.setattr(trace_module, "MAX_LEFT", most_left)
    monkeypatch.setattr(trace_module, "MAX_NODES", most)
    for seed in SEEDS:
        batch = Batch.random(seed, num_queries=8)
        traces = [Trace() for _ in batch.params]
        assert traced(batch, traces) == batch.search().results
        for query, trace in enumerate(traces):
            prefixes_of(trace)
            assert len(trace.nodes) <= max(most, 1)
            if not trace.is_full:
                assert_nodes_are_true(batch, query, trace)
        whole = [Trace() for _ in batch.params]
        with monkeypatch.context() as unbounded:
            unbounded.setattr(trace_module, "MAX_LEFT", 10**6)
            unbounded.setattr(trace_module, "MAX_NODES", 10**6)
            traced(batch, whole)
        for trace, everything in zip(traces, whole, strict=True):
            assert trace.is_full == (len(trace.nodes) < len(everything.nodes))


def test_one_trace_per_query_is_asked_for() -> None:
    batch = Batch.random(1, num_queries=2)
    with pytest.raises(ValueError, match=r"traces must have one entry per query \(2\), got 1"):
        batch.search(traces=[None])


@needs_cuda
@pytest.mark.parametrize("seed", SEEDS)
def test_a_device_that_is_never_asked_finds_the_same_as_one_that_is_traced(seed: int) -> None:
    batch = Batch.random(300 + seed, num_queries=12)
    traces = [Trace() for _ in batch.params]
    results = batch.search("cuda", traces=traces).results
    for query, (result, plain) in enumerate(zip(results, batch.search("cuda").results, strict=True)):
        penalty = batch.params[query].length_penalty
        pairs = zip(scores_of(result, penalty), scores_of(plain, penalty), strict=True)
        assert all(close(left, right) for left, right in pairs)
        assert_nodes_are_true(batch, query, traces[query])


@pytest.mark.parametrize("is_wide", [True, False])
def test_where_only_likely_tokens_are_looked_at_nobody_counts(is_wide: bool) -> None:
    model = TablesModel.random(4, ["usual"], vocab_size=40)
    trace = Trace()
    params = [BeamParams(k=2, beam_size=2)]
    constraint = free_text(40, 3, is_wide)
    plain = beam_search(model.prefill(), constraint, params)
    assert beam_search(model.prefill(), constraint, params, traces=[trace]) == plain
    for node, prefix in zip(trace.nodes, prefixes_of(trace), strict=True):
        if node.state == "expanded":
            assert (node.num_valid is None) == (node.valid_mass is None) == is_wide
        if node.parent >= 0:
            before = model.next_logprobs(0, prefix[:-1])[prefix[-1]]
            assert close(node.total_logprob, trace.nodes[node.parent].total_logprob + before)
