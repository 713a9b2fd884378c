"""Writes a token tree in every possible way, which must all give the same answers.

`replay` writes a tree in one of the ways and compares every branch with the plain answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from genret.decoding.conformance.layer_reader import Expected, LayerReader
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.self_check import Difference, RandomTree
from genret.decoding.model.tree_cache import PackedFrontier
from genret.decoding.row_trees import NodeSpan, RowLayout, RowTrees


@dataclass(frozen=True, slots=True, eq=False)
class FrontierAnswers:
    """Answers of one forward pass."""

    depth: int  # Tokens on its branches, 0 for the prompts alone
    queries: list[int]  # Which query of the tree every row is. Length n
    columns: list[int]  # Which columns of the tree's level the branches are. Length b
    logits: Tensor  # Shape: (n, b, V)
    # Outputs of the decoder layers, None when they are not read. Shape: (num_layers, n, b, d).
    hidden: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Driver:
    """The model, the tree and the tools of a scenario."""

    model: HFLanguageModel  # The model to drive
    tree: RandomTree  # What to write
    reader: LayerReader | None  # Takes the layers' outputs; None does without
    generator: torch.Generator  # Source of what is random in a scenario

    def _hidden(self, parents: Tensor) -> Tensor | None:
        """Layer outputs of a frontier. Shapes: (num_layers, n, b, d) for parents (n, b)."""
        if self.reader is None:
            return None
        outputs = self.reader.outputs()
        packed = None if outputs.shape[1:3] == parents.shape else PackedFrontier.of(parents)
        return outputs if packed is None else torch.stack([packed.unpack(layer) for layer in outputs])

    def roots(self, session: TreeSession, queries: Sequence[int]) -> FrontierAnswers:
        """Return the answers after the prompts, which have just been run."""
        hidden = None if self.reader is None else self.reader.outputs()[:, :, -1:]
        return FrontierAnswers(0, list(queries), [0], session.root_logits[:, None], hidden)

    def write(
        self,
        session: TreeSession,
        level: int,
        queries: Sequence[int],
        columns: list[int] | None = None,
        above: Sequence[int] = (),
    ) -> FrontierAnswers:
        """Write a level of the tree, or some columns below the columns `above` of the level above."""
        parents, tokens = self.tree.parents[level, list(queries)], self.tree.tokens[level, list(queries)]
        depth = None
        if columns is None:
            columns = list(range(tokens.shape[1]))
        else:
            depth, parents, tokens = level + 1, parents[:, columns], tokens[:, columns]
            if level:
                place = torch.full((self.tree.tokens.shape[2] + 1,), -1)  # the last entry is for padding, -1
                place[list(above)] = torch.arange(len(above))
                parents = place[parents]
        parents = parents.to(self.model.device)
        logits = session.step(parents, tokens.to(self.model.device), depth)
        return FrontierAnswers(level + 1, list(queries), columns, logits, self._hidden(parents))

    def write_all(self, session: TreeSession, queries: Sequence[int]) -> Iterator[FrontierAnswers]:
        """Write all levels, one after the other."""
        yield self.roots(session, queries)
        for level in range(self.tree.depth):
            yield self.write(session, level, queries)

    def write_whole(
        self, session: TreeSession, paths: _Paths, nodes_at_once: int
    ) -> Iterator[FrontierAnswers]:
        """Write the trees of all queries, some nodes in each forward."""
        writer = session.tree_writer(paths.trees)
        logits, hidden = [], []
        for first in range(0, len(paths.trees.tokens), nodes_at_once):
            logits.append(writer.write(_spans(paths.trees, first, first + nodes_at_once)))
            if self.reader is not None:
                hidden.append(self.reader.outputs()[:, 0])
        answers, outputs = torch.cat(logits), torch.cat(hidden, dim=1) if hidden else None
        queries, columns = list(range(self.tree.num_queries)), list(range(self.tree.tokens.shape[2]))
        for level, nodes in enumerate(paths.nodes.to(answers.device)):
            found = nodes.clamp(min=0)
            read = None if outputs is None else outputs[:, found]
            yield FrontierAnswers(level + 1, queries, columns, answers[found], read)


def _spans(trees: RowTrees, first: int, end: int) -> list[NodeSpan]:
    """The nodes [first, end), query by query."""
    whole = [trees.span(query) for query in range(trees.num_queries)]
    parts = [NodeSpan(span.query, max(span.first, first), min(span.end, end)) for span in whole]
    return [part for part in parts if part.first < part.end]


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """A random tree as rows: branches of one path are one node."""

    trees: RowTrees  # The nodes
    nodes: Tensor  # Which node every branch is, -1 for padding. Shape: (depth, Q, B), int64

    @classmethod
    def of(cls, tree: RandomTree, vocab_size: int) -> _Paths:
        live = (tree.parents >= 0).permute(1, 0, 2)
        # One more token behind every path, because a row's last token is no node.
        rows = [
            [[*tree.path(query, depth + 1, column), 0] for depth, column in live[query].nonzero().tolist()]
            for query in range(tree.num_queries)
        ]
        layout = RowLayout.of(rows, vocab_size)
        last = layout.step_nodes[layout.row_steps[layout.row_starts[1:] - 1]]
        nodes = torch.full(live.shape, -1)
        nodes[live] = torch.from_numpy(last)
        return cls(layout.trees, nodes.permute(1, 0, 2))


def one_prompt(driver: Driver) -> Iterator[FrontierAnswers]:
    """Write every query in a session of its own."""
    for query, prompt in enumerate(driver.tree.prompts):
        yield from driver.write_all(driver.model.prefill([prompt]), [query])


def mixed_lengths(driver: Driver) -> Iterator[FrontierAnswers]:
    """Write all queries in one session, so that shorter prompts are padded."""
    yield from driver.write_all(driver.model.prefill(driver.tree.prompts), range(driver.tree.num_queries))


def collections(driver: Driver) -> Iterator[FrontierAnswers]:
    """Collect dead branches after levels chosen at random, the first included."""
    tree = driver.tree
    session = driver.model.prefill(tree.prompts)
    queries = range(tree.num_queries)
    yield driver.roots(session, queries)
    chosen = torch.rand(tree.depth, generator=driver.generator) < 0.5
    chosen[0] = True
    for level in range(tree.depth):
        yield driver.write(session, level, queries)
        if chosen[level]:
            session.collect()


def shared_prefix(driver: Driver) -> Iterator[FrontierAnswers]:
    """Run the shared prefix once for all prompts. Yields nothing if the model cannot."""
    tree = driver.tree
    prefix = driver.model.share_prefix(tree.prompts[0][: tree.prefix_length])
    if prefix is not None:
        yield from driver.write_all(driver.model.prefill(tree.prompts, prefix), range(tree.num_queries))


def selection(driver: Driver) -> Iterator[FrontierAnswers]:
    """Reorder the queries in the middle, and leave one out."""
    tree = driver.tree
    session = driver.model.prefill(tree.prompts)
    queries = list(range(tree.num_queries))
    yield driver.roots(session, queries)
    for level in range(tree.depth):
        yield driver.write(session, level, queries)
        if level == (tree.depth - 1) // 2:
            order = torch.randperm(len(queries), generator=driver.generator).tolist()
            chosen = order[: max(len(queries) - 1, 1)]
            session = session.select(chosen, branches=True)
            queries = [queries[place] for place in chosen]


def kept_levels(driver: Driver) -> Iterator[FrontierAnswers]:
    """Write parts of all levels in random order, also below levels that were left long ago."""
    tree, generator = driver.tree, driver.generator
    session = driver.model.prefill(tree.prompts)
    session.keep_levels()
    queries = range(tree.num_queries)
    yield driver.roots(session, queries)
    written: list[list[int]] = [[] for _ in range(tree.depth)]
    while writable := {
        level: ready for level in range(tree.depth) if (ready := _ready(tree, written, level))
    }:
        levels = list(writable)
        level = levels[int(torch.randint(len(levels), (), generator=generator))]
        ready = writable[level]
        order = torch.randperm(len(ready), generator=generator).tolist()
        columns = [ready[place] for place in order[: (len(ready) + 1) // 2]]
        yield driver.write(session, level, queries, columns, written[level - 1] if level else ())
        written[level] += columns


def _ready(tree: RandomTree, written: list[list[int]], level: int) -> list[int]:
    """Columns of a level that are not written yet, while their parents in all queries are."""
    missing = [column for column in range(tree.tokens.shape[2]) if column not in written[level]]
    if level == 0:
        return missing
    there = {-1, *written[level - 1]}
    return [column for column in missing if there.issuperset(tree.parents[level, :, column].tolist())]


def whole_trees(driver: Driver) -> Iterator[FrontierAnswers]:
    """Write the levels of all queries in one forward, and again in several that end inside of trees."""
    tree = driver.tree
    paths = _Paths.of(tree, driver.model.vocab_size)
    session = driver.model.prefill(tree.prompts)
    yield driver.roots(session, range(tree.num_queries))
    for nodes_at_once in (len(paths.trees.tokens), max(len(paths.trees.tokens) // 5, 1)):
        yield from driver.write_whole(session, paths, nodes_at_once)


Scenario = Callable[[Driver], Iterator[FrontierAnswers]]
"""A way to write a tree; it yields the answers."""

SCENARIOS: dict[str, Scenario] = {
    "one prompt per session": one_prompt,
    "prompts of mixed lengths": mixed_lengths,
    "with collections": collections,
    "with a shared prefix": shared_prefix,
    "selection in the middle": selection,
    "levels kept": kept_levels,
    "whole trees": whole_trees,
}
"""All ways, by their names in reports."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a comparison."""

    logits: Difference  # Difference of the model's answers
    # Difference of every decoder layer's output, read through the head; empty when not read.
    layers: tuple[Difference, ...]

    def __add__(self, other: Outcome) -> Outcome:
        if not self.layers or not other.layers:
            return Outcome(self.logits + other.logits, self.layers or other.layers)
        layers = tuple(a + b for a, b in zip(self.layers, other.layers, strict=True))
        return Outcome(self.logits + other.logits, layers)


def replay(driver: Driver, scenario: Scenario, expected: Expected) -> Outcome:
    """Write a tree in one way and compare every branch; none if the model cannot do the scenario."""
    outcome = Outcome(Difference(), ())
    with nullcontext() if driver.reader is None else driver.reader.watching():
        for frontier in scenario(driver):
            outcome = outcome + _compare(frontier, driver, expected)
    return outcome


def _compare(frontier: FrontierAnswers, driver: Driver, expected: Expected) -> Outcome:
    queries, columns = frontier.queries, frontier.columns
    real = driver.tree.columns(frontier.depth)[queries][:, columns]
    device, reader = frontier.logits.device, driver.reader

    def picked(level: Tensor) -> Tensor:
        """Pick the frontier's real branches out of its level. (Q, B, n) to (rows, n)."""
        return level[queries][:, columns][real].to(device)

    here = real.to(device)
    logits = Difference.between(frontier.logits[here], picked(expected.answers.logits[frontier.depth]))
    if reader is None or frontier.hidden is None or not expected.hidden:
        return Outcome(logits, ())
    layers = [
        Difference.between(reader.read(mine[here]), reader.read(picked(plain)))
        for mine, plain in zip(frontier.hidden, expected.hidden[frontier.depth], strict=True)
    ]
    return Outcome(logits, tuple(layers))
