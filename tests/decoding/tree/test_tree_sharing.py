"""Whose keys and values they are: prompts and prefixes are never copied, changed, or kept alive by others."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decoding.model.hf_model import HFLanguageModel
from decoding.model.hf_session import TreeSession
from decoding.model.token_tree import CollectionPolicy
from tests.no_sync import DeviceWaitError, no_sync
from tests.tree_oracles import Answer, PlainPasses, play
from tests.tree_scripts import random_script
from tests.verified_architectures import ARCHITECTURES, VOCAB, build

Q = 2
LONG = 240  # tokens of a prompt or prefix that nothing else in a step comes near
EAGER = CollectionPolicy(interval=2)


class LargeResults(TorchDispatchMode):
    """Notes operations that write at least so many elements."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.found: list[str] = []
        self._elements = elements

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        made = results if isinstance(results, (tuple, list)) else [results]
        largest = max((part.numel() for part in made if isinstance(part, Tensor)), default=0)
        if not func.is_view and largest >= self._elements:
            self.found.append(f"{func} {largest}")
        return results


def prompts_of(session: TreeSession) -> list[Tensor]:
    layers = range(len(session._cache.layers))
    return [part for index in layers for part in session._cache.tree_layer(index).prompt]


def prefix_of(session: TreeSession) -> list[Tensor]:
    return [part for segment in session._cache.prefix for part in segment]


def wander(session: TreeSession, count: int, queries: int = Q, seed: int = 0) -> None:
    """Write frontiers that leave much to collect."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        parents = torch.randint(2, (queries, 1), generator=generator).expand(queries, 2)
        session.step(parents, torch.randint(3, VOCAB, (queries, 2), generator=generator))
    session.collect()


@contextmanager
def untouched(parts: list[Tensor]) -> Iterator[None]:
    """Fail where a tensor's values or its place change."""
    before = [(part.data_ptr(), part.clone()) for part in parts]
    yield
    for part, (place, values) in zip(parts, before, strict=True):
        assert part.data_ptr() == place
        assert torch.equal(part, values)


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "gpt2", "bart", "t5"])
def test_prompts_are_the_same_tensors_to_the_end(name: str) -> None:
    session = HFLanguageModel(build(name), collection=EAGER).prefill([[5, 6, 7], [8]])
    before = prompts_of(session)
    with untouched(before):
        wander(session, 12)
    assert all(now is then for now, then in zip(prompts_of(session), before, strict=True))
    assert session.usage.num_collections > 3


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-mixed-windows", "gemma2"])
def test_a_prefix_is_one_place_for_every_session(name: str) -> None:
    model = HFLanguageModel(build(name), collection=EAGER)
    shared = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    prefix = model.share_prefix(shared)
    assert prefix is not None
    first = model.prefill([[*shared, 14], [*shared, 15, 16]], prefix)
    places = [part.data_ptr() for part in prefix_of(first)]
    with untouched(prefix_of(first)):
        wander(first, 6)
        second = model.prefill([[*shared, 17]], prefix)
        wander(second, 6, queries=1)
        bare, full = first.select([1]), first.select([1, 0], branches=True)
        wander(bare, 6, queries=1)
        wander(full, 6)
    for session in (second, bare, full):
        assert [part.data_ptr() for part in prefix_of(session)] == places
        assert session.usage.shared_bytes == prefix.kv_bytes
    whole = model.prefill([[*shared, 17]])
    assert second.select([0]).usage.held_bytes + prefix.kv_bytes == whole.usage.held_bytes


@pytest.mark.parametrize("shared", [False, True], ids=["prompts", "prefix"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-gqa", {"head_dim": 16}),  # wide heads: a step's scores are smaller than any copy of the keys
        ("gpt_neox", {}),
        ("gpt2", {}),
        ("mistral-window", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_step_copies_a_prompt(name: str, changes: dict[str, int], shared: bool) -> None:
    module = build(name, changes={**changes, "max_position_embeddings": 2 * LONG})
    model = HFLanguageModel(module, collection=EAGER)
    long = [3 + place % 50 for place in range(LONG)]
    prompts = [[*long, 4], [*(long if shared else long[:100]), 5, 6]]
    session = model.prefill(prompts, model.share_prefix(long) if shared else None)
    wander(session, 3)  # the tail's buffers are there
    held = (prefix_of if shared else prompts_of)(session)
    with LargeResults(min(part.numel() for part in held)) as large:
        wander(session, 5)
        if shared:
            session.select([0], branches=True)
    assert large.found == []
    assert session.usage.num_collections > 2


def test_large_results_are_found() -> None:
    """The test above can fail."""
    with LargeResults(12) as large:
        torch.zeros(3, 4)[:, :2].clone()
        torch.zeros(3, 4).view(12)
    assert [entry.split()[0] for entry in large.found] == ["aten.zeros.default"] * 2


@pytest.mark.parametrize("name", ["llama-gqa", "phi3", "gpt_neox", "bart"])
def test_nothing_keeps_another_sessions_buffers_alive(name: str) -> None:
    model = HFLanguageModel(build(name), collection=EAGER)
    session = model.prefill([[5, 6, 7, 8], [9, 10]])
    wander(session, 4)
    layer = session._cache.tree_layer(0)
    watched = [weakref.ref(part.untyped_storage()) for part in (*layer.prompt, layer.tail_keys)]
    parts = [select(session) for select in (_bare, _full)]
    assert None not in [storage() for storage in watched]
    alone = model.prefill([[9, 10]]).usage.held_bytes
    if not model.is_encoder_decoder:
        assert parts[0].usage.held_bytes == alone
    del session, layer
    gc.collect()
    assert [storage() for storage in watched] == [None] * 3
    for part in parts:
        wander(part, 2, queries=1)


def _bare(session: TreeSession) -> TreeSession:
    return session.select([1])


def _full(session: TreeSession) -> TreeSession:
    return session.select([1], branches=True)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_steps_wait_for_the_device_in_collections_only(name: str) -> None:
    policy = CollectionPolicy(interval=4, under_pressure=False)
    model = HFLanguageModel(build(name), collection=policy, pack_frontiers=False)
    shared = [5, 6, 7, 8, 9, 10, 11, 12]
    session = model.prefill([[*shared, 13], [*shared, 14, 15, 16]], model.share_prefix(shared))
    parents = torch.tensor([[0, 0, -1], [0, 1, 0]])
    waited = []
    for _ in range(12):
        before = session.usage.num_collections
        try:
            with no_sync():
                session.step(parents, parents + 4)
                usage = session.usage
        except DeviceWaitError:
            waited.append(True)
            session.step(parents, parents + 4)
            usage = session.usage
        else:
            waited.append(False)
        assert usage.num_collections - before == waited[-1]
    assert waited == [False] * 4 + ([True] + [False] * 3) * 2


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "gpt2", "bart", "t5"])
def test_sessions_in_threads_do_not_meet(name: str) -> None:
    module, reference = build(name), PlainPasses(build(name))
    HFLanguageModel(module)
    answers: dict[int, list[Answer]] = {}

    def run(number: int) -> None:
        scripts = [random_script(random.Random(1000 * number + seed), VOCAB) for seed in range(3)]
        answers[number] = [answer for script in scripts for answer in play(script, module).answers]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0, 1, 2, 3]
    for said in answers.values():
        assert reference.largest_error(said) < 1e-4
