"""Whatever a caller does with sessions, branches equal plain passes; packing and sharing change nothing.

Random queries, prompts, frontiers, collections, shared prefixes and selections, on every verified
architecture. Windows are shorter than most prompts and than many prefixes; see `tests.tree_scripts`. Trees
deeper than 2,000 tokens keep two lineages apart that cross at every step.
"""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from genret.decoding.beam_search import BeamResult, beam_search
from genret.decoding.constraints import log_normalisers
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import KvUsage
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.self_check import exactly
from genret.decoding.model.token_tree import CollectionPolicy
from genret.decoding.params import BeamParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import Row, assert_same_lists
from tests.no_sync import DeviceWaitError, no_sync
from tests.tree_oracles import Answer, PlainPasses, Play, WorkMeter, play
from tests.tree_scripts import Branch, BranchTruth, Collect, Grow, Script, Select, random_row, random_script
from tests.trie_oracles import needs_cuda
from tests.verified_architectures import ARCHITECTURES, VOCAB, build, long_and_shallow

TOLERANCES = [(torch.float64, 1e-9), (torch.float32, 1e-4)]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda)]
# The last two scripts keep their levels and return to most of them.
ORDINARY_SEEDS = (*range(576, 580), 837, 954)
CAUSAL_WITH_WINDOWS = [
    (name, window)
    for name, (_, options) in ARCHITECTURES.items()
    if "d_model" not in options
    for window in ((7, 100) if "sliding_window" in options else (None,))
]


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


@pytest.mark.parametrize("seeds", [ORDINARY_SEEDS, pytest.param(range(200, 260), marks=pytest.mark.slow)])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float64", "float32"])
def test_trees_equal_plain_passes(
    name: str, dtype: torch.dtype, tolerance: float, device: str, seeds: Sequence[int]
) -> None:
    for seed in seeds:
        assert error_of(name, dtype, seeded(seed), device) < tolerance, f"seed {seed}"


@pytest.mark.parametrize(("name", "window"), CAUSAL_WITH_WINDOWS)
def test_long_prompts_and_prefixes(name: str, window: int | None) -> None:
    """Longer than what is computed at once, with windows that end in the prefix, at its border and behind."""
    changes = long_and_shallow(name, 1024)
    if window is not None:
        changes["sliding_window"] = window
    rng = random.Random(0)
    shared = random_row(rng, 140, VOCAB)
    prompts = tuple(shared + random_row(rng, rest, VOCAB) for rest in (1, 150, 97))
    steps = [
        Grow(0, None, (parents,) * 3, tuple(random_row(rng, 3, VOCAB) for _ in prompts))
        for parents in ((0, 0, 0), (2, 1, 2), (1, 0, -1), (1, 1, 0), (0, 2, 1))
    ]
    for prefix in (0, len(shared)):
        script = Script(prompts, prefix, CollectionPolicy(2), False, tuple(steps))
        with exactly(torch.float64):
            answers = play(script, build(name, torch.float64, changes=changes)).answers
            plain = PlainPasses(build(name, torch.float64, changes=changes))
            assert plain.largest_error(answers) < 1e-9


def shaped(lengths: Sequence[int], widths: Sequence[int], prefix: int) -> Script:
    """Prompts and frontiers of these sizes, some branches padding; lengths are those behind the prefix."""
    rng = random.Random(sum(lengths) + len(widths))
    shared = random_row(rng, prefix, VOCAB)
    prompts = tuple(shared + random_row(rng, length, VOCAB) for length in lengths)
    steps, above = [], 1
    for width in widths:
        parents = tuple(
            tuple(-1 if rng.random() < 0.15 else rng.randrange(above) for _ in range(width)) for _ in lengths
        )
        steps.append(Grow(0, None, parents, tuple(random_row(rng, width, VOCAB) for _ in lengths)))
        above = width
    return Script(prompts, prefix, CollectionPolicy.never(), False, tuple(steps))


ONE_LENGTH = [(1,), (1, 1), (3, 3), (7,), (20, 20), (9, 9, 9)]


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gemma2", "gpt2", "bart", "t5"])
@pytest.mark.parametrize("lengths", ONE_LENGTH, ids=str)
@pytest.mark.parametrize("prefix", [0, 8])
def test_prompts_of_one_length(name: str, lengths: tuple[int, ...], prefix: int) -> None:
    assert error_of(name, torch.float64, shaped(lengths, (4, 4, 4), prefix)) < 1e-9


@pytest.mark.parametrize("name", ["bart", "gpt2"])
def test_more_slots_than_positions(name: str) -> None:
    """Slots outnumber the learned positions long before any branch is that deep."""
    assert error_of(name, torch.float64, shaped((5, 3), (20,) * 8, 0)) < 1e-9


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "mistral-window", "t5", "umt5"])
@pytest.mark.parametrize("rows_at_once", [1, 3])
@pytest.mark.parametrize("prefix", [0, 8])
def test_prompts_whose_scores_are_materialised_in_pieces(
    name: str, rows_at_once: int, prefix: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genret.decoding.model.tree_attention.ROWS_AT_ONCE", rows_at_once)
    assert error_of(name, torch.float64, shaped((18, 7), (3, 3), prefix)) < 1e-9


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


CAUSAL = ["llama-gqa", "gpt2", "gpt_neox", "gemma2", "phi3", "qwen2-mixed-windows", "cohere2"]
TOLERANCE = 1e-9  # in float64
QUERIES = 7
EAGER = CollectionPolicy(interval=2)


@cache
def models(name: str) -> tuple[HFLanguageModel, HFLanguageModel]:
    """With packed frontiers, and without."""
    module = build(name, torch.float64)
    packed, padded = (HFLanguageModel(module, collection=EAGER, pack_frontiers=p) for p in (True, False))
    return packed, padded


def catalogue(rng: random.Random) -> TitleTrie:
    """Titles of very different lengths."""
    rows = [tuple(rng.randrange(2, VOCAB) for _ in range(rng.choice([1, 2, 5, 9]))) for _ in range(60)]
    return TitleTrie.from_rows(sorted({(*row, 1) for row in rows}), VOCAB)


def prompts(rng: random.Random, number: int = QUERIES) -> list[list[int]]:
    return [[rng.randrange(2, VOCAB) for _ in range(rng.randint(1, 9))] for _ in range(number)]


def beam_params(rng: random.Random, exact: bool) -> list[BeamParams]:
    return [BeamParams(k=rng.randint(1, 4), beam_size=rng.randint(4, 8), exact=exact) for _ in range(QUERIES)]


@contextmanager
def shapes_run(model: HFLanguageModel) -> Iterator[list[tuple[int, ...]]]:
    """Rows and tokens of what reaches the model's head inside the block."""
    seen: list[tuple[int, ...]] = []
    head = model.pretrained.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape[:2])))
    try:
        yield seen
    finally:
        handle.remove()


def searched(
    model: HFLanguageModel,
    queries: Sequence[Sequence[int]],
    trie: TitleTrie,
    params: Sequence[BeamParams],
) -> tuple[list[BeamResult | DecodingCancelledError], KvUsage]:
    session = model.prefill(queries)
    return beam_search(session, trie, params), session.usage


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_lists_are_the_padded_ones_and_those_of_queries_alone(name: str, exact: bool) -> None:
    packed, padded = models(name)
    sizes: set[tuple[int, ...]] = set()
    for seed in range(3):
        rng = random.Random(seed)
        trie, queries, params = catalogue(rng), prompts(rng), beam_params(rng, exact)
        with shapes_run(packed) as shapes:
            mine, held = searched(packed, queries, trie, params)
        sizes.update(shape for shape in shapes if shape[0] == 1)
        theirs, expected = searched(padded, queries, trie, params)
        assert held == expected
        for query, result in enumerate(mine):
            alone, _ = searched(padded, [queries[query]], trie, [params[query]])
            assert_same_lists([result, result], [theirs[query], *alone], TOLERANCE)
    assert len(sizes) > 2  # of packed frontiers


@pytest.mark.parametrize("levels", [False, True])
def test_only_live_branches_are_computed(levels: bool) -> None:
    model, _ = models("llama-gqa")
    session = model.prefill([[5, 6], [7], [8, 9, 4]])
    if levels:
        session.keep_levels()
    parents = [
        [[0, 0], [0, 0], [0, 0]],  # nothing to leave out
        [[0, 1, 1, 0], [0, 1, 1, 0], [0, 1, -1, 0]],  # too little to pay
        [[0, 1, 1], [-1, -1, -1], [1, -1, -1]],
        [[-1, 2], [-1, -1], [-1, -1]],
        [[-1], [-1], [-1]],  # nothing but padding, computed for its shape
    ]
    with shapes_run(model) as shapes:
        for frontier in map(torch.tensor, parents):
            logits = session.step(frontier, torch.full_like(frontier, 4))
            assert logits.shape == (*frontier.shape, VOCAB)
            assert logits.isfinite().all()
    assert shapes == [(3, 2), (3, 4), (1, 4), (1, 1), (3, 1)]


def test_a_first_frontier_is_computed_whole() -> None:
    """At depth 1 every parent is the prompt, whatever is said."""
    packed, padded = models("llama-gqa")
    ignored, tokens = torch.tensor([[-1, 0], [-1, -1]]), torch.tensor([[4, 5], [6, 7]])
    one, other = (model.prefill([[5, 6], [7]]).step(ignored, tokens) for model in (packed, padded))
    assert torch.equal(one, other)


@pytest.mark.parametrize("piece", [1 << 19, 40])
@pytest.mark.parametrize("states", [[3, -1, 0, -1, 7], [-1] * 5, [1] * 5])
def test_normalisers_of_live_branches(states: list[int], piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.decoding.constraints._PIECE", piece)
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    there = torch.tensor(states)
    logits[there < 0] = torch.nan  # not looked at
    found = log_normalisers(logits, there)
    wanted = torch.where(there >= 0, logits.logsumexp(1), 0.0)
    assert torch.allclose(found, wanted)


Q = 2
LONG = 240  # tokens of a prompt or prefix that nothing else in a step comes near


def prompts_of(session: TreeSession) -> list[Tensor]:
    layers = range(len(session.cache.layers))
    return [part for index in layers for part in session.cache.tree_layer(index).prompt]


def prefix_of(session: TreeSession) -> list[Tensor]:
    return [part for segment in session.cache.prefix for part in segment]


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
    prefix = model.share_prefix(long) if shared else None
    session = model.prefill(prompts, prefix)
    wander(session, 3)  # the tail's buffers are there
    held = (prefix_of if shared else prompts_of)(session)
    smallest = min(part.numel() for part in held)
    with WorkMeter() as writing:
        wander(session, 5)
        if shared:
            session.select([0], branches=True)
    with WorkMeter() as prefilling:
        if shared:  # once for all queries, but not for each
            model.prefill(prompts, prefix)
    assert writing.largest < smallest
    assert prefilling.largest < len(prompts) * smallest
    assert session.usage.num_collections > 2


@pytest.mark.parametrize("name", ["llama-gqa", "phi3", "gpt_neox", "bart"])
def test_nothing_keeps_another_sessions_buffers_alive(name: str) -> None:
    model = HFLanguageModel(build(name), collection=EAGER)
    session = model.prefill([[5, 6, 7, 8], [9, 10]])
    wander(session, 4)
    layer = session.cache.tree_layer(0)
    watched = [weakref.ref(part.untyped_storage()) for part in (*layer.prompt, layer.tail[0])]
    parts = [session.select([1], branches) for branches in (False, True)]
    assert None not in [storage() for storage in watched]
    alone = model.prefill([[9, 10]]).usage.held_bytes
    if not model.is_encoder_decoder:
        assert parts[0].usage.held_bytes == alone
    del session, layer
    gc.collect()
    assert [storage() for storage in watched] == [None] * 3
    for part in parts:
        wander(part, 2, queries=1)


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


DEPTH = 2048
WIDTH = 3
INTERVAL = 16
COLLECTING = CollectionPolicy(interval=INTERVAL)
PROMPTS = ((5, 9, 11, 4, 8, 30, 17, 50, 21, 33), (40, 3, 21))

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


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        ("mistral-window", torch.float32, 1e-4),
        *(pytest.param(name, torch.float64, 1e-9, marks=pytest.mark.slow) for name in ARCHITECTURES),
    ],
)
def test_deep_trees_equal_plain_passes(name: str, dtype: torch.dtype, tolerance: float) -> None:
    with exactly(dtype):
        tree = descend(name, dtype, COLLECTING)
        reference = build(name, dtype, changes=long_and_shallow(name, 2 * (DEPTH + 20)))
        assert PlainPasses(reference).largest_error(tree.answers) < tolerance
    for depth in range(INTERVAL, DEPTH + 1):
        assert 2 * depth <= tree.slots(depth) <= 2 * depth + WIDTH * (INTERVAL + 1)
        assert tree.usages[depth].held_bytes <= 3 * tree.usages[depth].used_bytes
    assert tree.usages[-1].num_collections >= DEPTH // INTERVAL - 1
    # A step costs what is live, which is proportional to the depth.
    assert tree.work[1000] < 2.1 * tree.work[500]
    assert tree.work[2000] < 2.1 * tree.work[1000]
