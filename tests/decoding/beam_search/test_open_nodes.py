"""Open prefixes: which are kept, which come first, and what is remembered of those that are not."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.beam_search.certificate import Nodes, OpenNodes


def nodes(scores: list[float], depth: int = 1) -> Nodes:
    """Prefixes that are told apart by their tokens."""
    numbers = np.arange(len(scores), dtype=np.int64)
    values = np.array(scores, dtype=np.float64)
    return Nodes(np.full(len(scores), depth, dtype=np.int64), numbers, numbers, numbers, values, values)


@settings(max_examples=200, deadline=None)
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


def test_a_bar_that_rises_purges():
    held = OpenNodes(max_depth=9, most=10)
    held.add(nodes([-1.0, -2.0, -3.0]), -math.inf)
    held.purge(-2.0)
    assert held.nodes.optimistic.tolist() == [-1.0]
    assert held.forgotten == -2.0
    assert held.bound() == -1.0


@pytest.mark.parametrize("most", [0, 5])
def test_nothing_open_bounds_nothing(most: int):
    held = OpenNodes(max_depth=9, most=most)
    held.add(nodes([]), -math.inf)
    assert held.bound() == -math.inf
    assert held.best(3).tolist() == []
