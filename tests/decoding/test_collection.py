"""Collection of dead branches, key/value memory, and prefixes that prompts share."""

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

from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.token_tree import CollectionPolicy
from genret.decoding.model.tree_cache import INITIAL_DEPTH, TreePrefix
from tests.fakes import TablePrefix
from tests.no_sync import no_sync
from tests.tiny_transformers import random_prompts
from tests.tree_oracles import Play
from tests.tree_scripts import BranchTruth, Collect, Grow, Operation, Script, Select, random_script
from tests.verified_architectures import ARCHITECTURES, VOCAB, build

EVERY_STEP = CollectionPolicy(interval=1)
NEVER = CollectionPolicy.never()


def model(
    name: str = "llama-gqa", policy: CollectionPolicy = NEVER, packs: bool | None = None
) -> HFLanguageModel:
    return HFLanguageModel(build(name, torch.float64), collection=policy, pack_frontiers=packs)


def slots_used(session: TreeSession) -> int:
    """Tail slots per query that hold something."""
    prompt = session.select(range(len(session.root_logits))).usage.used_bytes
    one = model().prefill([[5]]).usage.used_bytes
    return (session.usage.used_bytes - prompt) // (one * len(session.root_logits))


def line(session: TreeSession, steps: int, width: int = 2) -> None:
    """Write frontiers whose first branch gets all children of the next."""
    queries = len(session.root_logits)
    zeros = torch.zeros(queries, width, dtype=torch.int64)
    for _ in range(steps):
        session.step(zeros, zeros + 4)


def test_the_interval_is_kept() -> None:
    session = model(policy=CollectionPolicy(interval=5, under_pressure=False)).prefill([[5, 6]])
    counts = []
    for _ in range(12):
        line(session, 1)
        counts.append((session.usage.num_collections, slots_used(session)))
    # Before steps 6 and 11, the paths of 5 and of 10 tokens are left; the last sibling goes too.
    assert counts[:5] == [(0, 2), (0, 4), (0, 6), (0, 8), (0, 10)]
    assert counts[5:10] == [(1, 7), (1, 9), (1, 11), (1, 13), (1, 15)]
    assert counts[10:] == [(2, 12), (2, 14)]


def test_pressure_alone_collects_before_anything_grows() -> None:
    session = model(policy=CollectionPolicy(interval=None)).prefill([[5, 6]])
    line(session, INITIAL_DEPTH)
    full = session.usage
    assert (full.num_collections, full.held_bytes) == (0, full.used_bytes)
    line(session, 1)
    assert (session.usage.num_collections, slots_used(session)) == (1, INITIAL_DEPTH + 2)


def test_nothing_is_collected_where_nothing_can_be_dead() -> None:
    """A single branch is its own path, and the device is not asked about it."""
    session = model(policy=EVERY_STEP, packs=False).prefill([[5, 6], [7]])
    with no_sync():
        line(session, 20, width=1)
    assert (session.usage.num_collections, slots_used(session)) == (0, 20)


def test_all_queries_ended() -> None:
    session = model(policy=EVERY_STEP).prefill([[5, 6], [7]])
    line(session, 2, width=3)
    padding = torch.full((2, 2), -1)
    used = []
    for _ in range(20):
        assert session.step(padding, padding.abs() + 3).isfinite().all()
        used.append(slots_used(session))
    # No more than one path would hold: from there on it is worth asking whether anything is dead.
    assert used[0] == 2
    assert all(2 <= slots <= 2 + depth for depth, slots in enumerate(used, 3))
    assert used.count(2) > 1


def test_a_wide_moment_does_not_decide_what_is_held() -> None:
    session = model(policy=CollectionPolicy(interval=2)).prefill([[5, 6]])
    line(session, 2, width=60)
    wide = session.usage.held_bytes
    line(session, 3, width=2)
    slot = model().prefill([[5]]).usage.held_bytes
    assert session.usage.held_bytes <= wide - 400 * slot
    assert session.usage.held_bytes <= (2 + 2 * (5 + INITIAL_DEPTH * 2)) * slot
    assert session.usage.peak_bytes > wide


@pytest.mark.parametrize("width", [2, 5])
def test_room_is_bounded_by_what_is_live(width: int) -> None:
    """However long it gets, a line holds a small multiple of itself, and collections stay rare."""
    session = model(policy=CollectionPolicy()).prefill([[5]])
    slot = session.usage.held_bytes
    steps = 90
    line(session, steps, width)
    live = steps + width
    assert session.usage.held_bytes <= slot * (1 + 2 * live + 2 * INITIAL_DEPTH * width)
    assert session.usage.num_collections <= steps / 3


@pytest.mark.parametrize("interval", [0, -1, True])
def test_intervals_that_make_no_sense(interval: int) -> None:
    with pytest.raises(ValueError, match=f"interval must be at least 1.*got {interval}"):
        CollectionPolicy(interval=interval)


# Layers, keys and values, heads, size, bytes of a float32.
TOKEN_BYTES = {"llama-gqa": 3 * 2 * 2 * 8 * 4, "bart": 3 * 2 * 4 * 8 * 4}


ENCODER_DECODERS = [name for name, (_, options) in ARCHITECTURES.items() if "d_model" in options]


def shared(model: HFLanguageModel, token_ids: list[int]) -> TreePrefix:
    prefix = model.share_prefix(token_ids)
    assert isinstance(prefix, TreePrefix)
    return prefix


def test_the_prefix_is_not_run_again() -> None:
    inner = build("llama-gqa")
    model = HFLanguageModel(inner)
    beginning = [5, 6, 7, 8] * 5
    prefix = shared(model, beginning)
    read: list[tuple[int, ...]] = []
    inner.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    model.prefill([[*beginning, 5, 6], [*beginning, 7]], prefix)
    assert read == [(2, 2)]


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_encoder_decoders_share_no_prefix(name: str) -> None:
    model = HFLanguageModel(build(name))
    assert model.share_prefix([5, 6]) is None
    with pytest.raises(ValueError, match="is an encoder-decoder, which shares no prefix"):
        model.prefill([[5, 6, 7]], TablePrefix((5, 6)))


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[5, 6, 7, 8], [5, 6, 9, 8]], r"prompt 1 does not begin with the prefix: token 2 is 9, .* has 7"),
        ([[5, 8]], "prompt 0 does not begin with the prefix: token 1 is 8, the prefix has 6"),
        ([[5, 6, 7]], "prompt 0 has 3 tokens, it must go on after the prefix of 3 with at least one more"),
        ([[5, 6]], "prompt 0 has 2 tokens, it must go on"),
        ([[5, 6, 7, VOCAB]], "token ids must be in"),
        ([[]], "prompt 0 is empty"),
    ],
)
def test_prompts_that_do_not_go_on_behind_it(prompts: list[list[int]], message: str) -> None:
    model = HFLanguageModel(build("gpt2"))
    prefix = shared(model, [5, 6, 7])
    with pytest.raises(ValueError, match=message):
        model.prefill(prompts, prefix)


def test_a_prefix_of_another_model_is_refused() -> None:
    model = HFLanguageModel(build("gpt2"))
    for other in ("gpt2", "llama-gqa"):
        owner = HFLanguageModel(build(other))
        made_by = "gpt2" if other == "gpt2" else "llama"
        with pytest.raises(ValueError, match=rf"another model \(model type '{made_by}'\).*'gpt2'"):
            model.prefill([[5, 6, 7]], shared(owner, [5, 6]))
    with pytest.raises(ValueError, match=r"share_prefix \(model type 'gpt2'\), got a TablePrefix"):
        model.prefill([[5, 6, 7]], TablePrefix((5, 6)))


def test_a_prefix_of_before_the_model_was_moved_is_refused() -> None:
    inner = build("gpt2")
    model = HFLanguageModel(inner)
    prefix = shared(model, [5, 6])
    inner.to(torch.float64)
    with pytest.raises(ValueError, match=r"computed in torch.float32 on cpu, .* torch.float64 on cpu"):
        model.prefill([[5, 6, 7]], prefix)


def test_a_prefix_does_not_keep_its_model_alive() -> None:
    import gc

    prefix = shared(HFLanguageModel(build("gpt2")), [5, 6])
    gc.collect()
    assert prefix._model() is None
    assert (prefix.token_ids, prefix.kv_bytes) == ((5, 6), 2 * 3 * 2 * 32 * 4)


def test_limits() -> None:
    inner = build("gpt2")
    model = HFLanguageModel(inner)
    limit = model.max_prompt_tokens
    assert limit is not None
    with pytest.raises(PromptTooLongError, match=f"{limit} tokens leaves no room.* at most {limit}"):
        model.share_prefix([5] * limit)
    prefix = shared(model, [5] * (limit - 1))
    session = model.prefill([[5] * (limit - 1) + [6]], prefix)
    with pytest.raises(PromptTooLongError, match=f"position {limit + 1} of {limit}: the prompt has {limit}"):
        session.step(torch.tensor([[0]]), torch.tensor([[4]]))
    with pytest.raises(PromptTooLongError, match=f"has {limit + 1} tokens"):
        model.prefill([[5] * limit + [6]], prefix)
    for token_ids, message in [
        ([], "the prefix is empty"),
        ([VOCAB], rf"\[0, {VOCAB}\), the prefix has {VOCAB}"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.share_prefix(token_ids)
    inner.train()
    with pytest.raises(RuntimeError, match="training mode"):
        model.share_prefix([5])


PROMPTS = random_prompts([13, 1, 7], VOCAB)


def frontier(width: int, queries: int = len(PROMPTS)) -> tuple[Tensor, Tensor]:
    zeros = torch.zeros(queries, width, dtype=torch.int64)
    return zeros, zeros + 4


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


MODULES = {name: build(name) for name in ("llama-gqa", "bart")}


class Account:
    """Expected usage of one session.

    Args:
        name: The architecture.
        script: Script that the session follows.
        truth: True answers of the session.
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
    cache = session.cache
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
