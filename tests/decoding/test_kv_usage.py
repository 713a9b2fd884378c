"""What a session says it holds, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from decoding.language_model import KvUsage, PerBranchCost
from decoding.model.hf_model import HFLanguageModel
from decoding.model.hf_session import TreeSession
from decoding.model.token_tree import CollectionPolicy
from decoding.model.tree_cache import INITIAL_DEPTH
from tests.verified_architectures import build

# Three layers, keys and values of two heads of eight float32 numbers.
LLAMA_TOKEN = 3 * 2 * (2 * 8) * 4
# The same with four heads, in self-attention and in cross-attention.
BART_TOKEN = 3 * 2 * (4 * 8) * 4


def llama(policy: CollectionPolicy) -> HFLanguageModel:
    return HFLanguageModel(build("llama-gqa"), collection=policy)


def write(session: TreeSession, width: int, steps: int = 1) -> KvUsage:
    zeros = torch.zeros(len(session.root_logits), width, dtype=torch.int64)
    for _ in range(steps):
        session.step(zeros, zeros + 4)
    return session.usage


def test_prompts_alone() -> None:
    usage = llama(CollectionPolicy()).prefill([[5] * 10, [6] * 4]).usage
    held = 2 * 10 * LLAMA_TOKEN
    assert usage == KvUsage(
        held_bytes=held, used_bytes=held, peak_bytes=held, per_branch_bytes=held, num_collections=0
    )


def test_growing_copies_one_buffer_at_a_time() -> None:
    session = llama(CollectionPolicy.never()).prefill([[5] * 10, [6] * 4])
    first = write(session, 3)
    room = 3 * INITIAL_DEPTH
    assert first.held_bytes == first.peak_bytes == 2 * (10 + room) * LLAMA_TOKEN
    assert first.used_bytes == 2 * (10 + 3) * LLAMA_TOKEN
    grown = write(session, 3, INITIAL_DEPTH)
    assert grown.held_bytes == 2 * (10 + 2 * room) * LLAMA_TOKEN
    # The old keys (or values) of the last layer stood beside everything new.
    assert grown.peak_bytes == grown.held_bytes + 2 * room * LLAMA_TOKEN // 6
    assert grown.used_bytes == 2 * (10 + 3 * (INITIAL_DEPTH + 1)) * LLAMA_TOKEN


def test_compacting_copies_what_is_live_of_one_buffer() -> None:
    session = llama(CollectionPolicy(interval=4, under_pressure=False)).prefill([[5] * 10, [6] * 4])
    before = write(session, 3, 4)
    after = write(session, 3)
    assert after.num_collections == 1
    assert after.used_bytes == 2 * (10 + 4 + 3) * LLAMA_TOKEN
    assert after.held_bytes == before.held_bytes
    assert after.peak_bytes == before.held_bytes + 2 * 4 * LLAMA_TOKEN // 6


def test_shrinking_holds_both_buffers_of_one_layer() -> None:
    session = llama(CollectionPolicy.never()).prefill([[5] * 10])
    wide = write(session, 40)
    write(session, 1)
    session.collect()
    room = 2 + INITIAL_DEPTH
    usage = session.usage
    assert usage.held_bytes == (10 + room) * LLAMA_TOKEN
    assert usage.used_bytes == (10 + 2) * LLAMA_TOKEN
    assert usage.peak_bytes == wide.held_bytes + (2 + room) * LLAMA_TOKEN // 6


def test_one_cache_per_branch_is_counted_in_its_costliest_step() -> None:
    session = llama(CollectionPolicy()).prefill([[5] * 10, [6] * 4])
    assert write(session, 3).per_branch_bytes == 2 * 3 * (10 + 1) * LLAMA_TOKEN
    assert write(session, 7).per_branch_bytes == 2 * 7 * (10 + 2) * LLAMA_TOKEN
    assert write(session, 2).per_branch_bytes == 2 * 7 * (10 + 2) * LLAMA_TOKEN
    # A session over some of the queries keeps an account of its own.
    part = session.select([1], branches=True)
    assert part.usage.per_branch_bytes == 4 * LLAMA_TOKEN
    assert write(part, 2).per_branch_bytes == 2 * (4 + 4) * LLAMA_TOKEN
    assert part.usage.num_collections <= 1


def test_levels_count_at_their_own_depth() -> None:
    session = llama(CollectionPolicy()).prefill([[5] * 10])
    session.keep_levels()
    write(session, 2, 3)
    zeros = torch.zeros(1, 3, dtype=torch.int64)
    session.step(zeros, zeros + 4, depth=1)
    assert session.usage.per_branch_bytes == 3 * (10 + 1) * LLAMA_TOKEN


def test_a_shared_prefix_is_counted_apart() -> None:
    model = llama(CollectionPolicy())
    prefix = model.share_prefix([7] * 8)
    assert prefix is not None
    session = model.prefill([[7] * 8 + [5] * 2, [7] * 8 + [6] * 5], prefix)
    usage = write(session, 3)
    assert prefix.kv_bytes == usage.shared_bytes == 8 * LLAMA_TOKEN
    assert usage.used_bytes == 2 * (5 + 3) * LLAMA_TOKEN
    assert usage.held_bytes == usage.peak_bytes == 2 * (5 + 3 * INITIAL_DEPTH) * LLAMA_TOKEN
    assert usage.per_branch_bytes == 2 * 3 * (13 + 1) * LLAMA_TOKEN
    assert session.select([0]).usage.shared_bytes == 8 * LLAMA_TOKEN


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_cross_attention_counts_once_per_query_and_once_per_branch(name: str) -> None:
    session = HFLanguageModel(build(name)).prefill([[5] * 10, [6] * 4])
    held = 2 * (10 + 1) * BART_TOKEN
    assert session.usage == KvUsage(
        held_bytes=held, used_bytes=held, peak_bytes=held, per_branch_bytes=held, num_collections=0
    )
    usage = write(session, 3)
    assert usage.held_bytes == usage.peak_bytes == held + 2 * 3 * INITIAL_DEPTH * BART_TOKEN
    assert usage.used_bytes == held + 2 * 3 * BART_TOKEN
    assert usage.per_branch_bytes == 2 * 3 * (10 + 1 + 1) * BART_TOKEN


def test_the_cost_per_branch_starts_with_the_prompts() -> None:
    cost = PerBranchCost(num_queries=3, prompt_tokens=7, token_bytes=10, fixed_bytes=100)
    assert cost.most_bytes == 3 * (70 + 100)
    cost.note(5, 2)
    cost.note(1, 9)
    assert cost.most_bytes == 3 * 5 * (90 + 100)
