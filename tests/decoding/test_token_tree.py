"""Positions and visibility of the token tree against a walk over parent pointers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.token_tree import TokenTree

CPU = torch.device("cpu")


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[list[list[int]]]]:
    """Prompt lengths and, per step, parents of every branch of every query (-1 is padding)."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    widths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    steps, previous = [], 1
    for width in widths:
        parents = st.lists(st.integers(-1, previous - 1), min_size=width, max_size=width)
        steps.append([draw(parents) for _ in lengths])
        previous = width
    return lengths, steps


def ancestors(steps: list[list[list[int]]], query: int, level: int, branch: int) -> list[tuple[int, int]]:
    """(level, branch) of a branch and its ancestors up to the prompt or the first padding branch."""
    chain = [(level, branch)]
    while level > 0 and steps[level][query][branch] >= 0:
        branch = steps[level][query][branch]
        level -= 1
        chain.append((level, branch))
    return chain


@given(trees(), st.one_of(st.none(), st.integers(1, 8)))
def test_visible_slots_are_prompt_ancestors_and_self(
    tree_of_steps: tuple[list[int], list[list[list[int]]]], window: int | None
) -> None:
    lengths, steps = tree_of_steps
    tree = TokenTree(lengths, CPU)
    longest = max(lengths)
    first_slot = [sum(len(step[0]) for step in steps[:level]) for level in range(len(steps))]
    for level, parents in enumerate(steps):
        step = tree.grow(torch.tensor(parents))
        prompt, tail = step.hidden(window)
        assert step.positions.tolist() == [length + level for length in lengths]
        assert step.largest_position == longest + level
        for query, length in enumerate(lengths):
            position = length + level
            for branch in range(len(parents[query])):
                seen_prompt = set(range(longest)) if prompt is None else _visible(prompt[query, 0])
                allowed = [p for p in range(length) if window is None or position - p < window]
                assert seen_prompt == {longest - length + p for p in allowed}
                family = ancestors(steps, query, level, branch)
                slots = {
                    first_slot[at] + which
                    for at, which in family
                    if window is None or position - (length + at) < window
                }
                assert _visible(tail[query, branch]) == slots


def _visible(hidden: torch.Tensor) -> set[int]:
    return {index for index, value in enumerate(hidden.tolist()) if not value}


def test_distances_count_positions_not_slots() -> None:
    tree = TokenTree([3, 1], CPU)
    tree.grow(torch.tensor([[0, 0], [0, 0]]))
    step = tree.grow(torch.tensor([[1], [0]]))
    # Prompt slots, two slots of the first frontier, the new token; distance to padding is clamped.
    assert step.distances().tolist() == [[4, 3, 2, 1, 1, 0], [4, 3, 2, 1, 1, 0]]


def test_parents_of_the_first_step_are_ignored() -> None:
    tree = TokenTree([2], CPU)
    _, tail = tree.grow(torch.tensor([[5, -1, 7]])).hidden(None)
    assert tail.tolist() == [[[False, True, True], [True, False, True], [True, True, False]]]


def test_a_wide_window_hides_nothing() -> None:
    prompt, _ = TokenTree([4, 4], CPU).grow(torch.zeros(2, 1, dtype=torch.int64)).hidden(5)
    assert prompt is None


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_prompts_must_have_tokens(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="prompt_lengths"):
        TokenTree(lengths, CPU)
