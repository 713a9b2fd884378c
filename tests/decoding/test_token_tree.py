"""Positions and visibility of the token tree against a walk over parent pointers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decoding.token_tree import TokenTree

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Frontier:
    """One step: the depth of its branches and, per query, the parent of every branch (-1 is padding)."""

    depth: int
    parents: list[list[int]]


@st.composite
def prompt_lengths(draw: st.DrawFn) -> list[int]:
    return draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))


@st.composite
def frontiers(draw: st.DrawFn, num_queries: int, levels: bool) -> list[Frontier]:
    """Steps that grow downwards, or with levels in any order."""
    steps: list[Frontier] = []
    written = [1]  # branches by depth; the prompt is the only one at depth 0
    for width in draw(st.lists(st.integers(1, 4), min_size=1, max_size=7)):
        depth = draw(st.integers(1, len(written))) if levels else len(written)
        parents = st.lists(st.integers(-1, written[depth - 1] - 1), min_size=width, max_size=width)
        steps.append(Frontier(depth, [draw(parents) for _ in range(num_queries)]))
        if depth == len(written):
            written.append(0)
        written[depth] += width
    return steps


class Walk:
    """Follows parent pointers: which slots, at which depths, a branch descends from."""

    def __init__(self, num_queries: int) -> None:
        self._num_slots = 0
        # Depth, query, branch: what a branch sees of the tail, as {slot: depth}. The prompt sees nothing.
        self._seen: dict[int, list[list[dict[int, int]]]] = {0: [[{}] for _ in range(num_queries)]}

    def grow(self, step: Frontier) -> list[list[dict[int, int]]]:
        """What every new branch of every query sees."""
        level = self._seen.setdefault(step.depth, [[] for _ in step.parents])
        new = []
        for query, parents in enumerate(step.parents):
            row = []
            for branch, parent in enumerate(parents):
                above = self._seen[step.depth - 1][query]
                inherited = above[parent] if parent >= 0 else {}
                row.append({**inherited, self._num_slots + branch: step.depth})
            level[query].extend(row)
            new.append(row)
        self._num_slots += len(step.parents[0])
        return new

    def select(self, queries: list[int]) -> Walk:
        other = Walk(len(queries))
        other._num_slots = self._num_slots
        other._seen = {
            depth: [list(level[query]) for query in queries] for depth, level in self._seen.items()
        }
        return other


def check(tree: TokenTree, walk: Walk, step: Frontier, window: int | None) -> None:
    """Grow both and compare."""
    lengths, longest = tree.prompt_lengths, tree.longest_prompt
    grown = tree.grow(torch.tensor(step.parents), step.depth)
    prompt, tail = grown.hidden(window)
    assert grown.positions.tolist() == [length + step.depth - 1 for length in lengths]
    assert grown.largest_position == longest + step.depth - 1
    distances = grown.distances()
    for query, row in enumerate(walk.grow(step)):
        length, position = lengths[query], lengths[query] + step.depth - 1
        for branch, family in enumerate(row):
            seen_prompt = set(range(longest)) if prompt is None else _visible(prompt[query, 0])
            allowed = [p for p in range(length) if window is None or position - p < window]
            assert seen_prompt == {longest - length + p for p in allowed}
            behind = {slot: step.depth - depth for slot, depth in family.items()}
            assert _visible(tail[query, branch]) == {
                slot for slot, distance in behind.items() if window is None or distance < window
            }
            assert {slot: int(distances[query, longest + slot]) for slot in behind} == behind
    assert int(distances.min()) >= 0
    assert int(distances.max()) <= grown.largest_position


@given(st.data(), prompt_lengths(), st.one_of(st.none(), st.integers(1, 8)))
def test_visible_slots_are_prompt_ancestors_and_self(
    data: st.DataObject, lengths: list[int], window: int | None
) -> None:
    levels = data.draw(st.booleans())
    tree, walk = TokenTree(lengths, CPU), Walk(len(lengths))
    if levels:
        tree.keep_levels()
    for step in data.draw(frontiers(len(lengths), levels)):
        check(tree, walk, step, window)


@given(st.data(), prompt_lengths(), st.one_of(st.none(), st.integers(1, 8)))
def test_selected_trees_grow_on(data: st.DataObject, lengths: list[int], window: int | None) -> None:
    levels = data.draw(st.booleans())
    tree, walk = TokenTree(lengths, CPU), Walk(len(lengths))
    if levels:
        tree.keep_levels()
    steps = data.draw(frontiers(len(lengths), levels))
    before = data.draw(st.integers(0, len(steps)))
    for step in steps[:before]:
        check(tree, walk, step, window)
    queries = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=4))
    part = tree.select(queries, torch.tensor(queries), branches=True)
    part_walk = walk.select(queries)
    for step in steps[before:]:
        check(part, part_walk, Frontier(step.depth, [step.parents[query] for query in queries]), window)
        check(tree, walk, step, window)


def _visible(hidden: torch.Tensor) -> set[int]:
    return {index for index, value in enumerate(hidden.tolist()) if not value}


def test_trees_selected_without_branches_are_their_prompts() -> None:
    tree = TokenTree([3, 1], CPU)
    tree.keep_levels()
    tree.grow(torch.tensor([[0, 0], [0, 0]]))
    alone = tree.select([1], torch.tensor([1]), branches=False)
    assert (alone.depth, alone.prompt_lengths) == (0, (1,))
    assert alone.grow(torch.tensor([[0]])).hidden(None)[1].tolist() == [[[False]]]
    with pytest.raises(ValueError, match="without keep_levels"):
        alone.grow(torch.tensor([[0]]), 1)


def test_paths_of_earlier_levels_are_held_only_when_asked_for() -> None:
    plain, levels = TokenTree([2], CPU), TokenTree([2], CPU)
    levels.keep_levels()
    for width in (3, 5, 2):
        for tree in (plain, levels):
            tree.grow(torch.zeros(1, width, dtype=torch.int64))
    assert {depth: paths.shape for depth, paths in plain._paths.items()} == {3: (1, 2, 3)}
    assert {depth: paths.shape for depth, paths in levels._paths.items()} == {
        1: (1, 3, 1),
        2: (1, 5, 2),
        3: (1, 2, 3),
    }


def test_depths_that_have_no_level_above() -> None:
    tree, one = TokenTree([2], CPU), torch.tensor([[0]])
    tree.grow(one)
    for depth in (0, 1, 3):
        with pytest.raises(ValueError, match=f"depth must be 2, the next, without keep_levels, got {depth}"):
            tree.grow(one, depth)
    with pytest.raises(ValueError, match="at depth 0, got it at depth 1"):
        tree.keep_levels()
    tree = TokenTree([2], CPU)
    tree.keep_levels()
    tree.grow(one, 1)
    for depth in (-1, 0, 3):
        with pytest.raises(ValueError, match=rf"depth must be in \[1, 2\], got {depth}"):
            tree.grow(one, depth)
    assert tree.depth == 1


def test_distances_count_positions_not_slots() -> None:
    tree = TokenTree([3, 1], CPU)
    tree.grow(torch.tensor([[0, 0], [0, 0]]))
    step = tree.grow(torch.tensor([[1], [0]]))
    # Prompt slots, two slots of the first frontier, the new token; distance to padding is clamped.
    assert step.distances().tolist() == [[4, 3, 2, 1, 1, 0], [4, 3, 2, 1, 1, 0]]


def test_distances_to_deeper_slots_are_clamped() -> None:
    tree = TokenTree([2], CPU)
    tree.keep_levels()
    for _ in range(3):
        tree.grow(torch.tensor([[0]]))
    assert tree.grow(torch.tensor([[0]]), 1).distances().tolist() == [[2, 1, 0, 0, 0, 0]]


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
