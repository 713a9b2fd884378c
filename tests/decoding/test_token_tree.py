"""Visibility, collection and attention of the token tree by hand."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from genret.decoding.model import segment_attention
from genret.decoding.model.segment_attention import Rule, Segment, attend
from genret.decoding.model.token_tree import PromptLayout, TokenTree, TreeStep, Visibility
from tests.tree_scripts import Branch, BranchTruth, Collect, Grow, Select, random_script

CPU = torch.device("cpu")


def planted(lengths: list[int], prefix_length: int = 0) -> TokenTree:
    return TokenTree(PromptLayout(lengths, CPU, prefix_length))


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
    """Follows parent pointers: which tokens a branch descends from, and in which slots they lie.

    Tokens are numbered per query as they are written, whatever slots they move to.
    """

    def __init__(self, num_queries: int) -> None:
        self._slots: list[list[int | None]] = [[] for _ in range(num_queries)]  # token in every slot
        self._written = 0
        # Depth, query, branch: what a branch sees of the tail, as {token: depth}. The prompt sees nothing.
        self._seen: dict[int, list[list[dict[int, int]]]] = {0: [[{}] for _ in range(num_queries)]}

    @property
    def num_slots(self) -> int:
        return len(self._slots[0])

    def grow(self, step: Frontier) -> list[list[dict[int, int]]]:
        """Slots that every new branch of every query attends to."""
        level = self._seen.setdefault(step.depth, [[] for _ in step.parents])
        new = []
        for query, parents in enumerate(step.parents):
            row = []
            for branch, parent in enumerate(parents):
                above = self._seen[step.depth - 1][query]
                inherited = above[parent] if parent >= 0 else {}
                row.append({**inherited, self._written + branch: step.depth})
            level[query].extend(row)
            self._slots[query] += range(self._written, self._written + len(parents))
            new.append(row)
        self._written += len(step.parents[0])
        return new

    def collect(self, depth: int, wanted: list[set[int]]) -> bool:
        """Keep the tokens that some wanted branch of the last frontier descends from; False if all stay."""
        kept = []
        for query, branches in enumerate(wanted):
            live = set().union(*(self._seen[depth][query][branch] for branch in branches))
            kept.append([token for token in self._slots[query] if token in live])
        width = max(len(tokens) for tokens in kept)
        if width == self.num_slots:
            return False
        self._slots = [tokens + [None] * (width - len(tokens)) for tokens in kept]
        return True

    def slots(self, query: int, family: dict[int, int]) -> dict[int, int]:
        """Depths of a branch's family by slot."""
        return {self._slots[query].index(token): depth for token, depth in family.items()}

    def select(self, queries: list[int]) -> Walk:
        other = Walk(len(queries))
        other._slots = [list(self._slots[query]) for query in queries]
        other._written = self._written
        other._seen = {
            depth: [list(level[query]) for query in queries] for depth, level in self._seen.items()
        }
        return other


def check(tree: TokenTree, walk: Walk, step: Frontier, window: int | None) -> None:
    """Grow both and compare."""
    prompts = tree.prompts
    grown = tree.grow(torch.tensor(step.parents), step.depth)
    sights = grown.sights(window)
    distances = [behind[:, 0] for behind in grown.distances()]
    assert grown.positions.tolist() == [length + step.depth - 1 for length in prompts.lengths]
    assert grown.largest_position == prompts.longest + step.depth - 1
    for query, row in enumerate(walk.grow(step)):
        position = prompts.lengths[query] + step.depth - 1
        before = {p: position - p for p in range(prompts.lengths[query])}
        shared = {p: d for p, d in before.items() if p < prompts.prefix_length}
        own = {p - position + step.depth - 1 + prompts.width: d for p, d in before.items() if p not in shared}
        for branch, family in enumerate(row):
            behind = {slot: step.depth - depth for slot, depth in walk.slots(query, family).items()}
            for part, slots in enumerate((shared, own, behind)):
                count = (prompts.prefix_length, prompts.width, walk.num_slots)[part]
                assert _visible(sights[part], query, branch, count) == {
                    slot for slot, distance in slots.items() if window is None or distance < window
                }
                row_of = distances[part][query if len(distances[part]) > 1 else 0]
                assert {slot: int(row_of[slot]) for slot in slots} == slots
    for part in distances:
        assert all(0 <= distance <= grown.largest_position for distance in part.flatten().tolist())


def _visible(sight: Visibility, query: int, branch: int, count: int) -> set[int]:
    slots = range(sight.first, count)
    if sight.hidden is None:
        return set(slots)
    hidden = sight.hidden[query, branch if sight.hidden.shape[1] > 1 else 0].tolist()
    return {slot for slot, value in zip(slots, hidden, strict=True) if not value}


@given(st.data(), prompt_lengths(), st.one_of(st.none(), st.integers(1, 8)))
def test_visible_slots_are_prompt_ancestors_and_self(
    data: st.DataObject, lengths: list[int], window: int | None
) -> None:
    levels = data.draw(st.booleans())
    tree, walk = planted(lengths, data.draw(st.integers(0, min(lengths) - 1))), Walk(len(lengths))
    if levels:
        tree.keep_levels()
    for step in data.draw(frontiers(len(lengths), levels)):
        check(tree, walk, step, window)


@given(st.data(), prompt_lengths(), st.one_of(st.none(), st.integers(1, 8)))
def test_collections_keep_ancestors_only(data: st.DataObject, lengths: list[int], window: int | None) -> None:
    """At random points: of the last frontier's branches all are kept, or those that get children next."""
    tree, walk = planted(lengths, data.draw(st.integers(0, min(lengths) - 1))), Walk(len(lengths))
    previous = 0
    for step in data.draw(frontiers(len(lengths), levels=False)):
        if step.depth > 1 and data.draw(st.booleans()):
            everything = data.draw(st.booleans())
            parents = [set(range(previous)) if everything else set(row) - {-1} for row in step.parents]
            kept = tree.collect(None if everything else torch.tensor(step.parents))
            assert (kept is not None) == walk.collect(step.depth - 1, parents)
            assert tree.num_slots == walk.num_slots
            # What is left keeps its order, and nothing is left twice but as a filler behind the rest.
            if kept is not None:
                for query, row in enumerate(kept.tolist()):
                    alive = [token for token in walk._slots[query] if token is not None]
                    assert row[: len(alive)] == sorted(set(row[: len(alive)]))
        check(tree, walk, step, window)
        previous = len(step.parents[0])


@given(st.data(), prompt_lengths(), st.one_of(st.none(), st.integers(1, 8)))
def test_selected_trees_grow_on(data: st.DataObject, lengths: list[int], window: int | None) -> None:
    levels = data.draw(st.booleans())
    tree, walk = planted(lengths), Walk(len(lengths))
    if levels:
        tree.keep_levels()
    steps = data.draw(frontiers(len(lengths), levels))
    before = data.draw(st.integers(0, len(steps)))
    for step in steps[:before]:
        check(tree, walk, step, window)
    if before and not levels and data.draw(st.booleans()):
        tree.collect(None)
        walk.collect(before, [set(range(len(steps[before - 1].parents[0])))] * len(lengths))
    queries = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=4))
    part = tree.select(queries, torch.tensor(queries), branches=True)
    part_walk = walk.select(queries)
    for step in steps[before:]:
        check(part, part_walk, Frontier(step.depth, [step.parents[query] for query in queries]), window)
        check(tree, walk, step, window)


def test_with_levels_nothing_is_ever_dead() -> None:
    tree = planted([2])
    assert tree.collect(None) is None  # nothing is written yet
    tree.keep_levels()
    tree.grow(torch.tensor([[0, 0, 0]]))
    assert tree.collect(torch.tensor([[1]])) is None
    assert tree.num_slots == 3


def test_queries_that_have_ended_leave_nothing() -> None:
    tree = planted([2, 3])
    tree.grow(torch.zeros(2, 3, dtype=torch.int64))
    tree.grow(torch.tensor([[0, 0], [1, 2]]))
    kept = tree.collect(torch.tensor([[-1], [1]]))
    assert kept is not None
    assert kept[1].tolist() == [2, 4]
    kept = tree.collect(torch.tensor([[-1], [-1]]))
    assert kept is not None
    assert (kept.shape, tree.num_slots) == ((2, 0), 0)
    step = tree.grow(torch.tensor([[-1], [-1]]))
    assert step.sights(None)[2].hidden.tolist() == [[[False]], [[False]]]
    assert step.positions.tolist() == [4, 5]


def test_trees_of_thousands_of_levels() -> None:
    """Two branches that part at the root, and one that goes nowhere at every level."""
    tree = planted([3])
    parents = torch.tensor([[0, 1, 1]])
    for depth in range(1, 2501):
        step = tree.grow(parents)
        if depth % 100 == 0:
            tree.collect(parents)
            assert tree.num_slots == 2 * depth
    visible = ~step.sights(None)[2].hidden
    assert visible.sum(-1).tolist() == [[2500, 2500, 2500]]
    assert step.positions.tolist() == [2502]


def test_trees_selected_without_branches_are_their_prompts() -> None:
    tree = planted([3, 1])
    tree.keep_levels()
    tree.grow(torch.tensor([[0, 0], [0, 0]]))
    alone = tree.select([1], torch.tensor([1]), branches=False)
    assert (alone.depth, alone.prompts.lengths) == (0, (1,))
    assert alone.grow(torch.tensor([[0]])).sights(None)[2].hidden.tolist() == [[[False]]]
    with pytest.raises(ValueError, match="without keep_levels"):
        alone.grow(torch.tensor([[0]]), 1)


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


def test_distances_count_positions_not_slots() -> None:
    tree = planted([3, 1])
    tree.grow(torch.tensor([[0, 0], [0, 0]]))
    step = tree.grow(torch.tensor([[1], [0]]))
    prefix, prompt, tail = step.distances()
    # Prompts end at the same slot; then two slots of the first frontier, and the new token.
    assert prefix.shape == (2, 1, 0)
    assert (prompt.tolist(), tail.tolist()) == ([[[4, 3, 2]]], [[[1, 1, 0]], [[1, 1, 0]]])


def test_distances_to_deeper_slots_are_clamped() -> None:
    tree = planted([2])
    tree.keep_levels()
    for _ in range(3):
        tree.grow(torch.tensor([[0]]))
    _, prompt, tail = tree.grow(torch.tensor([[0]]), 1).distances()
    assert (prompt.tolist(), tail.tolist()) == ([[[2, 1]]], [[[0, 0, 0, 0]]])


def test_parents_of_the_first_step_are_ignored() -> None:
    tail = planted([2]).grow(torch.tensor([[5, -1, 7]])).sights(None)[2]
    assert tail.hidden.tolist() == [[[False, True, True], [True, False, True], [True, True, False]]]


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


def test_a_sink_takes_its_share_and_adds_nothing() -> None:
    """The same as one more key with that score, whose value is zero; compared in float64."""
    query, (whole, part) = segments(torch.float64)
    sinks = torch.tensor([-3.0, 0.0, 40.0, 900.0], dtype=torch.float64)
    keys, values = torch.cat([whole.keys, part.keys], 2), torch.cat([whole.values, part.values], 2)
    assert whole.hidden is not None
    hidden = torch.nn.functional.pad(whole.hidden, (0, part.keys.shape[2]))[:, None]
    scores = (query @ keys.mT).masked_fill(hidden, -torch.inf)
    with_sink = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    expected = with_sink.softmax(-1)[..., :-1] @ values
    got = attend(query, (whole, part), dataclasses.replace(RULE, sinks=sinks))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    assert float((got - attend(query, (whole, part), RULE)).abs().max()) > 0.1


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
                seen = [slots[slot] for slot in _collected_visible(everything[query, column])]
                ancestors = list(branch.ancestors())[::-1]
                # Padding, and what continues padding, has no ancestors worth the name.
                assert seen == ancestors or (branch.is_padding and branch in seen)
                if not branch.is_padding:
                    assert [
                        int(distances[query, slot]) for slot in _collected_visible(everything[query, column])
                    ] == list(range(depth))[::-1]
                    assert [slots[slot] for slot in _collected_visible(near[query, column])] == ancestors[
                        -window:
                    ]


def _collected_visible(hidden: Tensor) -> list[int]:
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
