"""How many tokens are proposed: what pays, found out from what became of earlier proposals alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.answering.answer import MOST_COST, ROW_COST, USUAL_COST, DraftCostModel, relative_cost


class Weighted:
    """A model of so many layers of some width."""

    def __init__(self, layers: int, width: int) -> None:
        self.pretrained = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def run(pace: DraftCostModel, share: float, passes: int, seed: int = 0) -> list[int]:
    """Numbers proposed in some passes where every token is accepted with a probability."""
    rng = random.Random(seed)
    numbers = []
    for _ in range(passes):
        numbers.append(pace.next())
        for _ in range(numbers[-1]):
            accepted = rng.random() < share
            pace.learn(accepted)
            if not accepted:
                break
    return numbers


def best_number(share: float, cost: float, most: int) -> int:
    """The number of proposals that brings most tokens for its cost, by the expectation term by term."""

    def rate(number: int) -> float:
        return sum(share**place for place in range(number + 1)) / (1 + number * (cost + ROW_COST))

    return max(range(most + 1), key=rate)


@given(st.integers(1, 8), st.floats(0.01, 0.6), st.lists(st.booleans(), max_size=30))
def test_the_number_is_the_best_for_the_share(most: int, cost: float, judged: list[bool]) -> None:
    pace = DraftCostModel(most, cost)
    for accepted in judged:
        pace.learn(accepted)
    assert pace.next() == best_number(pace.share, cost, most)


@given(st.lists(st.booleans(), min_size=60, max_size=60))
def test_the_share_is_that_of_late_proposals(judged: list[bool]) -> None:
    pace = DraftCostModel(4, 0.2)
    for accepted in judged:
        pace.learn(accepted)
    weights = [0.9**age for age in range(len(judged))]
    late = sum(weight * accepted for weight, accepted in zip(weights, reversed(judged), strict=True))
    assert pace.share == pytest.approx(late / sum(weights), abs=0.01)


def test_a_draft_that_is_never_right_is_given_up() -> None:
    numbers = run(DraftCostModel(4, 0.2), 0.0, 500)
    assert numbers[0] == 4
    assert sum(numbers[:12]) < 20
    # Tried again now and then, one token at a time, in pauses that grow.
    assert set(numbers[20:]) == {0, 1}
    tried = [place for place, number in enumerate(numbers) if number and place > 20]
    pauses = [later - earlier for earlier, later in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert sum(numbers[20:]) < 20


def test_a_draft_that_becomes_right_is_used_again() -> None:
    pace = DraftCostModel(4, 0.2)
    run(pace, 0.0, 60)
    assert max(run(pace, 1.0, 400)[-50:]) == 4


def test_a_trial_waits_for_something_to_be_proposed() -> None:
    """There may be nothing to propose in the pass in which it is tried again."""
    pace = DraftCostModel(1, 0.0)
    while pace.next():
        pace.learn(False)
    assert [pace.next() for _ in range(6)] == [0, 0, 0, 1, 1, 1]
    pace.learn(False)
    assert [pace.next() for _ in range(10)] == [0] * 8 + [1, 1]


def test_a_draft_as_dear_as_the_model_never_pays() -> None:
    assert run(DraftCostModel(8, 1.0), 1.0, 3)[0] == 0
    assert run(DraftCostModel(0, 0.1), 1.0, 100) == [0] * 100


@given(st.integers(0, 16), st.floats(0, 1), st.floats(0, 1.5), st.integers(0, 1000))
def test_numbers_are_within_what_was_asked_for(most: int, share: float, cost: float, seed: int) -> None:
    numbers = run(DraftCostModel(most, cost), share, 100, seed)
    assert 0 <= min(numbers) <= max(numbers) <= most
    assert numbers == run(DraftCostModel(most, cost), share, 100, seed)


def test_models_are_weighed() -> None:
    large = Weighted(8, 8)
    assert relative_cost(Weighted(2, 4), large) == 0.25  # a sixteenth of the weights, a quarter of the layers
    assert relative_cost(Weighted(1, 12), large) == 0.28125
    assert relative_cost(large, large) == relative_cost(large, Weighted(2, 4)) == MOST_COST
    assert DraftCostModel(4, MOST_COST).next() > 1
    assert relative_cost(object(), large) == relative_cost(large, object()) == USUAL_COST
