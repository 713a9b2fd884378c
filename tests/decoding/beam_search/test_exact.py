"""`exact=True`: from the beam's list to the certified one, best prefix first, within a budget of tokens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest

from decoding.beam_search import BeamResult, beam_search
from decoding.beam_search.certificate import OpenNodes
from decoding.cancellation import CancelToken
from decoding.errors import DeadlineExceededError, DecodingCancelledError
from decoding.params import MAX_EXACT_BUDGET, BeamParams
from decoding.trie.title_trie import TitleTrie
from tests.beam_batches import END, Batch
from tests.beam_oracles import (
    at_most,
    check_certificate,
    close,
    inner_prefixes,
    is_true_top_k,
    kth_score,
    scores_of,
)
from tests.tables_model import VOCAB, Meter, TablesModel

SEEDS = range(100, 104)


def unbounded(seed: int) -> Batch:
    """A batch without bounds on what may be written."""
    batch = Batch.random(seed)
    return dataclasses.replace(batch, room=[None] * len(batch.room))


def open_queries(batch: Batch) -> list[int]:
    """Queries that a beam search alone leaves without a certificate."""
    plain = batch.only(range(len(batch.params)), exact=False)
    return [query for query, result in enumerate(plain.search().results) if not result.certified]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_large_budget_always_certifies(seed: int) -> None:
    batch = unbounded(seed).only(range(50), exact=True, exact_budget=MAX_EXACT_BUDGET)
    truths = batch.truths()
    for query, result in enumerate(batch.search().results):
        assert result.certified
        check_certificate(result, truths[query], batch.params[query])
        assert is_true_top_k(result, truths[query], batch.params[query])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_budget_of_every_prefix_that_is_left_always_certifies(seed: int) -> None:
    """The least budget that is large enough whatever the model says."""
    batch = unbounded(seed)
    plain = batch.only(range(50), exact=False).search().results
    params = [
        dataclasses.replace(
            p, exact=True, exact_budget=len(inner_prefixes(batch.allowed(q))) - plain[q].num_nodes
        )
        for q, p in enumerate(batch.params)
    ]
    assert all(result.certified for result in dataclasses.replace(batch, params=params).search().results)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_budget_below_what_any_proof_needs_never_certifies(seed: int) -> None:
    batch = unbounded(seed)
    truths = batch.truths()
    meter = Meter([0] * 50, keys=[set() for _ in range(50)])
    batch.only(range(50), exact=False).search(meter=meter)
    tried = 0
    params = [dataclasses.replace(p, exact=False) for p in batch.params]
    for query, truth in enumerate(truths):
        needed = {batch.model.key(query, prefix) for prefix in batch.needed_prefixes(query, truth)}
        missing = len(needed - meter.keys[query])
        if missing:
            params[query] = dataclasses.replace(params[query], exact=True, exact_budget=missing - 1)
            tried += 1
    assert tried > 0 or len(batch.rows) < 5
    for mine, result in zip(params, dataclasses.replace(batch, params=params).search().results, strict=True):
        if mine.exact:
            assert not result.certified
            assert result.num_exact_nodes == mine.exact_budget


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 7, 16])
def test_a_budget_is_kept_to_the_token_and_used_up_before_it_is_given_up(seed: int, budget: int) -> None:
    batch = unbounded(seed).only(range(50), exact=True, exact_budget=budget)
    plain = batch.only(range(50), exact=False).search().results
    truths = batch.truths()
    searched = batch.search()
    for query, result in enumerate(searched.results):
        check_certificate(result, truths[query], batch.params[query])
        assert result.num_nodes == searched.meter.nodes[query]
        assert result.num_nodes - result.num_exact_nodes == plain[query].num_nodes
        assert result.num_exact_nodes <= budget
        assert result.certified or result.num_exact_nodes == budget
        if plain[query].certified:
            assert result.num_exact_nodes == 0
            assert result.hypotheses == plain[query].hypotheses


@pytest.mark.parametrize("seed", SEEDS)
def test_more_budget_never_gives_a_worse_list_or_a_looser_bound(seed: int) -> None:
    batch = unbounded(seed)
    batch = batch.only(open_queries(batch))
    everything = range(len(batch.params))
    before = batch.only(everything, exact=False).search().results
    for budget in (0, 1, 3, 9, 27, 81, 243):
        after = batch.only(everything, exact=True, exact_budget=budget).search().results
        for params, old, new in zip(batch.params, before, after, strict=True):
            assert len(new.hypotheses) >= len(old.hypotheses)
            worse, better = (scores_of(result, params.length_penalty) for result in (old, new))
            assert all(at_most(low, high) for low, high in zip(worse, better, strict=False))
            assert at_most(new.best_pruned_score, max(old.best_pruned_score, kth_score(old, params)))
            assert new.certified or not old.certified
        before = after


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [1, 3, 10])
def test_to_keep_no_more_open_prefixes_than_the_budget_loses_nothing(
    seed: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = unbounded(seed).only(range(50), exact=True, exact_budget=budget)
    bounded = batch.search().results
    monkeypatch.setattr(
        "decoding.beam_search.search_state.OpenNodes", lambda max_depth, most: OpenNodes(max_depth, 10**9)
    )
    assert bounded == batch.search().results


@pytest.mark.parametrize("seed", SEEDS)
def test_exact_changes_nothing_about_queries_without_it(seed: int) -> None:
    batch = Batch.random(seed, exact_share=0.5)
    mixed = batch.search().results
    plain = batch.only(range(50), exact=False).search().results
    for params, with_others, alone in zip(batch.params, mixed, plain, strict=True):
        if not params.exact:
            assert dataclasses.replace(with_others, num_steps=0) == dataclasses.replace(alone, num_steps=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_without_room_to_go_on_the_list_is_not_certified(seed: int) -> None:
    """Exact ends with budget left only where what stays open may not be written."""
    batch = unbounded(seed)
    room = [query % 6 for query in range(50)]
    batch = dataclasses.replace(batch.only(range(50), exact=True, exact_budget=10**5), room=room)
    truths = batch.truths()
    for query, result in enumerate(batch.search().results):
        check_certificate(result, truths[query], batch.params[query])
        assert all(len(hypothesis.token_ids) <= room[query] for hypothesis in result.hypotheses)
        blocked = [
            prefix for prefix in batch.needed_prefixes(query, truths[query]) if len(prefix) >= room[query]
        ]
        if result.certified:
            assert not blocked
        else:
            assert room[query] < batch.max_depth


def interrupted(
    seed: int, interrupt: Callable[[CancelToken], None]
) -> tuple[Batch, list[BeamResult | DecodingCancelledError], list[int]]:
    """Interrupt the even queries in the second forward after the beam search.

    Returns:
        The batch, its answers, and how many tokens each even query was run on afterwards.
    """
    batch = unbounded(seed)
    batch = batch.only(open_queries(batch), exact=True, exact_budget=10**5)
    count = len(batch.params)
    beam_forwards = batch.only(range(count), exact=False).search().meter.forwards
    tokens = [CancelToken() if query % 2 == 0 else None for query in range(count)]
    meter = Meter([0] * count)
    nodes_then: list[int] = []

    def on_forward(number: int) -> None:
        if number == beam_forwards + 2:
            nodes_then.extend(meter.nodes)
            for token in tokens:
                if token is not None:
                    interrupt(token)

    meter.on_forward = on_forward
    answers = batch.search(cancel=tokens, meter=meter).answers
    assert nodes_then
    return batch, answers, [now - then for now, then in zip(meter.nodes[::2], nodes_then[::2], strict=True)]


def pass_deadline(token: CancelToken) -> None:
    token.deadline = 0.0


@pytest.mark.parametrize(
    ("interrupt", "error"),
    [(CancelToken.cancel, DecodingCancelledError), (pass_deadline, DeadlineExceededError)],
)
def test_cancellation_and_deadlines_act_between_two_forwards(
    interrupt: Callable[[CancelToken], None], error: type[DecodingCancelledError]
) -> None:
    batch, answers, more_nodes = interrupted(102, interrupt)
    assert len(answers) > 4
    assert not any(more_nodes)
    undisturbed = batch.search().results
    stopped = 0
    for query, answer in enumerate(answers):
        if query % 2 == 0 and isinstance(answer, DecodingCancelledError):
            assert type(answer) is error
            stopped += 1
        else:  # the others, and those that were certified by then
            assert isinstance(answer, BeamResult)
            assert answer.hypotheses == undisturbed[query].hypotheses
            assert answer.certified
    assert stopped > 0


def chain(letter: int, length: int) -> tuple[int, ...]:
    return (letter,) * length + (END,)


def test_a_dropped_row_of_a_thousand_tokens_is_found_again() -> None:
    """Nothing recurses, and a forward per token is enough."""
    rows = [chain(1, 40), chain(2, 1100)]
    model = TablesModel.random(7, ["usual"])
    # The letter 2 is unlikely as a first token and nearly certain from then on.
    model.tables[0, :, 1], model.tables[0, :, 2] = 0.0, 9.0
    model.tables[0, :, END] = 9.0
    model.tables[0, model.roots[0] % model.tables.shape[1], 1:3] = model.tables.new_tensor([20.0, 0.0])
    trie = TitleTrie.from_rows(rows, VOCAB)
    meter = Meter([0])
    params = BeamParams(k=2, beam_size=1, exact=True, exact_budget=1100)
    (result,) = beam_search(model.prefill(meter), trie, [params])
    assert [hypothesis.token_ids for hypothesis in result.hypotheses] == rows
    assert result.certified
    assert (result.num_nodes, result.num_exact_nodes) == (1140, 1100)
    short = dataclasses.replace(params, exact_budget=1099)
    (result,) = beam_search(model.prefill(), trie, [short])
    assert [hypothesis.token_ids for hypothesis in result.hypotheses] == rows[:1]
    assert not result.certified
    assert -math.inf < result.best_pruned_score < 0.0


def test_rows_of_equal_scores_are_certified_without_looking_at_each() -> None:
    """Flat logits: a dropped prefix that can only tie with the k-th row need not be looked behind."""
    rows = [(a, b, END) for a in range(1, 9) for b in range(1, 9)]
    model = TablesModel.random(0, ["flat"])
    trie = TitleTrie.from_rows(rows, VOCAB)
    params = BeamParams(k=1, beam_size=1, exact=True, exact_budget=10**5)
    (result,) = beam_search(model.prefill(), trie, [params])
    assert result.certified
    assert close(result.hypotheses[0].logprob, 3 * math.log(1 / 9))
    # Before a row is complete, every prefix of one and of two tokens may still beat it.
    assert result.num_nodes == 8 + 64
    (all_rows,) = beam_search(
        model.prefill(), trie, [BeamParams(k=64, beam_size=1, exact=True, exact_budget=71)]
    )
    assert all_rows.certified
    assert len(all_rows.hypotheses) == 64
    assert all_rows.num_nodes == 8 + 64
