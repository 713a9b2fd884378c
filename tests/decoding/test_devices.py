"""Title trie, beam search and DISC on CUDA against the same on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from decoding.beam_search import BeamResult, beam_search
from decoding.counter_rng import uniforms
from decoding.disc import DiscResult, disc
from decoding.frontier import merge_branches
from decoding.hf_model import HFLanguageModel
from decoding.params import BeamParams, DiscParams
from decoding.row_filter import FilteredTrie, RowFilter
from decoding.title_trie import TitleTrie
from decoding.types import Constraint
from tests.fakes import roots
from tests.tiny_transformers import ARCHITECTURES, build, random_prompts, random_titles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")

DEVICE = "cuda"
VOCAB = 30
ROWS = random_titles(60, (1, 2, 3, 4), num_letters=4)
PROMPTS = random_prompts([9, 4, 1, 13, 6], VOCAB)
TOLERANCE = 1e-4  # float32; CUDA sums in another order


@pytest.fixture(scope="module")
def tries() -> tuple[TitleTrie, TitleTrie]:
    """The same catalogue on the CPU and on the device."""
    return TitleTrie.from_rows(ROWS, VOCAB), TitleTrie.from_rows(ROWS, VOCAB, DEVICE)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request: pytest.FixtureRequest) -> tuple[HFLanguageModel, HFLanguageModel]:
    """The same weights on the CPU and on the device."""
    return HFLanguageModel(build(request.param, VOCAB)), HFLanguageModel(
        build(request.param, VOCAB).to(DEVICE)
    )


def filtered(trie: TitleTrie) -> FilteredTrie:
    """Two filters and an unfiltered query."""
    every = np.arange(trie.num_rows)
    two, three = (RowFilter.from_mask(every % n == 0, trie.device) for n in (2, 3))
    return FilteredTrie(trie, [two, None, three])


def all_states(constraint: Constraint) -> torch.Tensor:
    """Every state that three queries may reach, and -1. Shape: (n,), int64."""
    found = [torch.tensor([-1]), roots(constraint, 3)]
    while len(found[-1]):
        found.append(constraint.children(found[-1]).next_state)
    return torch.cat(found)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.device.type == "cpu" and right.device.type == DEVICE and torch.equal(left, right.cpu())


def test_the_trie_answers_alike(tries: tuple[TitleTrie, TitleTrie]) -> None:
    cpu, device = tries
    generator = torch.Generator().manual_seed(0)
    states = all_states(cpu)[torch.randint(0, len(all_states(cpu)), (500,), generator=generator)]
    tokens = torch.randint(0, VOCAB, (500, 12), generator=generator)
    there = states.to(DEVICE)
    for mine, theirs in zip(cpu.children(states), device.children(there), strict=True):
        assert same(mine, theirs)
    assert same(cpu.verify(states, tokens), device.verify(there, tokens.to(DEVICE)))
    assert same(cpu.advance(states, tokens[:, 0]), device.advance(there, tokens[:, 0].to(DEVICE)))
    assert same(cpu.is_final(states), device.is_final(there))
    assert same(cpu.row(states), device.row(there))
    assert same(roots(cpu, 3), roots(device, 3))


def test_a_filtered_trie_answers_alike(tries: tuple[TitleTrie, TitleTrie]) -> None:
    cpu, device = (filtered(trie) for trie in tries)
    states, tokens = all_states(cpu), torch.arange(VOCAB)
    there, candidates = states.to(DEVICE), tokens.expand(len(states), -1)
    for mine, theirs in zip(cpu.children(states), device.children(there), strict=True):
        assert same(mine, theirs)
    assert same(cpu.verify(states, candidates), device.verify(there, candidates.to(DEVICE)))
    assert same(cpu.is_final(states), device.is_final(there))
    assert same(cpu.row(states), device.row(there))
    assert same(roots(cpu, 3), roots(device, 3))


def test_a_filter_of_another_device_is_refused(tries: tuple[TitleTrie, TitleTrie]) -> None:
    row_filter = RowFilter.from_mask(np.ones(tries[1].num_rows, dtype=bool))
    with pytest.raises(ValueError, match="expected a filter on cuda"):
        FilteredTrie(tries[1], [row_filter])


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize(
    "query",
    [lambda trie, states, tokens: trie.verify(states, tokens), lambda trie, states, _: trie.is_final(states)],
    ids=["verify", "is_final"],
)
@pytest.mark.parametrize("narrow", [lambda trie: trie, lambda trie: filtered(trie)], ids=["trie", "filtered"])
def test_verification_does_not_wait_for_the_device(
    tries: tuple[TitleTrie, TitleTrie],
    narrow: Callable[[TitleTrie], Constraint],
    query: Callable[[Constraint, torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    constraint = narrow(tries[1])
    states, tokens = roots(constraint, 3), torch.arange(VOCAB, device=DEVICE).repeat(3, 1)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        query(constraint, states, tokens)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_random_numbers_are_the_same_bits() -> None:
    seeds, draws = torch.arange(-50, 50), torch.arange(1000).unsqueeze(1)
    assert same(uniforms(seeds, 1, draws, 7), uniforms(seeds.to(DEVICE), 1, draws.to(DEVICE), 7))


def test_branches_merge_alike() -> None:
    generator = torch.Generator().manual_seed(1)
    query, states = (torch.randint(high, (400,), generator=generator) for high in (6, 30))
    tokens, parents = states % 7, states // 3
    arguments = (query, states, tokens, parents)
    mine, theirs = (merge_branches(6, *(a.to(d) for a in arguments)) for d in ("cpu", DEVICE))
    for left, right in zip(mine, theirs, strict=True):
        assert same(left, right)


@pytest.mark.parametrize(("k", "width"), [(1, 1), (5, 5), (60, 60), (80, 100)])
def test_beam_search_finds_the_same_list(
    models: tuple[HFLanguageModel, HFLanguageModel],
    tries: tuple[TitleTrie, TitleTrie],
    k: int,
    width: int,
) -> None:
    params = [BeamParams(k, width)] * len(PROMPTS)
    mine, theirs = (
        beam_search(model.prefill(PROMPTS), trie, params) for model, trie in zip(models, tries, strict=True)
    )
    for left, right in zip(mine, theirs, strict=True):
        assert isinstance(left, BeamResult)
        assert isinstance(right, BeamResult)
        assert left.certified == right.certified
        assert left.num_steps == right.num_steps
        assert left.best_pruned_logprob == pytest.approx(right.best_pruned_logprob, abs=TOLERANCE)
        for a, b in zip(left.hypotheses, right.hypotheses, strict=True):
            assert (a.token_ids, a.row) == (b.token_ids, b.row)
            assert a.logprob == pytest.approx(b.logprob, abs=TOLERANCE)


@pytest.mark.parametrize("top_m", [None, 6])
def test_disc_draws_the_same_titles(
    models: tuple[HFLanguageModel, HFLanguageModel], tries: tuple[TitleTrie, TitleTrie], top_m: int | None
) -> None:
    params = [
        DiscParams(
            num_samples=20,
            num_draws=1 + index,
            temperature=(1.0, 0.8)[index % 2],
            top_m=top_m,
            seed=index,
            reject_early=index % 3 != 0,
        )
        for index in range(len(PROMPTS))
    ]
    mine, theirs = (
        disc(model.prefill(PROMPTS), trie, params) for model, trie in zip(models, tries, strict=True)
    )
    for left, right in zip(mine, theirs, strict=True):
        assert isinstance(left, DiscResult)
        assert isinstance(right, DiscResult)
        assert left.num_draws == right.num_draws
        assert left.mass == pytest.approx(right.mass, abs=TOLERANCE)
        for a, b in zip(left.samples, right.samples, strict=True):
            assert (a.hypothesis.token_ids, a.hypothesis.row) == (b.hypothesis.token_ids, b.hypothesis.row)
            assert (a.accepted, a.num_draws) == (b.accepted, b.num_draws)
            assert a.hypothesis.logprob == pytest.approx(b.hypothesis.logprob, abs=TOLERANCE)
            assert a.log_weight == pytest.approx(b.log_weight, abs=TOLERANCE)
