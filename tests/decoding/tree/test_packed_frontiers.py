"""Without their padding, frontiers say what they say with it: lists, certificates, samples, memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.constraints import log_normalisers
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError
from decoding.language_model import KvUsage
from decoding.model.hf_model import HFLanguageModel
from decoding.model.token_tree import CollectionPolicy
from decoding.model.tree_cache import PackedFrontier
from decoding.params import BeamParams, DiscParams
from decoding.trie.title_trie import TitleTrie
from tests.verified_architectures import VOCAB, build

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


def assert_alike(mine: BeamResult, theirs: BeamResult) -> None:
    assert [row.token_ids for row in mine.hypotheses] == [row.token_ids for row in theirs.hypotheses]
    for one, other in zip(mine.hypotheses, theirs.hypotheses, strict=True):
        assert (one.row, one.logprob) == (other.row, pytest.approx(other.logprob, abs=TOLERANCE))
    assert mine.best_pruned_score == pytest.approx(theirs.best_pruned_score, abs=TOLERANCE)
    for field in ("certified", "num_nodes", "num_exact_nodes"):
        assert getattr(mine, field) == getattr(theirs, field)


def searched(
    model: HFLanguageModel,
    queries: Sequence[Sequence[int]],
    trie: TitleTrie,
    params: Sequence[BeamParams],
    cancel: Sequence[CancelToken | None] | None = None,
) -> tuple[list[BeamResult | DecodingCancelledError], KvUsage]:
    session = model.prefill(queries)
    return beam_search(session, trie, params, cancel=cancel), session.usage


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
            for other in (theirs[query], alone[0]):
                assert isinstance(result, BeamResult)
                assert isinstance(other, BeamResult)
                assert_alike(result, other)
    assert len(sizes) > 2  # of packed frontiers


class _Later(CancelToken):
    """Cancels itself when it has been asked a number of times."""

    def __init__(self, polls: int) -> None:
        super().__init__()
        self._polls = polls

    def check(self) -> None:
        self._polls -= 1
        if self._polls < 0:
            self.cancel()
        super().check()


def test_a_query_cancelled_in_the_middle_leaves_the_others_alone() -> None:
    packed, padded = models("llama-gqa")
    rng = random.Random(5)
    trie, queries, params = catalogue(rng), prompts(rng), beam_params(rng, exact=False)
    tokens = [_Later(2) if query in (1, 4) else None for query in range(QUERIES)]
    mine, _ = searched(packed, queries, trie, params, tokens)
    theirs, _ = searched(padded, queries, trie, params)
    for query, (result, other) in enumerate(zip(mine, theirs, strict=True)):
        if tokens[query] is not None:
            assert isinstance(result, DecodingCancelledError)
        else:
            assert isinstance(result, BeamResult)
            assert isinstance(other, BeamResult)
            assert_alike(result, other)


@pytest.mark.parametrize("name", ["llama-gqa", "gpt2"])
def test_samples_are_the_padded_ones(name: str) -> None:
    rng = random.Random(2)
    trie, queries = catalogue(rng), prompts(rng)
    params = [
        DiscParams(num_samples=4 + query, num_draws=1 + query % 2, seed=query) for query in range(QUERIES)
    ]
    mine, theirs = (disc(model.prefill(queries), trie, params) for model in models(name))
    for result, other in zip(mine, theirs, strict=True):
        assert isinstance(result, DiscResult)
        assert isinstance(other, DiscResult)
        rows, others = ([s.hypothesis for s in r.samples] for r in (result, other))
        assert [row.token_ids for row in rows] == [row.token_ids for row in others]
        assert [row.logprob for row in rows] == pytest.approx([row.logprob for row in others], abs=TOLERANCE)


@pytest.mark.parametrize("levels", [False, True])
def test_only_live_branches_are_computed(levels: bool) -> None:
    model, _ = models("llama-gqa")
    session = model.prefill([[5, 6], [7], [8, 9, 4]])
    if levels:
        session.keep_levels()
    parents = [
        [[0, 0], [0, 0], [0, 0]],  # nothing to leave out
        [[0, 1, 1], [-1, -1, -1], [1, -1, -1]],
        [[-1, 2], [-1, -1], [-1, -1]],
        [[-1], [-1], [-1]],  # nothing but padding, computed for its shape
    ]
    with shapes_run(model) as shapes:
        for frontier in map(torch.tensor, parents):
            logits = session.step(frontier, torch.full_like(frontier, 4))
            assert logits.shape == (*frontier.shape, VOCAB)
            assert logits.isfinite().all()
    assert shapes == [(3, 2), (1, 4), (1, 1), (3, 1)]


def test_a_first_frontier_is_computed_whole() -> None:
    """At depth 1 every parent is the prompt, whatever is said."""
    packed, padded = models("llama-gqa")
    ignored, tokens = torch.tensor([[-1, 0], [-1, -1]]), torch.tensor([[4, 5], [6, 7]])
    one, other = (model.prefill([[5, 6], [7]]).step(ignored, tokens) for model in (packed, padded))
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_encoder_decoders_keep_their_rectangle(name: str) -> None:
    model = HFLanguageModel(build(name, torch.float64), pack_frontiers=True)
    session = model.prefill([[5, 6], [7]])
    with shapes_run(model) as shapes:
        for frontier in map(torch.tensor, ([[0, 0], [0, 0]], [[0, 1], [-1, -1]])):
            session.step(frontier, torch.full_like(frontier, 4))
    assert shapes == [(2, 2), (2, 2)]


def test_frontiers_with_little_padding_are_left_as_they_are() -> None:
    parents = torch.zeros(4, 10, dtype=torch.int64)
    assert PackedFrontier.of(parents) is None
    parents[0, 0] = -1
    assert PackedFrontier.of(parents) is None
    parents[1:3] = -1
    assert PackedFrontier.of(parents) is not None
    assert PackedFrontier.of(torch.full_like(parents, -1)) is None


def test_rows_go_to_their_places_and_back() -> None:
    parents = torch.tensor([[0, -1, 2], [-1, -1, -1], [-1, 0, 0]])
    packed = PackedFrontier.of(parents)
    assert packed is not None
    assert packed.pack(torch.arange(9).view(3, 3)).tolist() == [[0, 2, 7, 8]]
    heads = torch.randn(3, 2, 3, 5)
    rows = packed.pack_heads(heads)
    assert rows.shape == (1, 2, 4, 5)
    live = (parents >= 0)[:, None, :, None]
    assert torch.equal(packed.unpack_heads(rows), torch.where(live, heads, 0.0))
    logits = torch.randn(1, 4, 6)
    whole = packed.unpack(logits)
    assert torch.equal(whole[parents >= 0], logits[0])
    assert not whole[parents < 0].any()


@pytest.mark.parametrize("piece", [1 << 19, 40])
@pytest.mark.parametrize("states", [[3, -1, 0, -1, 7], [-1] * 5, [1] * 5])
def test_normalisers_of_live_branches(states: list[int], piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.constraints._PIECE", piece)
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    there = torch.tensor(states)
    logits[there < 0] = torch.nan  # not looked at
    found = log_normalisers(logits, there)
    wanted = torch.where(there >= 0, logits.logsumexp(1), 0.0)
    assert torch.allclose(found, wanted)
