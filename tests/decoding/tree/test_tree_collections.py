"""Collections of the token tree without a model: no visible ancestor is ever lost, whatever is collected.

Every slot carries a tag, as a cache would carry its keys, and moves where the tree says that it moves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding.model.token_tree import PromptLayout, TokenTree, TreeStep
from tests.tree_scripts import Branch, BranchTruth, Collect, Grow, Select, random_script

CPU = torch.device("cpu")
VOCAB = 9


class TaggedTree:
    """A token tree with the branch that stands in every slot, held to parent pointers.

    Args:
        lengths: Of the whole prompts.
        prefix: Tokens of the shared prefix.
        truth: Of the same prompts.
    """

    def __init__(self, tree: TokenTree, truth: BranchTruth) -> None:
        self.tree = tree
        self.truth = truth
        self.slots: list[list[Branch]] = [[] for _ in truth.prompts]

    def grow(self, step: Grow) -> TreeStep:
        grown = self.tree.grow(torch.tensor(step.parents), step.depth)
        for query, row in enumerate(self.truth.grow(step)):
            self.slots[query] += row
        return grown

    def collect(self, parents: Sequence[Sequence[int]] | None) -> None:
        before = self.tree.num_slots
        kept = self.tree.collect(None if parents is None else torch.tensor(parents))
        if kept is not None:
            assert kept.shape[1] == self.tree.num_slots < before
            self.slots = [
                [row[slot] for slot in slots] for row, slots in zip(self.slots, kept.tolist(), strict=True)
            ]

    def select(self, step: Select) -> TaggedTree:
        chosen = torch.tensor(step.queries)
        tree = self.tree.select(step.queries, chosen, step.branches)
        if not step.branches and step.keep_levels:
            tree.keep_levels()
        other = TaggedTree(tree, self.truth.select(step))
        if step.branches:
            other.slots = [list(self.slots[query]) for query in step.queries]
        return other

    def check(self, grown: TreeStep, step: Grow, window: int) -> None:
        """Every new branch sees itself and its ancestors, at their distances, and nothing else."""
        everything, near = grown.sights(None)[2].hidden, grown.sights(window)[2].hidden
        assert everything is not None
        assert near is not None
        distances = grown.distances()[2][:, 0]
        depth = self.truth.depth if step.depth is None else step.depth
        width = len(step.parents[0])
        for query, slots in enumerate(self.slots):
            assert len(slots) == self.tree.num_slots
            for column, branch in enumerate(slots[-width:]):
                seen = [slots[slot] for slot in _visible(everything[query, column])]
                ancestors = list(branch.ancestors())[::-1]
                # Padding, and what continues padding, has no ancestors worth the name.
                assert seen == ancestors or (branch.is_padding and branch in seen)
                if not branch.is_padding:
                    assert [
                        int(distances[query, slot]) for slot in _visible(everything[query, column])
                    ] == list(range(depth))[::-1]
                    assert [slots[slot] for slot in _visible(near[query, column])] == ancestors[-window:]


def _visible(hidden: Tensor) -> list[int]:
    return [slot for slot, value in enumerate(hidden.tolist()) if not value]


def tagged(lengths: Sequence[int], prefix: int, keep_levels: bool = False) -> TaggedTree:
    tree = TokenTree(PromptLayout(lengths, CPU, prefix))
    if keep_levels:
        tree.keep_levels()
    return TaggedTree(tree, BranchTruth([(3,) * length for length in lengths], keep_levels))


@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_no_visible_ancestor_is_lost(rng: random.Random, window: int) -> None:
    script = random_script(rng, VOCAB)
    trees = [tagged([len(prompt) for prompt in script.prompts], script.prefix, script.keep_levels)]
    for operation in script.operations:
        chosen = trees[operation.session]
        match operation:
            case Collect():
                chosen.collect(None)
            case Select():
                trees.append(chosen.select(operation))
            case Grow():
                if rng.random() < 0.4:
                    chosen.collect(operation.parents)
                chosen.check(chosen.grow(operation), operation, window)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_collecting_again_frees_nothing(rng: random.Random) -> None:
    script = random_script(rng, VOCAB)
    assume(not script.keep_levels)
    tree = tagged([len(prompt) for prompt in script.prompts], script.prefix)
    for operation in script.operations:
        if isinstance(operation, Grow) and operation.session == 0:
            tree.grow(operation)
            tree.collect(None)
            slots, paths = [list(row) for row in tree.slots], tree.tree.num_slots
            assert tree.tree.collect(None) is None
            tree.collect(None)
            assert (tree.slots, tree.tree.num_slots) == (slots, paths)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_collection_leaves_as_many_slots_as_the_widest_query_needs(rng: random.Random) -> None:
    tree = tagged([4, 2, 7], prefix=1)
    for _ in range(rng.randint(1, 9)):
        width, above = rng.randint(1, 5), tree.truth.columns(tree.truth.depth)
        parents = tuple(tuple(rng.randrange(above) for _ in range(width)) for _ in range(3))
        tree.grow(Grow(0, None, parents, parents))
    tree.collect(None)
    assert tree.tree.num_slots == max(tree.truth.num_live(query) for query in range(3))


def test_nothing_is_collected_before_the_first_step_or_with_levels() -> None:
    assert tagged([3], 0).tree.collect(None) is None
    levels = tagged([3], 0, keep_levels=True)
    levels.grow(Grow(0, None, ((0, 0),), ((0, 0),)))
    levels.grow(Grow(0, None, ((0,),), ((0,),)))
    assert levels.tree.collect(None) is None
    assert levels.tree.collect(torch.tensor([[0]])) is None
    assert levels.tree.num_slots == 3


def test_a_tree_may_end_altogether_and_go_on_in_shape() -> None:
    tree = tagged([3, 2], 0)
    tree.grow(Grow(0, None, ((0, 0), (0, 0)), ((0, 0), (0, 0))))
    tree.collect([[-1], [-1]])
    assert tree.tree.num_slots == 0
    ended = Grow(0, None, ((-1,), (-1,)), ((0,), (0,)))
    tree.check(tree.grow(ended), ended, 2)
    follow = Grow(0, None, ((0, -1), (-1, 0)), ((0, 0), (0, 0)))
    tree.collect(follow.parents)
    tree.check(tree.grow(follow), follow, 2)


@pytest.mark.parametrize("interval", [16])
def test_ten_thousand_steps(interval: int) -> None:
    """No recursion, and slots stay near what is live: two lineages that cross, and a crown of short ones."""
    depth, width = 10_000, 3
    tree = TokenTree(PromptLayout([5, 2], CPU))
    parents = torch.tensor([[1, 0, 0], [0, 0, 1]])
    surplus = 0
    for step in range(depth):
        if step % interval == 0:
            tree.collect(parents)
        grown = tree.grow(parents)
        surplus = max(surplus, tree.num_slots - 2 * (step + 1))
    hidden = grown.sights(None)[2].hidden
    assert hidden is not None
    assert (~hidden).sum(-1).tolist() == [[depth] * width] * 2
    assert grown.positions.tolist() == [5 + depth - 1, 2 + depth - 1]
    assert surplus <= interval + 1
