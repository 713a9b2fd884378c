"""Collection of dead branches, key/value memory by hand, and prefixes that prompts share."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from genret.decoding.conformance.difference import exactly
from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage, PerBranchCost
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.prefill import TreePrefix
from genret.decoding.model.token_tree import CollectionPolicy, survivors
from genret.decoding.model.tree_cache import INITIAL_DEPTH
from tests.fakes import TablePrefix
from tests.no_sync import DeviceWaitError, no_sync
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, plain_logprobs, random_prompts

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
    import genret.decoding.model.token_tree

    def shuffled(paths: Tensor, wanted: Tensor, num_slots: int) -> object:
        kept = survivors(paths, wanted, num_slots)
        return None if kept is None else type(kept)(kept.old_slots.flip(1), kept.new_slots)

    monkeypatch.setattr(genret.decoding.model.token_tree, "survivors", shuffled)
    pair = twins("llama-gqa", EVERY_STEP, 0)
    assert max(pair.grow(4) for _ in range(5)) > 1e-3


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


# Three layers, keys and values of two heads of eight float32 numbers.
LLAMA_TOKEN = 3 * 2 * (2 * 8) * 4
# The same with four heads, in self-attention and in cross-attention.
BART_TOKEN = 3 * 2 * (4 * 8) * 4


def llama(policy: CollectionPolicy) -> HFLanguageModel:
    return HFLanguageModel(build("llama-gqa"), collection=policy)


def write(session: TreeSession, width: int, steps: int = 1) -> KvUsage:
    line(session, steps, width)
    return session.usage


def test_prompts_alone() -> None:
    usage = llama(CollectionPolicy()).prefill([[5] * 10, [6] * 4]).usage
    held = 2 * 10 * LLAMA_TOKEN
    assert usage == KvUsage(
        held_bytes=held, used_bytes=held, peak_bytes=held, per_branch_bytes=held, num_collections=0
    )


def test_growing_copies_one_buffer_at_a_time() -> None:
    session = llama(NEVER).prefill([[5] * 10, [6] * 4])
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
    session = llama(NEVER).prefill([[5] * 10])
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


CAUSAL = [name for name, (_, options) in ARCHITECTURES.items() if "d_model" not in options]
ENCODER_DECODERS = [name for name in ARCHITECTURES if name not in CAUSAL]


def tokens(*lengths: int, seed: int = 0) -> list[list[int]]:
    return random_prompts(list(lengths), torch.Generator().manual_seed(seed))


def shared(model: HFLanguageModel, token_ids: list[int]) -> TreePrefix:
    prefix = model.share_prefix(token_ids)
    assert isinstance(prefix, TreePrefix)
    return prefix


def grow_and_compare(
    session: TreeSession, reference: PreTrainedModel, prompts: list[list[int]], steps: int, seed: int
) -> float:
    """Largest difference from plain passes over every branch alone, in log-probabilities."""
    rng = random.Random(seed)
    worst = 0.0
    for query, prompt in enumerate(prompts):
        expected = plain_logprobs(reference, prompt, [])
        worst = max(worst, float((session.root_logits[query].log_softmax(-1) - expected).abs().max()))
    paths: list[list[list[int]]] = [[[]] for _ in prompts]
    for _ in range(steps):
        parents = [[rng.randrange(len(above)) for _ in range(3)] for above in paths]
        written = [[rng.randrange(3, VOCAB) for _ in range(3)] for _ in paths]
        logits = session.step(torch.tensor(parents), torch.tensor(written))
        paths = [
            [[*paths[query][parent], token] for parent, token in zip(*row, strict=True)]
            for query, row in enumerate(zip(parents, written, strict=True))
        ]
        for query, branch in [(q, rng.randrange(3)) for q in range(len(prompts))]:
            expected = plain_logprobs(reference, prompts[query], paths[query][branch])
            difference = logits[query, branch].log_softmax(-1) - expected
            worst = max(worst, float(difference.abs().max()))
    return worst


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("length", [1, 4, 17])
def test_equal_to_plain_passes_over_whole_prompts(name: str, length: int) -> None:
    """Windows are 5 to 7 tokens: they end in the prefix, in the prompts, and in the tree."""
    with exactly(torch.float64):
        model = HFLanguageModel(build(name, torch.float64))
        (beginning,) = tokens(length)
        prompts = [beginning + rest for rest in tokens(9, 1, 4, 4, seed=1)]
        session = model.prefill(prompts, shared(model, beginning))
        reference = build(name, torch.float64)
        part = session.select([3, 1])
        assert grow_and_compare(session, reference, prompts, 6, seed=length) < 1e-9
        assert grow_and_compare(part, reference, [prompts[3], prompts[1]], 3, seed=length) < 1e-9


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gemma2"])
@pytest.mark.parametrize("lengths", [(1,), (1, 1), (3, 3), (7,), (20, 20)])
def test_prompts_of_one_length(name: str, lengths: tuple[int, ...]) -> None:
    with exactly(torch.float64):
        model = HFLanguageModel(build(name, torch.float64))
        (beginning,) = tokens(8)
        prompts = [beginning + rest for rest in tokens(*lengths, seed=2)]
        session = model.prefill(prompts, shared(model, beginning))
        assert grow_and_compare(session, build(name, torch.float64), prompts, 3, seed=0) < 1e-9


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral-window", "t5", "umt5"])
@pytest.mark.parametrize("rows_at_once", [1, 3])
def test_prompts_whose_scores_are_materialised_in_pieces(
    name: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genret.decoding.model.prefill.ROWS_AT_ONCE", rows_at_once)
    with exactly(torch.float64):
        model = HFLanguageModel(build(name, torch.float64))
        (beginning,) = tokens(8)
        prompts = [beginning + rest for rest in tokens(18, 7, seed=2)]
        reference = build(name, torch.float64)
        for prefix in (None, model.share_prefix(beginning)):
            session = model.prefill(prompts, prefix)
            assert grow_and_compare(session, reference, prompts, 2, seed=0) < 1e-9


def test_float32_and_bfloat16() -> None:
    (beginning,) = tokens(12)
    prompts = [beginning + rest for rest in tokens(5, 2, seed=3)]
    frontier = torch.tensor([[0, 0], [0, 0]]), torch.tensor([[4, 5], [6, 7]])
    answers = []
    for dtype, prefixed in [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)]:
        model = HFLanguageModel(build("llama-gqa", dtype))
        session = model.prefill(prompts, shared(model, beginning) if prefixed else None)
        answers.append(session.step(*frontier).log_softmax(-1))
    torch.testing.assert_close(answers[1], answers[0], atol=1e-4, rtol=0)
    assert answers[2].dtype == torch.float32
    assert float((answers[2] - answers[0]).norm() / answers[0].norm()) < 0.1


def test_another_beginning_gives_other_answers() -> None:
    """The comparison above is no comparison if the prefix does not matter."""
    model = HFLanguageModel(build("llama-gqa"))
    first, second = tokens(6, 6)
    logits = [model.prefill([[*b, 5, 6]], shared(model, b)).root_logits for b in (first, second)]
    assert float((logits[0] - logits[1]).abs().max()) > 0.1


def test_a_prefix_serves_many_sessions_and_is_copied_by_none() -> None:
    model = HFLanguageModel(build("llama-gqa"))
    (beginning,) = tokens(10)
    prefix = shared(model, beginning)
    kept = [part.clone() for segment in prefix.segments for part in segment]
    zeros = torch.zeros(2, 3, dtype=torch.int64)
    sessions = [model.prefill([[*beginning, 5, 6], [*beginning, 7]], prefix) for _ in range(2)]
    for session in (*sessions, sessions[0].select([1, 0])):
        session.step(zeros, zeros + 4)
        assert session._cache.prefix is prefix.segments
    now = [part for segment in prefix.segments for part in segment]
    assert all(torch.equal(*pair) for pair in zip(kept, now, strict=True))


class _LargestResult(TorchDispatchMode):
    """Most elements of any one tensor that is made or copied."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


@pytest.mark.parametrize("name", ["llama-gqa", "qwen2-mixed-windows"])
def test_nothing_is_as_large_as_the_prefix_once_per_query(name: str) -> None:
    """Sixteen queries behind 60 tokens: keys of one prefix in all heads are 60 * 32 numbers."""
    model = HFLanguageModel(build(name))
    (beginning,) = tokens(60)
    prefix = shared(model, beginning)
    prompts = [[*beginning, 5 + query % 20, 6][: 61 + query % 2] for query in range(16)]
    zeros = torch.zeros(16, 2, dtype=torch.int64)
    session = model.prefill(prompts, prefix)
    weights = max(parameter.numel() for parameter in build(name).parameters())
    scores = 16 * 4 * 2 * (60 + 2 + 2)  # of all branches in all heads
    with torch.no_grad(), _LargestResult() as prefill:
        model.prefill(prompts, prefix)
    with torch.no_grad(), _LargestResult() as step:
        session.step(zeros, zeros + 4)
    assert prefill.elements <= max(weights, 62 * 32)
    assert step.elements <= max(weights, scores, 16 * 2 * VOCAB)
    assert max(weights, scores, 62 * 32, 16 * 2 * VOCAB) < 16 * 60 * 16


def test_the_prefix_is_not_run_again() -> None:
    inner = build("llama-gqa")
    model = HFLanguageModel(inner)
    (beginning,) = tokens(20)
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
