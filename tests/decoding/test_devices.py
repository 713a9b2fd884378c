"""Title trie, beam search and DISC on CUDA: the same as on the CPU, and without waiting for the device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from genret.decoding.beam_search import beam_search
from genret.decoding.beam_search import trie_beam_search as walks
from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Constraint
from genret.decoding.disc import DiscResult, disc
from genret.decoding.disc.static_proposer import StaticProposer, static_step
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.params import BeamParams, DiscParams
from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import assert_same_lists
from tests.disc_oracles import arguments_of_a_step, assert_same_draws, outcome
from tests.no_sync import cuda_never_waits
from tests.tiny_transformers import build, random_prompts, random_titles

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")

DEVICE = "cuda"
VOCAB = 30
ROWS = random_titles(60, (1, 2, 3, 4), num_letters=4)
PROMPTS = random_prompts([9, 4, 1, 13, 6], VOCAB)


@pytest.fixture(scope="module")
def tries() -> tuple[TitleTrie, TitleTrie]:
    """The same catalogue on the CPU and on the device."""
    return TitleTrie.from_rows(ROWS, VOCAB), TitleTrie.from_rows(ROWS, VOCAB, DEVICE)


def filtered(trie: TitleTrie, num_queries: int = 3) -> FilteredTrie:
    """Two filters and unfiltered queries, one per query."""
    every = np.arange(trie.num_rows)
    two, three = (RowFilter.from_mask(every % n == 0, trie.device) for n in (2, 3))
    return FilteredTrie(trie, [two, None, three, None, two][:num_queries])


five_filters = partial(filtered, num_queries=5)


def test_a_filter_of_another_device_is_refused(tries: tuple[TitleTrie, TitleTrie]) -> None:
    row_filter = RowFilter.from_mask(np.ones(tries[1].num_rows, dtype=bool))
    with pytest.raises(ValueError, match="expected a filter on cuda"):
        FilteredTrie(tries[1], [row_filter])


def disc_params(top_m: int | None = None) -> list[DiscParams]:
    """Parameters of unlike queries, one per prompt."""
    return [
        DiscParams(
            num_samples=12 - 2 * index,
            num_draws=1 + index,
            temperature=(1.0, 0.8)[index % 2],
            top_m=top_m,
            seed=index,
            reject_early=index % 3 != 0,
        )
        for index in range(len(PROMPTS))
    ]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("top_m", [None, 6])
@pytest.mark.parametrize("narrow", [lambda trie: trie, five_filters], ids=["trie", "filtered"])
def test_disc_never_waits_while_it_draws_what_the_cpu_draws(
    tries: tuple[TitleTrie, TitleTrie],
    narrow: Callable[[TitleTrie], Constraint],
    top_m: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In double precision. The CPU's draws come from the explored tree, the device's from static shapes."""
    walked = []
    walk = StaticProposer._walk

    def watched(*arguments: object) -> None:
        with cuda_never_waits():
            walk(*arguments)
        walked.append(True)

    monkeypatch.setattr(StaticProposer, "_walk", watched)
    models = [HFLanguageModel(build("llama", VOCAB).double().to(device)) for device in ("cpu", DEVICE)]
    cancel = [CancelToken(), *[None] * (len(PROMPTS) - 1)]
    for room in (None, [None, 3, None, 4, None]):
        mine, theirs = (
            disc(model.prefill(PROMPTS), narrow(trie), disc_params(top_m), cancel, room)
            for model, trie in zip(models, tries, strict=True)
        )
        assert all(isinstance(result, DiscResult) for result in mine)
        assert_same_draws(mine, theirs)
    assert len(walked) == 4  # both phases of both were watched


@pytest.mark.parametrize("top_m", [None, 6])
@pytest.mark.parametrize("narrow", [lambda trie: trie, filtered], ids=["trie", "filtered"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_step_of_disc_is_captured_in_a_cuda_graph(
    tries: tuple[TitleTrie, TitleTrie],
    narrow: Callable[[TitleTrie], Constraint],
    top_m: int | None,
    depth: int,
) -> None:
    """A graph captured with some values gives, with others, what an eager step gives."""
    constraint = narrow(tries[1])
    first, second = (arguments_of_a_step(constraint, depth, top_m, seed, VOCAB) for seed in (0, 1))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        static_step(*first)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = static_step(*first)
    for arguments in (first, second):
        for held, value in zip(tensors_in(first), tensors_in(arguments), strict=True):
            held.copy_(value)
        graph.replay()
        for mine, theirs in zip(outcome(static_step(*first)), outcome(captured), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def tensors_in(arguments: list[object]) -> list[torch.Tensor]:
    return [*arguments[1], *(a for a in arguments[2:] if isinstance(a, torch.Tensor))]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("narrow", [lambda trie: trie, five_filters], ids=["trie", "filtered"])
def test_beam_search_never_waits_for_the_device_while_it_decodes(
    tries: tuple[TitleTrie, TitleTrie],
    narrow: Callable[[TitleTrie], Constraint],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    walked = []
    steps = walks._static_steps

    def watched(*arguments: object) -> None:
        with cuda_never_waits():
            steps(*arguments)
        walked.append(True)

    monkeypatch.setattr(walks, "_static_steps", watched)
    models = [HFLanguageModel(build("llama", VOCAB).double().to(device)) for device in ("cpu", DEVICE)]
    params = [BeamParams(3 + n, 2 * n + 1, length_penalty=(0.0, 1.0, -0.5)[n % 3]) for n in range(5)]
    room = [None, 3, None, 4, None]
    mine, theirs = (
        beam_search(
            model.prefill(PROMPTS), narrow(trie), params, [None, CancelToken(), None, None, None], room
        )
        for model, trie in zip(models, tries, strict=True)
    )
    assert len(walked) == 1
    assert_same_lists(mine, theirs, 1e-9)
