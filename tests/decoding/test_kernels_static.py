"""What has static shapes asks the device nothing: proven without a device, by fake tensors and full graphs.

A fake tensor has a shape and no values, so whatever would look at a value raises; a full graph breaks where
Python would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from decoding.constraints import StaticConstraint
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.fakes import roots
from tests.trie_oracles import BACKENDS, needs_cuda

VOCAB = 300
ROWS = [(1, 2, 0), (1, 0), (1, 2, 3, 4, 5, 0), (2, 7, 0), (299, 0), (4, 0)]
MASKS = [None, [True, False, True, False, True, False], [False] * 6, [True] * 6]
WIDTH = 4

NUM_LANES = {"trie": 0, "one filter": 1, "four lanes": 4}


def narrowed(trie: TitleTrie, kind: str) -> StaticConstraint:
    """The trie itself, or under one filter, or under four, one of them None."""
    masks = MASKS[1:2] if kind == "one filter" else MASKS[: NUM_LANES[kind]]
    filters = [None if mask is None else RowFilter.from_mask(np.array(mask), trie.device) for mask in masks]
    return FilteredTrie(trie, filters) if filters else trie


def batch(constraint: StaticConstraint, kind: str) -> Tensor:
    """Roots, inner states, states in tails, final ones, and none at all, of every query."""
    start = roots(constraint, max(NUM_LANES[kind], 1))
    level, seen = start, [start, torch.full_like(start, -1)]
    while len(level):
        level = constraint.children(level).next_state
        seen.append(level)
    return torch.cat(seen)


def questions(constraint: StaticConstraint) -> dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]:
    return {
        "verify": lambda states, tokens: (constraint.verify(states, tokens),),
        "advance": lambda states, tokens: (constraint.advance(states, tokens[:, 0]),),
        "is_final": lambda states, tokens: (constraint.is_final(states),),
        "row": lambda states, tokens: (constraint.row(states),),
        "padded_children": lambda states, tokens: tuple(constraint.padded_children(states, WIDTH)),
    }


every_question = pytest.mark.parametrize(
    "question", ["verify", "advance", "is_final", "row", "padded_children"]
)
every_kind = pytest.mark.parametrize("kind", list(NUM_LANES))


def candidates(states: Tensor) -> Tensor:
    return torch.tensor([0, 1, 2, 3, 7, 299], device=states.device).repeat(len(states), 1)


@pytest.mark.parametrize(("device", "kernels"), BACKENDS[:2])
@every_question
@every_kind
def test_fake_tensors_without_values_get_answers_of_the_right_shape(device, kernels, kind, question):
    trie = TitleTrie.from_rows(ROWS, VOCAB, device, kernels)
    constraint = narrowed(trie, kind)
    states = batch(constraint, kind)
    expected = questions(constraint)[question](states, candidates(states))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(states), mode.from_tensor(candidates(states))
        answers = questions(constraint)[question](*fake)
    assert [(a.shape, a.dtype) for a in answers] == [(e.shape, e.dtype) for e in expected]


@pytest.mark.parametrize(("device", "kernels"), BACKENDS[:2])
def test_ragged_children_do_look_which_is_what_the_proof_can_see(device, kernels):
    trie = TitleTrie.from_rows(ROWS, VOCAB, device, kernels)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(roots(trie))
        with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
            trie.children(fake)


@pytest.mark.parametrize(("device", "kernels"), BACKENDS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@every_kind
def test_one_full_graph_answers_like_the_loops(device, kernels, kind, backend):
    trie = TitleTrie.from_rows(ROWS, VOCAB, device, kernels)
    constraint = narrowed(trie, kind)
    states = batch(constraint, kind)
    tokens = candidates(states)
    asked = questions(constraint)
    expected = [answer for ask in asked.values() for answer in ask(states, tokens)]
    torch.compiler.reset()
    traced = torch.compile(
        lambda states, tokens: [answer for ask in asked.values() for answer in ask(states, tokens)],
        fullgraph=True,
        backend=backend,
    )
    for got, wanted in zip(traced(states, tokens), expected, strict=True):
        assert torch.equal(got, wanted)
    dead = torch.full_like(states, -1)
    assert [int(answer.max()) for answer in traced(dead, tokens)] == [-1, -1, 0, -1, -1, -1]


@pytest.mark.parametrize(("device", "kernels"), BACKENDS)
@every_kind
def test_padded_children_are_the_ragged_ones_and_verify_finds_them(device, kernels, kind):
    constraint = narrowed(TitleTrie.from_rows(ROWS, VOCAB, device, kernels), kind)
    states = batch(constraint, kind)
    ragged, padded = constraint.children(states), constraint.padded_children(states, WIDTH)
    there = padded.next_state >= 0
    assert torch.equal(there.nonzero()[:, 0], ragged.owner)
    assert torch.equal(padded.token[there], ragged.token)
    assert torch.equal(padded.next_state[there], ragged.next_state)
    assert torch.equal(constraint.verify(states, padded.token), padded.next_state)


@needs_cuda
@every_question
@every_kind
def test_cuda_is_never_waited_for(kind, question):
    constraint = narrowed(TitleTrie.from_rows(ROWS, VOCAB, "cuda"), kind)
    states = batch(constraint, kind)
    tokens = candidates(states)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        questions(constraint)[question](states, tokens)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
@every_kind
def test_a_cuda_graph_replays_a_step(kind):
    constraint = narrowed(TitleTrie.from_rows(ROWS, VOCAB, "cuda"), kind)
    states = batch(constraint, kind)
    tokens = candidates(states)
    expected = [answer for ask in questions(constraint).values() for answer in ask(states, tokens)]
    held = torch.full_like(states, -1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for ask in questions(constraint).values():
            ask(held, tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        answers = [answer for ask in questions(constraint).values() for answer in ask(held, tokens)]
    held.copy_(states)
    graph.replay()
    for got, wanted in zip(answers, expected, strict=True):
        assert torch.equal(got, wanted)
