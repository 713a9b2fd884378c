"""The token tree against parent pointers, and attention over its segments by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genret.decoding.model import segment_attention
from genret.decoding.model.segment_attention import Rule, Segment, Visibility, attend
from genret.decoding.model.token_tree import PromptLayout, TokenTree
from tests.tree_scripts import Branch, BranchTruth, Collect, Grow, Script, Select, random_script

CPU = torch.device("cpu")


def planted(lengths: list[int], prefix_length: int = 0) -> TokenTree:
    return TokenTree(PromptLayout(lengths, CPU, prefix_length))


class TaggedTree:
    """A token tree with the branch that stands in every slot, held to parent pointers.

    Args:
        tree: The tree.
        truth: True answers of the same prompts.
    """

    def __init__(self, tree: TokenTree, truth: BranchTruth) -> None:
        self.tree = tree
        self.truth = truth
        self.slots: list[list[Branch]] = [[] for _ in truth.prompts]

    def grow(self, step: Grow, window: int) -> None:
        """Write a frontier and compare everything that the tree says of it."""
        grown = self.tree.grow(torch.tensor(step.parents), step.depth)
        for query, row in enumerate(self.truth.grow(step)):
            self.slots[query] += row
        depth = self.truth.depth if step.depth is None else step.depth
        lengths = self.tree.prompts.lengths
        assert grown.positions.tolist() == [[length + depth - 1] for length in lengths]
        assert grown.largest_position == max(lengths) + depth - 1
        distances = [part[:, 0] for part in grown.distances()]
        for part in distances:
            assert all(0 <= distance <= grown.largest_position for distance in part.flatten().tolist())
        for query in range(len(lengths)):
            for column in range(len(step.parents[0])):
                parts = self._expected(query, column - len(step.parents[0]), depth)
                for part, expected in enumerate(parts):
                    row_of = distances[part][query if len(distances[part]) > 1 else 0]
                    assert {slot: int(row_of[slot]) for slot in expected} == expected
                    for reach in (None, window):
                        assert _visible(grown.sights(reach)[part], query, column, self._count(part)) == {
                            slot for slot, distance in expected.items() if reach is None or distance < reach
                        }

    def _count(self, part: int) -> int:
        prompts = self.tree.prompts
        return (prompts.prefix_length, prompts.width, self.tree.num_slots)[part]

    def _expected(self, query: int, column: int, depth: int) -> list[dict[int, int]]:
        """What a new branch sees of the prefix, of its prompt and of the tail: distances by slot."""
        prompts, slots = self.tree.prompts, self.slots[query]
        length = prompts.lengths[query]
        before = {place: length + depth - 1 - place for place in range(length)}
        shared = {place: behind for place, behind in before.items() if place < prompts.prefix_length}
        own = {place - length + prompts.width: d for place, d in before.items() if place not in shared}
        places: dict[int, int] = {}
        for slot, branch in enumerate(slots):  # fillers come behind the rest
            places.setdefault(id(branch), slot)
        tail = {places[id(above)]: d for d, above in enumerate(slots[column].ancestors())}
        assert sorted(tail, reverse=True) == list(tail)  # nothing changes its order
        return [shared, own, tail]

    def collect(self, parents: Sequence[Sequence[int]] | None) -> None:
        before, truth = self.tree.num_slots, self.truth
        kept = self.tree.collect(None if parents is None else torch.tensor(parents))
        wanted = before
        if truth.depth and not truth.keep_levels:
            live = [
                truth.num_live(query, None if parents is None else {n for n in parents[query] if n >= 0})
                for query in range(len(truth.prompts))
            ]
            wanted = max(live)
        assert (kept is None) == (wanted == before)
        assert self.tree.num_slots == wanted
        if kept is not None:
            self.slots = [
                [row[slot] for slot in slots] for row, slots in zip(self.slots, kept.tolist(), strict=True)
            ]

    def select(self, step: Select) -> TaggedTree:
        tree = self.tree.select(step.queries, torch.tensor(step.queries), step.branches)
        if not step.branches and step.keep_levels:
            tree.keep_levels()
        other = TaggedTree(tree, self.truth.select(step))
        if step.branches:
            other.slots = [list(self.slots[query]) for query in step.queries]
        return other


def _visible(sight: Visibility, query: int, branch: int, count: int) -> set[int]:
    slots = range(sight.first, count)
    if sight.hidden is None:
        return set(slots)
    hidden = sight.hidden[query, branch if sight.hidden.shape[1] > 1 else 0].tolist()
    return {slot for slot, value in zip(slots, hidden, strict=True) if not value}


def tagged(script: Script) -> TaggedTree:
    tree = planted([len(prompt) for prompt in script.prompts], script.prefix)
    if script.keep_levels:
        tree.keep_levels()
    return TaggedTree(tree, BranchTruth(script.prompts, script.keep_levels))


@settings(max_examples=500, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 8))
def test_branches_see_their_prompts_and_ancestors_at_their_distances(rng: random.Random, window: int) -> None:
    script = random_script(rng, vocab_size=9)
    trees = [tagged(script)]
    for operation in script.operations:
        chosen = trees[operation.session]
        match operation:
            case Collect():
                chosen.collect(None)
                assert chosen.tree.collect(None) is None
            case Select():
                trees.append(chosen.select(operation))
            case Grow():
                if rng.random() < 0.4:
                    chosen.collect(operation.parents)
                chosen.grow(operation, window)


def test_paths_of_earlier_levels_are_held_only_when_asked_for() -> None:
    plain, levels = planted([2]), planted([2])
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
    tree, one = planted([2]), torch.tensor([[0]])
    tree.grow(one)
    for depth in (0, 1, 3):
        with pytest.raises(ValueError, match=f"depth must be 2, the next, without keep_levels, got {depth}"):
            tree.grow(one, depth)
    with pytest.raises(ValueError, match="at depth 0, got it at depth 1"):
        tree.keep_levels()
    tree = planted([2])
    tree.keep_levels()
    tree.grow(one, 1)
    for depth in (-1, 0, 3):
        with pytest.raises(ValueError, match=rf"depth must be in \[1, 2\], got {depth}"):
            tree.grow(one, depth)
    assert tree.depth == 1


def test_a_wide_window_hides_nothing() -> None:
    for sight in planted([4, 4], 2).grow(torch.zeros(2, 1, dtype=torch.int64)).sights(5)[:2]:
        assert (sight.first, sight.hidden) == (0, None)


def test_prompts_that_a_window_has_left_behind_are_not_looked_at() -> None:
    tree = planted([4, 2], 1)
    for _ in range(3):
        step = tree.grow(torch.zeros(2, 1, dtype=torch.int64))
    assert [(sight.first, sight.hidden) for sight in step.sights(3)[:2]] == [(1, None), (3, None)]


@pytest.mark.parametrize(("lengths", "prefix"), [([], 0), ([3, 0], 0), ([3, 2], 2)])
def test_prompts_must_have_tokens_behind_the_prefix(lengths: list[int], prefix: int) -> None:
    with pytest.raises(ValueError, match="prompt lengths"):
        planted(lengths, prefix)


RULE = Rule(scaling=1.0, window=None, softcap=None, bias_owner=None)


def segments(dtype: torch.dtype) -> tuple[Tensor, tuple[Segment, ...]]:
    """Scores that spread over hundreds, the largest of them hidden."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (
        torch.randn(2, 4, n, 8, generator=generator, dtype=torch.float64) for n in (5, 9, 9)
    )
    query *= 40
    hidden = torch.zeros(2, 5, 9, dtype=torch.bool)
    hidden[:, :, 3] = True
    keys[:, :, 3] = 10 * query.mean(2)
    whole = Segment(keys.to(dtype), values.to(dtype), hidden, None)
    part = Segment(keys[:, :, :4].to(dtype) * 0.9, values[:, :, :4].to(dtype), None, None)
    return query.to(dtype), (whole, part)


def test_sure_attention_is_as_exact_as_any() -> None:
    exact, rounded = (attend(*segments(dtype), RULE) for dtype in (torch.float64, torch.float32))
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=2e-4)


def test_no_weight_is_denormal(monkeypatch) -> None:
    seen: list[Tensor] = []
    plain = segment_attention._lift_negligible

    def watched(scores: Tensor) -> None:
        before = scores.softmax(-1)
        assert ((before > 0) & (before < torch.finfo(torch.float32).tiny)).any()
        plain(scores)
        seen.append(scores.softmax(-1))

    monkeypatch.setattr(segment_attention, "_lift_negligible", watched)
    attend(*segments(torch.float32), RULE)
    (weights,) = seen
    assert (weights >= torch.finfo(torch.float32).tiny).all()
