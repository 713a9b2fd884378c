"""Collection of dead branches: when it happens, what it frees, and that no answer changes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from decoding.conformance.difference import exactly
from decoding.model.hf_model import HFLanguageModel
from decoding.model.hf_session import TreeSession
from decoding.model.token_tree import CollectionPolicy, survivors
from decoding.model.tree_cache import INITIAL_DEPTH
from tests.no_sync import DeviceWaitError, no_sync
from tests.verified_architectures import VOCAB, build, random_prompts

NAMES = ["llama-gqa", "mistral-window", "gemma3", "gpt2", "bart", "t5"]
EVERY_STEP = CollectionPolicy(interval=1)
NEVER = CollectionPolicy.never()
ON_DEMAND = CollectionPolicy(interval=None, under_pressure=False)


def prompts() -> list[list[int]]:
    return random_prompts([11, 2, 6], torch.Generator().manual_seed(5))


def model(
    name: str = "llama-gqa", policy: CollectionPolicy = NEVER, packs: bool | None = None
) -> HFLanguageModel:
    return HFLanguageModel(build(name, torch.float64), collection=policy, pack_frontiers=packs)


@dataclass(slots=True)
class Twins:
    """A session that collects and one that does not, grown alike at random.

    Attributes:
        collecting: Collects.
        keeping: Does not.
        rng: Decides widths, parents and tokens.
        frontier: Per query, which branches of the last frontier are no padding.
        ended: Queries that get no more branches.
    """

    collecting: TreeSession
    keeping: TreeSession
    rng: random.Random
    frontier: list[list[int]]
    ended: set[int] = field(default_factory=set)

    def grow(self, width: int) -> float:
        """Write one frontier; return the largest difference between log-probabilities of live branches."""
        rows = [self._parents(query, width) for query in range(len(self.frontier))]
        parents = torch.tensor(rows)
        tokens = torch.tensor([[self.rng.randrange(3, VOCAB) for _ in row] for row in rows])
        got, wanted = (session.step(parents, tokens) for session in (self.collecting, self.keeping))
        assert got.isfinite().all()
        self.frontier = [[branch for branch, parent in enumerate(row) if parent >= 0] for row in rows]
        difference = (got.log_softmax(-1) - wanted.log_softmax(-1)).abs().amax(-1)
        return float(torch.where(parents >= 0, difference, 0.0).max())

    def select(self, queries: list[int]) -> None:
        self.collecting = self.collecting.select(queries, branches=True)
        self.keeping = self.keeping.select(queries, branches=True)
        self.frontier = [self.frontier[query] for query in queries]
        self.ended = {index for index, query in enumerate(queries) if query in self.ended}

    def _parents(self, query: int, width: int) -> list[int]:
        """Few parents per query, another number for each, so that much dies and live counts differ."""
        if query in self.ended or not self.frontier[query]:
            return [-1] * width
        few = self.rng.sample(self.frontier[query], min(len(self.frontier[query]), 1 + query))
        return [self.rng.choice(few) if self.rng.random() < 0.8 else -1 for _ in range(width)]


def twins(name: str, policy: CollectionPolicy, seed: int) -> Twins:
    collecting, keeping = (model(name, p).prefill(prompts()) for p in (policy, NEVER))
    return Twins(collecting, keeping, random.Random(seed), [[0], [0], [0]])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "policy", [EVERY_STEP, CollectionPolicy(interval=3), CollectionPolicy(interval=None), ON_DEMAND], ids=str
)
def test_answers_are_those_of_a_session_that_keeps_everything(name: str, policy: CollectionPolicy) -> None:
    with exactly(torch.float64):
        pair = twins(name, policy, len(name))
        for step in range(14):
            if step == 9:
                pair.ended.add(1)
            if policy is ON_DEMAND and step % 4 == 2:
                pair.collecting.collect()
            assert pair.grow(pair.rng.randint(2, 6)) < 1e-9
        usage = pair.collecting.usage
        assert usage.num_collections > 0
        assert pair.keeping.usage.num_collections == 0
        assert usage.used_bytes < pair.keeping.usage.used_bytes
        pair.select([2, 0])
        for _ in range(4):
            assert pair.grow(3) < 1e-9


def test_the_comparison_notices_a_slot_that_is_moved_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    import decoding.model.token_tree

    def shuffled(paths: Tensor, wanted: Tensor, num_slots: int) -> object:
        kept = survivors(paths, wanted, num_slots)
        return None if kept is None else type(kept)(kept.old_slots.flip(1), kept.new_slots)

    monkeypatch.setattr(decoding.model.token_tree, "survivors", shuffled)
    pair = twins("llama-gqa", EVERY_STEP, 0)
    assert max(pair.grow(4) for _ in range(5)) > 1e-3


def slots_used(session: TreeSession) -> int:
    """Tail slots per query that hold something."""
    prompt = session.select(range(len(session.root_logits))).usage.used_bytes
    one = model().prefill([[5]]).usage.used_bytes
    return (session.usage.used_bytes - prompt) // (one * len(session.root_logits))


def line(session: TreeSession, steps: int, width: int = 2) -> None:
    """Of every frontier the first branch gets all children."""
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


def test_only_a_collection_waits_for_the_device() -> None:
    policy = CollectionPolicy(interval=4, under_pressure=False)
    session = model(policy=policy, packs=False).prefill([[5, 6], [7]])
    for _ in range(3):
        with no_sync():
            line(session, 4)
        with pytest.raises(DeviceWaitError), no_sync():
            line(session, 1)
        session.collect()
    with pytest.raises(DeviceWaitError), no_sync():
        session.collect()


def test_collect_keeps_the_paths_of_the_last_frontier() -> None:
    session = model().prefill([[5, 6], [7]])
    session.collect()  # nothing is written yet
    line(session, 3, width=4)
    session.collect()
    assert (slots_used(session), session.usage.num_collections) == (2 + 4, 1)
    session.collect()  # nothing is left to be done
    assert (slots_used(session), session.usage.num_collections) == (2 + 4, 1)


def test_with_levels_nothing_is_collected() -> None:
    session = model(policy=EVERY_STEP).prefill([[5, 6]])
    session.keep_levels()
    line(session, 20, width=3)
    session.collect()
    assert (slots_used(session), session.usage.num_collections) == (60, 0)
    assert session.step(torch.tensor([[59, 1]]) * 0 + 2, torch.tensor([[4, 5]]), depth=2).isfinite().all()


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


def test_survivors_of_paths_by_hand() -> None:
    paths = torch.tensor([[[0, 2], [1, 3]], [[1, 2], [1, 3]]])
    kept = survivors(paths, torch.tensor([[False, True], [True, True]]), 4)
    assert kept is not None
    assert kept.old_slots.tolist() == [[1, 3, 0], [1, 2, 3]]
    assert kept.new_slots.gather(1, paths.flatten(1)).tolist()[1] == [0, 1, 0, 2]
    assert survivors(paths, torch.ones(2, 2, dtype=torch.bool), 4) is None
