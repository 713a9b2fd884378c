"""Exact searches with a goal: what it is told is true, and nothing that it may need is lost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import pytest

from decoding.beam_search import BeamResult, FinishedRows, Goal, beam_search
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.params import BeamParams
from decoding.trie.title_trie import TitleTrie
from tests.beam_batches import END, Batch
from tests.beam_oracles import at_most, check_certificate, inner_prefixes, is_true_top_k
from tests.tables_model import VOCAB, Meter, TablesModel

SEEDS = range(200, 204)
EVERYTHING = 10**5  # tokens, and rows: more than any catalogue here has
MOST = 1000  # the largest k
Asked = list[tuple[list[int], list[float], float]]


@dataclasses.dataclass
class Watched:
    """A goal that notes what it is told.

    Attributes:
        num_rows: Rows that are kept for it.
        holds: Says whether it is reached, from the scores of the rows and the bound on what was not seen.
        length_penalty: Of its query.
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
    batch = Batch.random(seed)
    batch = dataclasses.replace(batch, room=[None] * len(batch.room))
    return batch.only(range(len(batch.room)), exact=True, exact_budget=budget)


def search(
    batch: Batch,
    goals: Sequence[Goal | None] | None,
    meter: Meter | None = None,
    cancel: Sequence[CancelToken | None] | None = None,
) -> list[BeamResult]:
    answers = beam_search(
        batch.model.prefill(meter), batch.constraint(), batch.params, cancel, batch.room, goals
    )
    assert not any(isinstance(answer, DecodingCancelledError) for answer in answers)
    return [answer for answer in answers if isinstance(answer, BeamResult)]


def plain_of(batch: Batch) -> list[BeamResult]:
    return batch.only(range(len(batch.params)), exact=False).search().results


def watched(batch: Batch, num_rows: int, holds: Callable[[list[float], float], bool]) -> list[Watched]:
    return [Watched(max(num_rows, p.k), holds, p.length_penalty) for p in batch.params]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [3, 40, EVERYTHING])
def test_the_k_best_rows_as_a_goal_are_what_is_proven_without_one(seed: int, budget: int) -> None:
    batch = exact_batch(seed, budget)
    goals = [Watched(p.k, best_rows(p.k), p.length_penalty) for p in batch.params]
    assert search(batch, goals) == search(batch, None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("count", [1, 4, 12, 70])
def test_longer_lists_than_k_are_proven_by_the_same_beams(seed: int, count: int) -> None:
    """Prefixes that a full list of k rows ends are gone on from when the goal needs more."""
    batch = exact_batch(seed)
    plain, truths = plain_of(batch), batch.truths()
    goals = watched(batch, count, best_rows(count))
    for query, result in enumerate(search(batch, goals)):
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [0, 1, 2, 7, 30, EVERYTHING])
def test_a_goal_out_of_reach_is_gone_on_for_to_the_last_token(seed: int, budget: int) -> None:
    batch = exact_batch(seed, budget)
    plain, truths, meter = plain_of(batch), batch.truths(), Meter([0] * len(batch.params))
    for query, result in enumerate(search(batch, watched(batch, EVERYTHING, never), meter)):
        params = batch.params[query]
        assert result.num_nodes == meter.nodes[query] == plain[query].num_nodes + result.num_exact_nodes
        assert result.num_exact_nodes <= budget
        assert result.num_exact_nodes == budget or result.best_pruned_score == -math.inf
        assert result.num_nodes <= len(inner_prefixes(batch.allowed(query)))
        if result.best_pruned_score == -math.inf:
            assert is_true_top_k(result, truths[query], dataclasses.replace(params, k=MOST))
        assert {h.row for h in plain[query].hypotheses} <= {h.row for h in result.hypotheses}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("num_rows", [1, 10, EVERYTHING])
def test_what_a_goal_is_told_is_true_and_new(seed: int, num_rows: int) -> None:
    batch = exact_batch(seed)
    truths, goals = batch.truths(), watched(batch, num_rows, best_rows(30))
    forwards = Meter([0] * len(batch.params))
    search(batch, goals, forwards)
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


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("budget", [9, EVERYTHING])
def test_queries_with_and_without_goals_do_not_change_one_another(seed: int, budget: int) -> None:
    batch = exact_batch(seed, budget)
    batch = dataclasses.replace(
        batch,
        params=[dataclasses.replace(p, exact=number % 3 > 0) for number, p in enumerate(batch.params)],
    )
    goals = [
        goal if number % 3 == 1 else None for number, goal in enumerate(watched(batch, 25, best_rows(25)))
    ]
    together = search(batch, goals)
    for query in range(0, len(goals), 4):
        goal = goals[query]
        again = None if goal is None else dataclasses.replace(goal, asked=[], answers=[])
        (alone,) = search(batch.only([query]), [again])
        assert dataclasses.replace(alone, num_steps=together[query].num_steps) == together[query]
        assert (goal and goal.asked) == (again and again.asked)


def test_a_goal_that_holds_at_once_costs_nothing() -> None:
    batch = exact_batch(201)
    goals = watched(batch, EVERYTHING, lambda scores, unseen: True)
    for mine, plain in zip(search(batch, goals), plain_of(batch), strict=True):
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
