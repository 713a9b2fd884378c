"""Exact searches: from the beam's list to the certified one, within a budget; goals; open prefixes."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.beam_search import BeamResult, FinishedRows, beam_search
from genret.decoding.beam_search.search_state import Nodes, OpenNodes
from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
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


def open_queries(batch: Batch) -> list[int]:
    """Queries that a beam search alone leaves without a certificate."""
    return [query for query, result in enumerate(batch.plain()) if not result.certified]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_budget_of_every_prefix_that_is_left_always_certifies(seed: int) -> None:
    """The least budget that is large enough whatever the model says."""
    batch = Batch.random(seed).unbounded()
    plain = batch.plain()
    params = [
        dataclasses.replace(
            p, exact=True, exact_budget=len(inner_prefixes(batch.allowed(q))) - plain[q].num_nodes
        )
        for q, p in enumerate(batch.params)
    ]
    results = dataclasses.replace(batch, params=params).search().results
    for query, (mine, truth) in enumerate(zip(params, batch.truths(), strict=True)):
        assert results[query].certified
        check_certificate(results[query], truth, mine)
        if plain[query].certified:
            assert results[query].num_exact_nodes == 0
            assert results[query].hypotheses == plain[query].hypotheses


@pytest.mark.parametrize("seed", SEEDS)
def test_a_budget_below_what_any_proof_needs_never_certifies(seed: int) -> None:
    batch = Batch.random(seed).unbounded()
    truths = batch.truths()
    meter = Meter([0] * 50, keys=[set() for _ in range(50)])
    batch.only(exact=False).search(meter=meter)
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
def test_more_budget_never_gives_a_worse_list_or_a_looser_bound(seed: int) -> None:
    batch = Batch.random(seed).unbounded()
    batch = batch.only(open_queries(batch))
    before = batch.plain()
    for budget in (0, 1, 3, 9, 27, 81, 243):
        after = batch.only(exact=True, exact_budget=budget).search().results
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
    batch = Batch.random(seed).unbounded().only(exact=True, exact_budget=budget)
    bounded = batch.search().results
    monkeypatch.setattr(
        "genret.decoding.beam_search.search_state.OpenNodes",
        lambda max_depth, most: OpenNodes(max_depth, 10**9),
    )
    assert bounded == batch.search().results


@pytest.mark.parametrize("seed", SEEDS)
def test_without_room_to_go_on_the_list_is_not_certified(seed: int) -> None:
    """Exact ends with budget left only where what stays open may not be written."""
    batch = Batch.random(seed).unbounded()
    room = [query % 6 for query in range(50)]
    batch = dataclasses.replace(batch.only(exact=True, exact_budget=10**5), room=room)
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
    batch = Batch.random(seed).unbounded()
    batch = batch.only(open_queries(batch), exact=True, exact_budget=10**5)
    count = len(batch.params)
    beam_forwards = batch.only(exact=False).search().meter.forwards
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


GOAL_SEEDS = range(200, 204)
EVERYTHING = 10**5  # tokens, and rows: more than any catalogue here has
MOST = 1000  # the largest k
Asked = list[tuple[list[int], list[float], float]]


@dataclasses.dataclass
class Watched:
    """A goal that notes what it is told.

    Attributes:
        num_rows: Rows that are kept for it.
        holds: Says whether it is reached, from the scores of the rows and the bound on what was not seen.
        length_penalty: Length penalty of its query.
        asked: Ranks, log-probabilities and bound of every time it was asked.
    """

    num_rows: int
    holds: Callable[[list[float], float], bool]
    length_penalty: float = 0.0
    asked: Asked = dataclasses.field(default_factory=list)
    answers: list[bool] = dataclasses.field(default_factory=list)

    def reached(self, rows: FinishedRows, unseen: float) -> bool:
        assert len(rows.row) == len(rows.logprob) == len(rows.length) <= self.num_rows
        scores = (rows.logprob / rows.length.astype(float) ** self.length_penalty).tolist()
        assert scores == sorted(scores, reverse=True)
        self.asked.append((rows.row.tolist(), rows.logprob.tolist(), unseen))
        self.answers.append(self.holds(scores, unseen))
        return self.answers[-1]


def best_rows(count: int) -> Callable[[list[float], float], bool]:
    """Whether the `count` best rows are known."""
    return lambda scores, unseen: len(scores) >= count and scores[count - 1] >= unseen


def never(_: list[float], __: float) -> bool:
    return False


def exact_batch(seed: int, budget: int = EVERYTHING) -> Batch:
    return Batch.random(seed).unbounded().only(exact=True, exact_budget=budget)


def watched(batch: Batch, num_rows: int, holds: Callable[[list[float], float], bool]) -> list[Watched]:
    return [Watched(max(num_rows, p.k), holds, p.length_penalty) for p in batch.params]


@pytest.mark.parametrize("seed", GOAL_SEEDS)
@pytest.mark.parametrize("budget", [3, 40, EVERYTHING])
def test_the_k_best_rows_as_a_goal_are_what_is_proven_without_one(seed: int, budget: int) -> None:
    batch = exact_batch(seed, budget)
    goals = [Watched(p.k, best_rows(p.k), p.length_penalty) for p in batch.params]
    assert batch.search(goals=goals).results == batch.search().results


@pytest.mark.parametrize("seed", GOAL_SEEDS)
@pytest.mark.parametrize("count", [1, 4, 12, 70])
def test_longer_lists_than_k_are_proven_by_the_same_beams(seed: int, count: int) -> None:
    """Prefixes that a full list of k rows ends are gone on from when the goal needs more."""
    batch = exact_batch(seed)
    plain, truths = batch.plain(), batch.truths()
    goals = watched(batch, count, best_rows(count))
    for query, result in enumerate(batch.search(goals=goals).results):
        params = batch.params[query]
        assert result.num_nodes - result.num_exact_nodes == plain[query].num_nodes
        first = dataclasses.replace(result, hypotheses=result.hypotheses[:count], certified=True)
        wanted = dataclasses.replace(params, k=count)
        assert is_true_top_k(first, truths[query], wanted)
        kept = dataclasses.replace(params, k=goals[query].num_rows)
        full = len(result.hypotheses) == kept.k
        last_score = result.hypotheses[-1].score(params.length_penalty) if full else -math.inf
        whole = dataclasses.replace(result, certified=result.best_pruned_score <= last_score)
        check_certificate(whole, truths[query], kept)


@pytest.mark.parametrize("seed", GOAL_SEEDS)
@pytest.mark.parametrize("budget", [0, 1, 2, 7, 30, EVERYTHING])
def test_a_goal_out_of_reach_is_gone_on_for_to_the_last_token(seed: int, budget: int) -> None:
    batch = exact_batch(seed, budget)
    plain, truths, meter = batch.plain(), batch.truths(), Meter([0] * len(batch.params))
    for query, result in enumerate(
        batch.search(goals=watched(batch, EVERYTHING, never), meter=meter).results
    ):
        params = batch.params[query]
        assert result.num_nodes == meter.nodes[query] == plain[query].num_nodes + result.num_exact_nodes
        assert result.num_exact_nodes <= budget
        assert result.num_exact_nodes == budget or result.best_pruned_score == -math.inf
        assert result.num_nodes <= len(inner_prefixes(batch.allowed(query)))
        if result.best_pruned_score == -math.inf:
            assert is_true_top_k(result, truths[query], dataclasses.replace(params, k=MOST))
        assert {h.row for h in plain[query].hypotheses} <= {h.row for h in result.hypotheses}


@pytest.mark.parametrize("seed", GOAL_SEEDS)
@pytest.mark.parametrize("num_rows", [1, 10, EVERYTHING])
def test_what_a_goal_is_told_is_true_and_new(seed: int, num_rows: int) -> None:
    batch = exact_batch(seed)
    truths, goals = batch.truths(), watched(batch, num_rows, best_rows(30))
    forwards = Meter([0] * len(batch.params))
    batch.search(goals=goals, meter=forwards)
    for goal, truth in zip(goals, truths, strict=True):
        seen: set[tuple[int, ...]] = set()
        bounds = [unseen for _, _, unseen in goal.asked]
        assert len(goal.asked) <= forwards.forwards
        if num_rows == EVERYTHING:  # no row falls off the end of the list
            assert bounds == sorted(bounds, reverse=True)
        assert all(before != after for before, after in zip(goal.asked, goal.asked[1:], strict=False))
        assert not any(goal.answers[:-1])
        for ranks, _, unseen in goal.asked:
            seen |= {batch.rows[rank] for rank in ranks}
            for entry in truth.ranking(goal.length_penalty):
                assert entry.row in seen or at_most(entry.score, unseen)


@pytest.mark.parametrize("seed", GOAL_SEEDS)
@pytest.mark.parametrize("budget", [9, EVERYTHING])
def test_queries_with_and_without_goals_do_not_change_one_another(seed: int, budget: int) -> None:
    batch = exact_batch(seed, budget)
    batch = dataclasses.replace(
        batch, params=[dataclasses.replace(p, exact=number % 3 > 0) for number, p in enumerate(batch.params)]
    )
    goals = [
        goal if number % 3 == 1 else None for number, goal in enumerate(watched(batch, 25, best_rows(25)))
    ]
    together = batch.search(goals=goals).results
    for query in range(0, len(goals), 4):
        goal = goals[query]
        again = None if goal is None else dataclasses.replace(goal, asked=[], answers=[])
        (alone,) = batch.only([query]).search(goals=[again]).results
        assert dataclasses.replace(alone, num_steps=together[query].num_steps) == together[query]
        assert (goal and goal.asked) == (again and again.asked)


def test_a_goal_that_holds_at_once_costs_nothing() -> None:
    batch = exact_batch(201)
    goals = watched(batch, EVERYTHING, lambda scores, unseen: True)
    for mine, plain in zip(batch.search(goals=goals).results, batch.plain(), strict=True):
        assert mine.num_exact_nodes == 0
        assert mine.num_nodes == plain.num_nodes
        assert mine.hypotheses[: len(plain.hypotheses)] == plain.hypotheses
        assert mine.certified == plain.certified


def test_goals_that_cannot_be_had_are_refused() -> None:
    session = TablesModel.random(1, ["usual"]).prefill()
    titles = TitleTrie.from_rows([(1, END)], VOCAB)
    goal = Watched(4, never)
    with pytest.raises(ValueError, match=r"goals must have one entry per query \(1\), got 2"):
        beam_search(session, titles, [BeamParams(k=1, exact=True)], goals=[goal, goal])
    with pytest.raises(ValueError, match=r"goals\[0\]: only a query that is exact"):
        beam_search(session, titles, [BeamParams(k=1)], goals=[goal])
    with pytest.raises(ValueError, match=r"goals\[0\].num_rows must be at least k \(5\), got 4"):
        beam_search(session, titles, [BeamParams(k=5, exact=True)], goals=[goal])


def nodes(scores: list[float], depth: int = 1) -> Nodes:
    """Prefixes that are told apart by their tokens."""
    numbers = np.arange(len(scores), dtype=np.int64)
    values = np.array(scores, dtype=np.float64)
    return Nodes(np.full(len(scores), depth, dtype=np.int64), numbers, numbers, numbers, values, values)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), most=st.integers(0, 12))
def test_what_is_kept_and_what_is_forgotten(seed, most):
    """Against a list that is sorted anew at every turn."""
    rng = random.Random(seed)
    held, kept, forgotten, bar = OpenNodes(max_depth=9, most=most), [], -math.inf, -math.inf
    for turn in range(6):
        new = [float(-rng.randint(0, 9)) for _ in range(rng.randint(0, 9))]
        bar = max(bar, float(-rng.randint(5, 12)))
        depth = rng.choice([1, 4, 9])
        held.add(nodes(new, depth), bar)
        if depth == 9:
            forgotten = max([forgotten, *new])
        else:
            kept += [(score, turn, number) for number, score in enumerate(new)]
        beaten = [entry for entry in kept if entry[0] <= bar]
        kept = [entry for entry in kept if entry[0] > bar]
        kept.sort(key=lambda entry: (-entry[0], entry[1:]))
        forgotten = max([forgotten, *(entry[0] for entry in beaten + kept[most:])])
        kept = kept[:most]
        assert held.bound() == max([forgotten, *(entry[0] for entry in kept)])
        assert held.forgotten == forgotten
        count = rng.randint(1, 4)
        best = held.best(count)
        taken = held.remove(best)
        assert list(zip(taken.optimistic.tolist(), taken.token.tolist(), strict=True)) == [
            (score, number) for score, _, number in kept[:count]
        ]
        kept = kept[count:]
        assert len(held.nodes.depth) == len(kept)
