"""Every backend gives the same tensors for the same states, whatever the mixture of a batch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoding.constraints import StaticConstraint
from decoding.trie.row_filter import FilteredTrie, RowFilter
from decoding.trie.title_trie import TitleTrie
from tests.fakes import roots
from tests.trie_oracles import BACKENDS, catalogues


def all_states(constraint: StaticConstraint, num_queries: int) -> Tensor:
    """State -1 and every state of every query."""
    level = roots(constraint, num_queries)
    seen = [level, torch.full_like(level[:1], -1)]
    while len(level):
        level = constraint.children(level).next_state
        seen.append(level)
    return torch.cat(seen)


def answers(constraint: StaticConstraint, states: Tensor, candidates: Tensor) -> list[Tensor]:
    width = max(constraint.width_at(depth) for depth in range(constraint.max_depth + 1))
    padded = constraint.padded_children(states, width)
    return [
        *constraint.children(states),
        *padded,
        constraint.verify(states, candidates),
        constraint.verify(states, padded.token),
        constraint.advance(states, candidates[:, 0]),
        constraint.is_final(states),
        constraint.row(states),
    ]


@pytest.mark.parametrize(("device", "kernels"), BACKENDS[1:])
@settings(max_examples=300, deadline=None)
@given(catalogue=catalogues(), data=st.data())
def test_backends_agree_with_tensors_on_the_cpu(device, kernels, catalogue, data):
    rows, vocab_size = catalogue
    token = st.integers(-1, vocab_size)
    some = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
    masks = data.draw(st.lists(st.none() | some, max_size=4))
    tries = [
        TitleTrie.from_rows(rows, vocab_size, "cpu", "torch"),
        TitleTrie.from_rows(rows, vocab_size, device, kernels),
    ]
    constraints = [
        FilteredTrie(
            trie,
            [None if m is None else RowFilter.from_mask(np.array(m, dtype=bool), trie.device) for m in masks],
        )
        if masks
        else trie
        for trie in tries
    ]
    states = all_states(constraints[0], max(len(masks), 1))
    places = data.draw(st.lists(st.integers(0, len(states) - 1), max_size=30))
    batch = states[torch.tensor(places, dtype=torch.int64)]  # any order, any mixture, repeated or empty
    width = data.draw(st.integers(1, 5))
    drawn = data.draw(st.lists(token, min_size=width * len(batch), max_size=width * len(batch)))
    candidates = torch.tensor(drawn, dtype=torch.int64).view(len(batch), width)
    expected = answers(constraints[0], batch, candidates)
    got = answers(constraints[1], batch.to(device), candidates.to(device))
    for mine, other in zip(got, expected, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.cpu(), other)
    assert torch.equal(expected[6], expected[4])  # verify finds the padded children, and nothing at the gaps


@pytest.mark.parametrize(("device", "kernels"), BACKENDS[:2])
def test_threads_may_ask_at_once(device, kernels):
    """Compiled loops do not hold Python's lock, so they do run at the same time."""
    rng = np.random.default_rng(0)
    trie = TitleTrie.from_rows([(*row, 500) for row in rng.integers(0, 500, (2000, 4))], 501, device, kernels)
    some = [RowFilter.from_mask(rng.random(trie.num_rows) < share) for share in (0.5, 0.1)]
    constraints = [trie, FilteredTrie(trie, [None, some[0]]), FilteredTrie(trie, some)]
    candidates = torch.arange(501)

    def ask(number: int) -> list[Tensor]:
        constraint = constraints[number % 3]
        states = constraint.children(roots(constraint, 1 if number % 3 == 0 else 2)).next_state
        return answers(constraint, states, candidates.expand(len(states), -1))

    expected = [ask(number) for number in range(3)]
    with ThreadPoolExecutor(8) as threads:
        for number, got in enumerate(threads.map(ask, range(48))):
            for mine, other in zip(got, expected[number % 3], strict=True):
                assert torch.equal(mine, other)
