"""Trees deeper than 2,000 tokens: what a plain pass says, at memory and work that grow with what is live.

One query keeps two lineages apart from the first token to the last, crossing at every step; the branches of
the other descend from each other at random, so that most of what they write dies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from genret.decoding.language_model import KvUsage
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.self_check import exactly
from genret.decoding.model.token_tree import CollectionPolicy
from tests.tree_oracles import Answer, PlainPasses, WorkMeter
from tests.tree_scripts import Branch, BranchTruth, Grow, Row
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, long_and_shallow

DEPTH = 2048
WIDTH = 3
INTERVAL = 16
COLLECTING = CollectionPolicy(interval=INTERVAL)
PROMPTS = ((5, 9, 11, 4, 8, 30, 17, 50, 21, 33), (40, 3, 21))

# Rotary positions in two kinds, learned ones in two, relative ones; with windows and without.
OF_EVERY_KIND = ["llama-gqa", "gemma3", "gpt2", "bart", "t5"]

# Steps whose work is counted: whole intervals, each twice as deep as the one before.
COUNTED = {depth: range(depth, depth + 2 * INTERVAL) for depth in (500, 1000, 2000)}


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """A tree grown to its full depth.

    Attributes:
        answers: After every ancestor of three branches of the last frontier.
        usages: Key/value memory before the first step and after every one.
        work: Elements written, by the depth from which they were counted.
    """

    answers: list[Answer]
    usages: list[KvUsage]
    work: dict[int, int]

    def slots(self, depth: int) -> int:
        """Tail slots per query that were held at a depth."""
        per_slot = (self.usages[1].used_bytes - self.usages[0].used_bytes) // WIDTH
        return (self.usages[depth].used_bytes - self.usages[0].used_bytes) // per_slot


def steps(rng: random.Random) -> Iterator[Grow]:
    """The frontiers of both queries."""
    for depth in range(DEPTH):
        tokens = tuple(tuple(rng.randrange(3, VOCAB) for _ in range(WIDTH)) for _ in PROMPTS)
        apart = (1, 0, rng.randrange(2))
        mixing = tuple(rng.randrange(WIDTH) for _ in range(WIDTH))
        yield Grow(0, None, (apart, mixing) if depth else ((0,) * WIDTH,) * 2, tokens)


def descend(name: str, dtype: torch.dtype, policy: CollectionPolicy) -> Descent:
    module = build(name, dtype, changes=long_and_shallow(name, 2 * (DEPTH + 20)))
    session = HFLanguageModel(module, collection=policy).prefill(PROMPTS)
    truth = BranchTruth(PROMPTS, keep_levels=False)
    said: dict[int, Tensor] = {}
    usages = [session.usage]
    counters = {depth: WorkMeter() for depth in COUNTED}
    for depth, step in enumerate(steps(random.Random(0)), start=1):
        with _counting(counters, depth):
            logits = session.step(torch.tensor(step.parents), torch.tensor(step.tokens))
        usages.append(session.usage)
        for query, row in enumerate(truth.grow(step)):
            said.update({id(branch): logits[query, column] for column, branch in enumerate(row)})
    # The two lineages that never met, and one of those that did.
    answers = [
        Answer(truth.prompts[query], path, said[id(branch)])
        for query, column in ((0, 0), (0, 1), (1, 2))
        for branch, path in _lineage(truth.frontier()[query][column])
    ]
    return Descent(answers, usages, {depth: counter.elements for depth, counter in counters.items()})


def _lineage(last: Branch) -> list[tuple[Branch, Row]]:
    """Every branch on a path, with the path to it."""
    whole = last.path
    assert whole is not None
    return [(branch, whole[: len(whole) - above]) for above, branch in enumerate(last.ancestors())]


@contextmanager
def _counting(counters: dict[int, WorkMeter], depth: int) -> Iterator[None]:
    counter = next((counters[first] for first, counted in COUNTED.items() if depth in counted), None)
    if counter is None:
        yield
    else:
        with counter:
            yield


def error_of(name: str, dtype: torch.dtype, answers: list[Answer]) -> float:
    reference = build(name, dtype, changes=long_and_shallow(name, 2 * (DEPTH + 20)))
    return PlainPasses(reference).largest_error(answers)


def check_memory_and_work(tree: Descent) -> None:
    for depth in range(INTERVAL, DEPTH + 1):
        assert 2 * depth <= tree.slots(depth) <= 2 * depth + WIDTH * (INTERVAL + 1)
        assert tree.usages[depth].held_bytes <= 3 * tree.usages[depth].used_bytes
    assert tree.usages[-1].num_collections >= DEPTH // INTERVAL - 1
    # A step costs what is live, which is proportional to the depth.
    assert tree.work[1000] < 2.1 * tree.work[500]
    assert tree.work[2000] < 2.1 * tree.work[1000]


def test_deep_trees_equal_plain_passes() -> None:
    tree = descend("mistral-window", torch.float32, COLLECTING)
    assert error_of("mistral-window", torch.float32, tree.answers) < 1e-4
    check_memory_and_work(tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_deep_trees_of_every_architecture(name: str) -> None:
    with exactly(torch.float64):
        tree = descend(name, torch.float64, COLLECTING)
        assert error_of(name, torch.float64, tree.answers) < 1e-9
    check_memory_and_work(tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EVERY_KIND)
def test_deep_trees_that_never_collect(name: str) -> None:
    tree = descend(name, torch.float32, CollectionPolicy.never())
    assert error_of(name, torch.float32, tree.answers) < 1e-4
    assert tree.slots(DEPTH) == WIDTH * DEPTH
    assert tree.usages[-1].num_collections == 0


def test_a_far_ancestor_matters() -> None:
    """The comparison of deep trees can fail: one wrong token a thousand above changes what is said."""
    rng = random.Random(1)
    name, prompt = "llama-gqa", PROMPTS[0]
    path = tuple(rng.randrange(3, VOCAB) for _ in range(DEPTH))
    wrong = (*path[:1000], 3 + (path[1000] - 2) % (VOCAB - 3), *path[1001:])
    passes = PlainPasses(build(name, changes=long_and_shallow(name, 2 * DEPTH)))
    said, other = passes.logprobs([(prompt, path), (prompt, wrong)])
    assert float((said - other).abs().max()) > 1e-3
