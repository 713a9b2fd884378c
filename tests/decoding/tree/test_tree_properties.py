"""Whatever a caller does with sessions, every branch says what a plain pass over its path alone says.

Random queries, prompts, frontiers, collections, shared prefixes and selections, on every verified
architecture. Windows are shorter than most prompts and than many prefixes; see `tests.tree_scripts`.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from decoding.conformance.difference import exactly
from decoding.model import token_tree
from decoding.model.token_tree import CollectionPolicy, LiveSlots, survivors
from tests.tree_oracles import PlainPasses, Play, play
from tests.tree_scripts import BranchTruth, Collect, Grow, Row, Script, Select, random_script
from tests.trie_oracles import needs_cuda
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, long_and_shallow

TOLERANCES = [(torch.float64, 1e-9), (torch.float32, 1e-4)]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
ORDINARY_SEEDS = range(576, 580)
SLOW_SEEDS = range(200, 260)
CAUSAL_WITH_WINDOWS = [
    (name, window)
    for name, (_, options) in ARCHITECTURES.items()
    if "d_model" not in options
    for window in ((7, 100) if "sliding_window" in options else (None,))
]
LONGEST_WINDOW = 7  # of the sliding layers of these models


@cache
def module(name: str, dtype: torch.dtype, device: str = "cpu") -> PreTrainedModel:
    """Its attention is replaced by whoever plays on it."""
    return build(name, dtype).to(device)


@cache
def reference(name: str, dtype: torch.dtype, device: str = "cpu") -> PreTrainedModel:
    """The same weights with the architecture's own attention."""
    return build(name, dtype).to(device)


def error_of(name: str, dtype: torch.dtype, script: Script, device: str = "cpu") -> float:
    with exactly(dtype):
        answers = play(script, module(name, dtype, device)).answers
        return PlainPasses(reference(name, dtype, device)).largest_error(answers)


def seeded(seed: int) -> Script:
    return random_script(random.Random(seed), VOCAB)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float64", "float32"])
def test_trees_equal_plain_passes(name: str, dtype: torch.dtype, tolerance: float, device: str) -> None:
    for seed in ORDINARY_SEEDS:
        assert error_of(name, dtype, seeded(seed), device) < tolerance, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float64", "float32"])
def test_many_trees_equal_plain_passes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    for seed in SLOW_SEEDS:
        assert error_of(name, dtype, seeded(seed)) < tolerance, f"seed {seed}"


@pytest.mark.parametrize(("name", "window"), CAUSAL_WITH_WINDOWS)
def test_long_prompts_and_prefixes(name: str, window: int | None) -> None:
    """Longer than what is computed at once, with windows that end in the prefix, at its border and behind."""
    changes = long_and_shallow(name, 1024)
    if window is not None:
        changes["sliding_window"] = window
    rng = random.Random(0)
    shared = _row(rng, 140)
    prompts = tuple(shared + _row(rng, rest) for rest in (1, 150, 97))
    steps = [
        Grow(0, None, (parents,) * 3, tuple(_row(rng, 3) for _ in prompts))
        for parents in ((0, 0, 0), (2, 1, 2), (1, 0, -1), (1, 1, 0), (0, 2, 1))
    ]
    for prefix in (0, len(shared)):
        script = Script(prompts, prefix, CollectionPolicy(2), False, tuple(steps))
        with exactly(torch.float64):
            answers = play(script, build(name, torch.float64, changes=changes)).answers
            plain = PlainPasses(build(name, torch.float64, changes=changes))
            assert plain.largest_error(answers) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-mixed-windows", "gemma2", "gpt2", "bart", "t5"])
def test_trees_equal_plain_passes_shrinking(name: str) -> None:
    """The same, with failures cut down to the shortest script that fails."""

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.randoms(use_true_random=False))
    def holds(rng: random.Random) -> None:
        assert error_of(name, torch.float64, random_script(rng, VOCAB)) < 1e-9

    holds()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_wrong_parents_are_noticed(name: str) -> None:
    """The comparison can fail: parents that belong to another column change what branches say."""
    prompts = ((5, 9, 11, 4, 8, 30, 17), (40, 3, 21))
    parents = [((0, 0, 0), (0, 0, 0)), ((2, 0, 1), (0, 1, 2)), ((0, 2, 1), (1, 1, 2))]
    tokens = [((7, 8, 9), (10, 11, 12)), ((13, 14, 15), (16, 17, 18)), ((19, 20, 21), (22, 23, 24))]
    steps = tuple(Grow(0, None, above, row) for above, row in zip(parents, tokens, strict=True))
    script = Script(prompts, 0, seeded(0).policy, False, steps)

    def roll(above: Tensor) -> Tensor:
        return above.roll(1, dims=1)

    with exactly(torch.float64):
        wrong = play(script, module(name, torch.float64), roll).answers
        assert PlainPasses(reference(name, torch.float64)).largest_error(wrong) > 0.1
    assert error_of(name, torch.float64, script) < 1e-9


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "gpt2", "bart", "t5"])
def test_a_collection_that_moves_the_wrong_slots_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(*arguments: object) -> LiveSlots | None:
        kept = survivors(*arguments)
        return kept and LiveSlots(kept.old_slots.roll(1, dims=1), kept.new_slots)

    tokens = ((7, 8, 9), (10, 11, 12))
    steps = [Grow(0, None, ((0, 1, 1), (1, 0, 0)), tokens) for _ in range(5)]
    script = Script(((5, 9, 11), (40,)), 0, CollectionPolicy(interval=3), False, tuple(steps))
    with exactly(torch.float64):
        right = play(script, module(name, torch.float64))
        assert right.sessions[0].usage.num_collections == 1
        monkeypatch.setattr(token_tree, "survivors", shifted)
        wrong = play(script, module(name, torch.float64)).answers
        passes = PlainPasses(reference(name, torch.float64))
        assert passes.largest_error(right.answers) < 1e-9
        assert passes.largest_error(wrong) > 1e-2


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_ancestor_matters(name: str) -> None:
    """One wrong token in sight changes the answer by many times any tolerance."""
    rng = random.Random(0)
    passes = PlainPasses(reference(name, torch.float64))
    changes = []
    with exactly(torch.float64):
        for _ in range(8):
            prompt, path = _row(rng, 5), _row(rng, 5)
            # Of the path, all but the last token, which needs no ancestor to be read.
            wrong = [(prompt, _wrong(path, place)) for place in range(4)] + [(_wrong(prompt, 4), path)]
            said, *others = passes.logprobs([(prompt, path), *wrong])
            changes += [float((other - said).abs().max()) for other in others]
    assert min(changes) > 1e-3
    assert sorted(changes)[len(changes) // 2] > 0.1


def _row(rng: random.Random, length: int) -> Row:
    return tuple(rng.randrange(3, VOCAB) for _ in range(length))


def _wrong(row: Row, place: int) -> Row:
    other = 3 + (row[place] + 8) % (VOCAB - 3)
    assert other != row[place]
    return (*row[:place], other, *row[place + 1 :])


@pytest.mark.parametrize("seeds", [ORDINARY_SEEDS, SLOW_SEEDS], ids=["ordinary", "slow"])
def test_scripts_reach_what_they_are_for(seeds: range) -> None:
    scripts = [seeded(seed) for seed in seeds]
    operations = [operation for script in scripts for operation in script.operations]
    steps = [operation for operation in operations if isinstance(operation, Grow)]
    assert {len(script.prompts) for script in scripts} >= {2, 3}
    assert any(0 < script.prefix < LONGEST_WINDOW for script in scripts)
    assert any(script.prefix > LONGEST_WINDOW for script in scripts)
    assert any(script.prefix == 0 for script in scripts)
    assert any(len(prompt) == script.prefix + 1 for script in scripts for prompt in script.prompts)
    assert any(
        len(prompt) - script.prefix > LONGEST_WINDOW for script in scripts for prompt in script.prompts
    )
    assert any(script.policy.interval is None for script in scripts)
    assert any(script.policy.interval == 1 for script in scripts)
    assert {script.policy.under_pressure for script in scripts} == {False, True}
    assert any(isinstance(operation, Collect) for operation in operations)
    assert {step.branches for step in operations if isinstance(step, Select)} >= {True}
    assert any(set(row) == {-1} for step in steps for row in step.parents)
    assert any(-1 in row and max(row) >= 0 for step in steps for row in step.parents)
    assert any(step.depth is not None for step in steps)
    assert max(_depth(script) for script in scripts) > LONGEST_WINDOW


def test_scripts_collect_on_every_occasion() -> None:
    scheduled = pressed = asked = 0
    for script in map(seeded, ORDINARY_SEEDS):
        played = Play(script, module("llama-gqa", torch.float32))
        for operation in script.operations:
            session = None if isinstance(operation, Select) else played.sessions[operation.session]
            before = 0 if session is None else session.usage.num_collections
            played.act(operation)
            freed = 0 if session is None else session.usage.num_collections - before
            asked += freed if isinstance(operation, Collect) else 0
            pressed += freed if isinstance(operation, Grow) and script.policy.interval is None else 0
            scheduled += freed if isinstance(operation, Grow) and not script.policy.under_pressure else 0
    assert min(scheduled, pressed, asked) > 0


def _depth(script: Script) -> int:
    truths = [BranchTruth(script.prompts, script.keep_levels)]
    for operation in script.operations:
        if isinstance(operation, Grow):
            truths[operation.session].grow(operation)
        elif isinstance(operation, Select):
            truths.append(truths[operation.session].select(operation))
    return max(truth.depth for truth in truths)
