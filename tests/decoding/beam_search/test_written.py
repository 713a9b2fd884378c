"""Back pointers: texts put together at the end are those that were written token by token."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.beam_search.beams import Written


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**9), levels=st.booleans())
def test_texts_are_what_branches_wrote(seed, levels):
    """Frontiers of many widths, in order of depth or at any level, against lists of tokens."""
    rng = random.Random(seed)
    queries = rng.randint(1, 3)
    written, texts = Written(), [[[()]] for _ in range(queries)]  # per query, per depth: texts of branches
    for _ in range(rng.randint(0, 12)):
        deepest = len(texts[0])
        depth = rng.randint(1, deepest) if levels else deepest
        if depth == deepest:
            for query in range(queries):
                texts[query].append([])
        width = rng.randint(1, 4)
        parents = [[rng.randrange(len(texts[q][depth - 1])) for _ in range(width)] for q in range(queries)]
        tokens = [[rng.randrange(50) for _ in range(width)] for _ in range(queries)]
        first = written.add(depth, torch.tensor(parents), torch.tensor(tokens))
        for query in range(queries):
            assert first == len(texts[query][depth])
            above = texts[query][depth - 1]
            texts[query][depth] += [
                (*above[p], t) for p, t in zip(parents[query], tokens[query], strict=True)
            ]
    wanted = [
        (query, depth + 1, slot)
        for query in range(queries)
        for depth, level in enumerate(texts[query])
        for slot in range(len(level))
    ]
    query, length, slot = np.array(wanted, dtype=np.int64).T
    found = written.texts(query, length, slot, np.arange(len(wanted)))
    assert found == [(*texts[q][n - 1][s], number) for number, (q, n, s) in enumerate(wanted)]


@pytest.mark.parametrize("written", [Written()])
def test_no_texts_of_nothing(written: Written):
    nothing = np.zeros(0, dtype=np.int64)
    assert written.texts(nothing, nothing, nothing, nothing) == []


def test_deep_texts_take_no_recursion():
    written = Written()
    for depth in range(1, 5001):
        written.add(depth, torch.tensor([[0]]), torch.tensor([[depth]]))
    (text,) = written.texts(*(np.array([n]) for n in (0, 5001, 0, 5001)))
    assert text == tuple(range(1, 5002))
