"""Frontiers at any depth equal plain passes over each branch, and memory is what was written."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from genret.decoding.conformance.difference import exactly
from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage
from genret.decoding.model.architectures import VERIFIED
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.token_tree import CollectionPolicy
from genret.decoding.model.tree_cache import INITIAL_DEPTH
from tests.no_sync import no_sync
from tests.tree_oracles import Play
from tests.tree_scripts import BranchTruth, Collect, Grow, Operation, Script, Select, random_script
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, plain_logprobs, random_prompts

Path = tuple[int, ...]

PROMPTS = random_prompts([13, 1, 7], torch.Generator().manual_seed(3))
TOLERANCES = [(torch.float32, 1e-4), (torch.float64, 1e-9)]


class Grower:
    """Grows random frontiers in a session and knows the path of every branch of every level.

    `reference` has the same weights with the architecture's own attention.
    """

    def __init__(
        self,
        session: TreeSession,
        reference: PreTrainedModel,
        prompts: Sequence[list[int]],
        rng: random.Random,
    ) -> None:
        self.session = session
        self._reference = reference
        self._prompts = prompts
        self._rng = rng
        # Level, query, branch; None is padding. Level 0 is the prompt.
        self._levels: list[list[list[Path | None]]] = [[[()] for _ in prompts]]

    @property
    def depth(self) -> int:
        """Depth of the deepest branches."""
        return len(self._levels) - 1

    def grow(self, depth: int, width: int, shift: int = 0) -> float:
        """Write one frontier; return the largest error in its log-probabilities.

        Args:
            depth: Of the new branches.
            width: B.
            shift: Added to the parents that the session is told, round the level; wrong unless it is 0.
        """
        branches = [
            [self._new_branch(depth, query, padding=branch > 0) for branch in range(width)]
            for query in range(len(self._prompts))
        ]
        above = len(self._levels[depth - 1][0])
        parents = [[p if p < 0 else (p + shift) % above for p, _, _ in row] for row in branches]
        tokens = [[token for _, token, _ in row] for row in branches]
        logits = self.session.step(torch.tensor(parents), torch.tensor(tokens), depth)
        assert logits.shape == (len(self._prompts), width, VOCAB)
        assert logits.isfinite().all()
        if depth > self.depth:
            self._levels.append([[] for _ in self._prompts])
        worst = 0.0
        for query, row in enumerate(branches):
            for branch, (_, _, path) in enumerate(row):
                self._levels[depth][query].append(path)
                if path is not None:
                    worst = max(worst, self._error(query, path, logits[query, branch]))
        return worst

    def root_error(self) -> float:
        """The largest error of the log-probabilities behind the prompts."""
        return max(self._error(query, (), logits) for query, logits in enumerate(self.session.root_logits))

    def select(self, queries: list[int]) -> Grower:
        """The same over some of the queries, branches included."""
        prompts = [self._prompts[query] for query in queries]
        selected = self.session.select(queries, branches=True)
        other = Grower(selected, self._reference, prompts, self._rng)
        other._levels = [[list(level[query]) for query in queries] for level in self._levels]
        return other

    def _new_branch(self, depth: int, query: int, padding: bool) -> tuple[int, int, Path | None]:
        """Parent, token, and path."""
        above = self._levels[depth - 1][query]
        token = self._rng.randrange(3, VOCAB)
        if padding and self._rng.random() < 0.25:
            return -1, token, None
        parent = self._rng.choice([index for index, path in enumerate(above) if path is not None])
        return parent, token, (*(above[parent] or ()), token)

    def _error(self, query: int, path: Path, logits: Tensor) -> float:
        expected = plain_logprobs(self._reference, self._prompts[query], list(path))
        return float((logits.log_softmax(-1) - expected).abs().max())


def grower(name: str, dtype: torch.dtype, seed: int = 0) -> Grower:
    session = HFLanguageModel(build(name, dtype)).prefill(PROMPTS)
    session.keep_levels()
    return Grower(session, build(name, dtype), PROMPTS, random.Random(seed))


def random_depths(count: int, rng: random.Random) -> list[int]:
    """Depths of frontiers in some order in which every one has a level above."""
    depths = [1, 2, 1, 3]
    while len(depths) < count:
        depths.append(rng.randint(1, max(depths) + 1))
    return depths


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=str)
def test_growing_at_any_depth_equals_plain_forward(name: str, dtype: torch.dtype, tolerance: float) -> None:
    rng = random.Random(len(name))
    with exactly(dtype):
        trees = grower(name, dtype)
        for depth in random_depths(8, rng):
            assert trees.grow(depth, rng.randint(1, 4)) < tolerance
        part = trees.select([2, 0])
        # The selection and the session it came from go on, and neither disturbs the other.
        for depth in (2, trees.depth + 1, 1):
            assert part.grow(depth, 2) < tolerance
            assert trees.grow(depth, 3) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-mixed-windows", "gemma3", "gpt2", "bart", "t5"])
@pytest.mark.parametrize("seed", range(6))
def test_long_random_orders(name: str, seed: int) -> None:
    rng = random.Random(seed)
    with exactly(torch.float64):
        trees = grower(name, torch.float64, seed)
        for depth in random_depths(20, rng):
            assert trees.grow(depth, rng.randint(1, 5)) < 1e-9
            if rng.random() < 0.1:
                trees = trees.select(rng.sample(range(len(trees.session.root_logits)), 2))


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "gpt2", "bart", "t5"])
def test_the_comparison_notices_wrong_parents(name: str) -> None:
    trees = grower(name, torch.float32)
    trees.grow(1, 2)
    trees.grow(2, 2)
    trees.grow(1, 4)
    assert trees.grow(2, 3, shift=1) > 1e-2


def frontier(width: int, queries: int = len(PROMPTS)) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(queries, width, dtype=torch.int64)
    return zeros, zeros + 4


@pytest.mark.parametrize("name", ["llama-gqa", "bart", "t5"])
def test_levels_hold_no_more_keys_and_values(name: str) -> None:
    model = HFLanguageModel(build(name), collection=CollectionPolicy.never())
    plain, levels = model.prefill(PROMPTS), model.prefill(PROMPTS)
    levels.keep_levels()
    for width in (2, 5, 3, 1, 9):
        plain.step(*frontier(width))
        levels.step(*frontier(width))
        assert levels.usage.held_bytes == plain.usage.held_bytes


@pytest.mark.parametrize("name", ["llama-gqa", "bart", "t5"])
def test_a_selection_holds_the_branches_it_took_over(name: str) -> None:
    session = HFLanguageModel(build(name)).prefill(PROMPTS)
    empty = session.usage.held_bytes
    session.keep_levels()
    session.step(*frontier(4))
    per_slot = (session.usage.held_bytes - empty) // (len(PROMPTS) * 4 * INITIAL_DEPTH)
    session.step(*frontier(2))
    held = session.usage.held_bytes
    bare, full = session.select([2]), session.select([2], branches=True)
    assert full.usage.held_bytes == bare.usage.held_bytes + 6 * per_slot
    assert session.usage.held_bytes == held
    full.step(*frontier(1, queries=1), depth=1)
    assert full.usage.held_bytes == bare.usage.held_bytes + (6 + INITIAL_DEPTH) * per_slot


def test_a_selection_of_everything_answers_the_same() -> None:
    model = HFLanguageModel(build("gpt2"), collection=CollectionPolicy.never())
    session = model.prefill(PROMPTS)
    session.step(*frontier(3))
    same = session.select(range(len(PROMPTS)), branches=True)
    parents, tokens = torch.tensor([[2, -1], [1, 0], [0, 0]]), torch.tensor([[5, 6], [7, 8], [9, 3]])
    torch.testing.assert_close(same.step(parents, tokens), session.step(parents, tokens), atol=0, rtol=0)


def test_a_selection_without_branches_keeps_no_levels() -> None:
    session = HFLanguageModel(build("gpt2")).prefill(PROMPTS)
    session.keep_levels()
    session.step(*frontier(1))
    again = session.select([1])
    again.step(*frontier(1, queries=1))
    with pytest.raises(ValueError, match=r"depth must be 2, the next, without keep_levels, got 1"):
        again.step(*frontier(1, queries=1), depth=1)


def test_depths_that_do_not_exist() -> None:
    session = HFLanguageModel(build("gpt2")).prefill(PROMPTS)
    with pytest.raises(ValueError, match=r"depth must be 1, the next, without keep_levels, got 2"):
        session.step(*frontier(1), depth=2)
    session.keep_levels()
    for _ in range(3):
        session.step(*frontier(1))
    for depth in (0, -1, 5, 9):
        with pytest.raises(ValueError, match=rf"depth must be in \[1, 4\], got {depth}"):
            session.step(*frontier(1), depth=depth)
    session.keep_levels()  # saying it again changes nothing
    session.step(*frontier(1), depth=4)


def test_levels_cannot_be_kept_from_the_middle_on() -> None:
    session = HFLanguageModel(build("gpt2")).prefill(PROMPTS)
    session.step(*frontier(1))
    session.step(*frontier(1), depth=2)
    with pytest.raises(ValueError, match=r"before the first step, at depth 0, got it at depth 2"):
        session.keep_levels()


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_positions_are_counted_at_the_depth_that_is_written(name: str) -> None:
    """The deepest branches have used up the positions; others have not."""
    model = HFLanguageModel(build(name), pack_frontiers=False)
    assert model.max_positions is not None
    prompt = 2 if model.is_encoder_decoder else model.max_positions - 3
    room = model.max_positions - (0 if model.is_encoder_decoder else prompt)
    session = model.prefill([[5] * prompt])
    session.keep_levels()
    for _ in range(room):
        session.step(*frontier(1, queries=1))
    limit = model.max_positions + len(model.decoder_prompt)
    with pytest.raises(PromptTooLongError, match=f"position {limit + 1} of {limit}.*{room} were written"):
        session.step(*frontier(1, queries=1))
    with no_sync():  # the device is asked only where positions run out
        logits = [session.step(*frontier(1, queries=1), depth=depth) for depth in (1, room, 2)]
    assert torch.stack(logits).isfinite().all()


def test_a_dead_prompt_without_positions_does_not_end_shallow_branches() -> None:
    """One query has no position left and no branches; the other has used all of its own in the deepest."""
    model = HFLanguageModel(build("gpt2"))
    limit = model.max_positions
    assert limit is not None
    session = model.prefill([[5] * limit, [6] * (limit - 2)])
    session.keep_levels()
    tokens = torch.tensor([[4], [4]])
    parents = torch.tensor([[-1], [0]])
    for _ in range(2):
        session.step(parents, tokens)
    with pytest.raises(PromptTooLongError, match=f"{limit - 2} tokens and 2 were written"):
        session.step(parents, tokens)
    for depth in (1, 2):
        assert session.step(parents, tokens, depth).isfinite().all()


def largest_difference(name: str, lengths: list[int], widths: list[int]) -> float:
    """Grow random trees with padding branches; compare every real branch with a plain forward pass."""
    seed = sum(lengths) + len(widths)
    prompts = random_prompts(lengths, torch.Generator().manual_seed(seed))
    session = HFLanguageModel(build(name, torch.float64)).prefill(prompts)
    trees = Grower(session, build(name, torch.float64), prompts, random.Random(seed))
    return max(trees.root_error(), *(trees.grow(depth, width) for depth, width in enumerate(widths, 1)))


@pytest.mark.parametrize("name", ["llama-gqa", "gemma2", "gpt2", "bart", "t5"])
def test_equal_prompt_lengths(name: str) -> None:
    with exactly(torch.float64):
        assert largest_difference(name, [9, 9, 9], [4, 4, 4]) < 1e-9


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_more_slots_than_positions(name: str) -> None:
    """Slots outnumber the learned positions long before any branch is that deep."""
    assert largest_difference(name, [5, 3], [20] * 8) < 1e-9


def test_every_verified_architecture_is_tested() -> None:
    tested = {getattr(transformers, config_name)().model_type for config_name, _ in ARCHITECTURES.values()}
    assert tested == VERIFIED


MODULES = {name: build(name) for name in ("llama-gqa", "bart")}
# Layers, keys and values, heads, size, bytes of a float32.
TOKEN_BYTES = {"llama-gqa": 3 * 2 * 2 * 8 * 4, "bart": 3 * 2 * 4 * 8 * 4}


class Account:
    """Expected usage of one session.

    Args:
        name: The architecture.
        script: What the session belongs to.
        truth: Of the session.
    """

    def __init__(self, name: str, script: Script, truth: BranchTruth) -> None:
        self.truth = truth
        self.written = 0
        self._name = name
        self._script = script
        # An encoder's prompts stay as wide as the whole batch was; the decoder's prompt is one token.
        self._widest = max(len(prompt) for prompt in script.prompts)
        self._per_branch_bytes = 0
        self._before = KvUsage()
        self.note_branches(1, 0)

    @property
    def _decoder_prompt(self) -> int:
        """Tokens of the longest decoder prompt and, of an encoder-decoder, of the encoder's."""
        if self._name == "bart":
            return self._widest + 1
        return max(len(prompt) for prompt in self.truth.prompts)

    @property
    def _own_prefix(self) -> int:
        return 0 if self._name == "bart" else self._script.prefix

    def note_branches(self, width: int, depth: int) -> None:
        """One cache per branch would hold every branch's whole prompt and path."""
        tokens = len(self.truth.prompts) * width * (self._decoder_prompt + depth)
        self._per_branch_bytes = max(self._per_branch_bytes, tokens * TOKEN_BYTES[self._name])

    def check(self, usage: KvUsage, just_collected: bool) -> None:
        """Compare everything that can be reckoned."""
        token = TOKEN_BYTES[self._name]
        assert usage.used_bytes <= usage.held_bytes <= usage.peak_bytes
        assert usage.peak_bytes >= self._before.peak_bytes
        assert usage.num_collections >= self._before.num_collections
        assert usage.per_branch_bytes == self._per_branch_bytes
        assert usage.shared_bytes == self._own_prefix * token
        row = len(self.truth.prompts) * token
        slots, rest = divmod(usage.used_bytes - (self._decoder_prompt - self._own_prefix) * row, row)
        assert rest == 0
        if self.truth.depth == 0:
            live = 0
        elif self.truth.keep_levels:
            live = self.written
        else:
            live = max(self.truth.num_live(query) for query in range(len(self.truth.prompts)))
        assert slots == live if just_collected else live <= slots <= self.written
        self._before = usage


class Auditor:
    """Plays a script and audits every session after every operation."""

    def __init__(self, name: str, script: Script) -> None:
        self._name = name
        self._script = script
        self._play = Play(script, MODULES[name])
        self._accounts = [Account(name, script, self._play.truths[0])]

    def act(self, operation: Operation) -> None:
        self._play.act(operation)
        account = self._accounts[operation.session]
        match operation:
            case Grow():
                width = len(operation.parents[0])
                account.written += width
                account.note_branches(width, operation.depth or account.truth.depth)
            case Select():
                self._accounts.append(Account(self._name, self._script, self._play.truths[-1]))
                self._accounts[-1].written = account.written if operation.branches else 0
        self.audit(operation.session, isinstance(operation, Collect))

    def audit(self, number: int, just_collected: bool) -> None:
        for other, account in enumerate(self._accounts):
            account.check(self._play.sessions[other].usage, just_collected and other == number)


@pytest.mark.parametrize("name", MODULES)
def test_usage_is_what_was_written(name: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(st.randoms(use_true_random=False))
    def holds(rng: random.Random) -> None:
        script = random_script(rng, VOCAB)
        auditor = Auditor(name, script)
        auditor.audit(0, just_collected=False)
        for operation in script.operations:
            auditor.act(operation)

    holds()


@pytest.mark.parametrize("name", MODULES)
def test_collecting_twice_changes_nothing(name: str) -> None:
    @settings(max_examples=10, deadline=None)
    @given(st.randoms(use_true_random=False))
    def holds(rng: random.Random) -> None:
        script = random_script(rng, VOCAB)
        played = Play(script, MODULES[name])
        for operation in script.operations:
            played.act(operation)
            session = played.sessions[operation.session]
            session.collect()
            usage = session.usage
            session.collect()
            assert session.usage == usage

    holds()


class HeldStorages(TorchDispatchMode):
    """Adds up the storages of real numbers that are alive, from those given on, and remembers the most.

    Args:
        parts: Alive at the beginning.
    """

    def __init__(self, parts: list[Tensor]) -> None:
        super().__init__()
        self.most = 0
        self._now = 0
        self._known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        for part in parts:
            self._add(part)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._add(result)
        return result

    def _add(self, part: Tensor) -> None:
        storage = part.untyped_storage()
        if part.is_floating_point() and storage not in self._known:
            self._known.add(storage)
            self._now += storage.nbytes()
            self.most = max(self.most, self._now)
            weakref.finalize(storage, self._drop, storage.nbytes())

    def _drop(self, num_bytes: int) -> None:
        self._now -= num_bytes


@pytest.mark.parametrize("seed", range(12))
def test_the_peak_is_the_most_that_was_ever_held(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    policy = CollectionPolicy(rng.choice([None, 2, 5]), rng.random() < 0.7)
    session = HFLanguageModel(MODULES["llama-gqa"], collection=policy).prefill([[5, 6, 7], [8]])
    cache = session._cache
    layers = [cache.tree_layer(index) for index in range(3)]
    held = HeldStorages([part for layer in layers for part in layer.prompt])

    def watched(act: Callable[..., None]) -> Callable[..., None]:
        def watching(*arguments: object) -> None:
            with held:
                act(*arguments)

        return watching

    for name in ("make_room", "compact"):
        monkeypatch.setattr(cache, name, watched(getattr(cache, name)))
    above = 1
    for _ in range(20):
        width = rng.choice([1, 2, rng.randint(1, 20)])
        parents = torch.tensor([[rng.randrange(above)] * width, [rng.randrange(above)] * width])
        session.step(parents, parents + 3)
        above = width
        assert session.usage.peak_bytes == held.most
