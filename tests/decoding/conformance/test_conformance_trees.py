"""Random trees are trees, and differences are what they say."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.conformance.difference import Difference, Tolerance
from decoding.conformance.examination import ExamineOptions, make_plan, prompt_lengths
from decoding.conformance.plain_passes import RandomTree, random_tree

SHAPES = {"depth": st.integers(1, 6), "branches": st.integers(1, 6), "seed": st.integers(0, 2**32)}


def drawn(depth: int, branches: int, seed: int) -> RandomTree:
    generator = torch.Generator().manual_seed(seed)
    return random_tree([9, 4, 6], 3, depth, branches, torch.arange(5, 30), generator)


@settings(deadline=None, max_examples=60)
@given(**SHAPES)
def test_every_branch_hangs_below_a_real_one(depth: int, branches: int, seed: int) -> None:
    tree = drawn(depth, branches, seed)
    assert [len(prompt) for prompt in tree.prompts] == [9, 4, 6]
    assert len({prompt[:3] for prompt in tree.prompts}) == 1
    for level in range(1, depth + 1):
        real = tree.columns(level)
        assert real[:, 0].all()
        for query, column in real.nonzero().tolist():
            columns = tree.ancestry(query, level, column)
            assert len(columns) == level + 1
            assert all(tree.columns(above)[query, place] for above, place in enumerate(columns))
            path = tree.path(query, level, column)
            assert path[-1] == tree.tokens[level - 1, query, column]
            assert path[:-1] == tree.path(query, level - 1, columns[-2])


@settings(deadline=None, max_examples=60)
@given(**SHAPES)
def test_leaves_cover_every_branch(depth: int, branches: int, seed: int) -> None:
    tree = drawn(depth, branches, seed)
    reached = {
        (query, level, place)
        for query, leaf_depth, column in tree.leaves()
        for level, place in enumerate(tree.ancestry(query, leaf_depth, column))
    }
    real = {
        (query, level, column)
        for level in range(depth + 1)
        for query, column in tree.columns(level).nonzero().tolist()
    }
    assert reached == real


def test_differences_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    got = torch.randn(6, 11, generator=generator, dtype=torch.float64)
    expected = got + 0.01 * torch.randn(6, 11, generator=generator, dtype=torch.float64)
    together = Difference.between(got, expected)
    parts = Difference.between(got[:2], expected[:2]) + Difference.between(got[2:], expected[2:])
    assert parts.branches == together.branches == 6
    assert parts.largest == together.largest
    assert parts.relative == pytest.approx(together.relative)
    assert parts.agreeing == together.agreeing
    logprobs = expected.log_softmax(-1)
    apart = (got.log_softmax(-1) - logprobs).norm() / (logprobs - logprobs.mean(-1, keepdim=True)).norm()
    assert together.relative == pytest.approx(float(apart))


def test_nan_is_never_explained_by_rounding() -> None:
    broken = Difference.between(torch.full((1, 3), math.nan), torch.zeros(1, 3))
    fine = Difference.between(torch.zeros(1, 3), torch.zeros(1, 3))
    for difference in (broken + fine, fine + broken):
        assert math.isnan(difference.largest)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            assert not Tolerance.strict(dtype).holds(difference)


def test_no_branch_is_no_difference() -> None:
    assert Difference.between(torch.zeros(0, 3), torch.zeros(0, 3)) == Difference()


@pytest.mark.parametrize(
    ("largest", "relative", "holds"),
    [(9e-5, 1e-3, True), (2e-4, 1e-6, True), (2e-4, 1e-4, False), (2e-3, 1e-6, False)],
)
def test_float32_forgives_a_badly_conditioned_branch(largest: float, relative: float, holds: bool) -> None:
    difference = Difference(10, largest, squared=relative**2, spread=1.0, agreeing=10)
    assert Tolerance.strict(torch.float32).holds(difference) is holds
    assert not Tolerance.strict(torch.float64).holds(difference)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), number=st.integers(0, 3), longest=st.integers(8, 70))
def test_prompts_are_longer_than_what_they_share(seed: int, number: int, longest: int) -> None:
    plan = make_plan(ExamineOptions(prompt_tokens=longest), [], None, None, shared_positions=True)
    lengths, prefix = prompt_lengths(plan, number, torch.Generator().manual_seed(seed))
    assert max(lengths) == longest
    assert 0 < prefix < min(lengths)
