"""Key/value memory of sessions, reckoned by hand from what was written."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decoding.language_model import KvUsage
from decoding.model.hf_model import HFLanguageModel
from decoding.model.token_tree import CollectionPolicy
from tests.tree_oracles import Play
from tests.tree_scripts import BranchTruth, Collect, Grow, Operation, Script, Select, random_script
from tests.verified_architectures import VOCAB, build

MODULES = {name: build(name) for name in ("llama-gqa", "bart")}
# Layers, keys and values, heads, size, bytes of a float32.
TOKEN_BYTES = {"llama-gqa": 3 * 2 * 2 * 8 * 4, "bart": 3 * 2 * 4 * 8 * 4}


class Account:
    """What one session's usage has to be.

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


def test_a_session_that_never_collects_holds_what_it_wrote() -> None:
    model = HFLanguageModel(MODULES["llama-gqa"], collection=CollectionPolicy.never())
    session = model.prefill([[5, 6, 7], [8]])
    before = session.usage.used_bytes
    for width in (3, 1, 4, 1, 5, 9):
        session.step(torch.zeros(2, width, dtype=torch.int64), torch.full((2, width), 4))
    assert session.usage.used_bytes - before == 2 * 23 * TOKEN_BYTES["llama-gqa"]
    assert session.usage.num_collections == 0


def test_one_cache_per_branch_by_hand() -> None:
    session = HFLanguageModel(MODULES["llama-gqa"]).prefill([[5, 6, 7, 8], [9]])
    token = TOKEN_BYTES["llama-gqa"]
    assert session.usage.per_branch_bytes == 2 * 4 * token
    for width, expected in ((3, 2 * 3 * 5), (4, 2 * 4 * 6), (1, 2 * 4 * 6), (3, 2 * 4 * 6), (4, 2 * 4 * 9)):
        session.step(torch.zeros(2, width, dtype=torch.int64), torch.full((2, width), 4))
        assert session.usage.per_branch_bytes == expected * token


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
