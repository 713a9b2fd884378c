"""The best columns, the likeliest tokens, scores under a penalty and what a prefix may still become."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding.beam_search.candidates import top_tokens
from decoding.beam_search.scoring import Scoring, best_columns
from decoding.params import BeamParams
from tests.no_sync import no_sync

CPU = torch.device("cpu")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    rows=st.integers(1, 4),
    columns=st.sampled_from([1, 2, 9, 511, 512, 513, 2000]),
    count=st.sampled_from([1, 2, 7, 40, 600]),
    values=st.sampled_from([1, 3, 50, 10**6]),
    missing=st.sampled_from([0.0, 0.5, 0.999, 1.0]),
)
def test_the_best_columns_are_the_leftmost_of_the_largest(seed, rows, columns, count, values, missing):
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(values, (rows, columns), generator=generator).double()
    table[torch.rand(rows, columns, generator=generator) < missing] = -math.inf
    with no_sync():
        best = best_columns(table, count)
    for row, found, places in zip(table.tolist(), best.values.tolist(), best.columns.tolist(), strict=True):
        order = sorted((c for c in range(columns) if row[c] > -math.inf), key=lambda c: (-row[c], c))[:count]
        assert places[: len(order)] == order
        assert found == [row[c] for c in order] + [-math.inf] * (count - len(order))
        assert all(0 <= place < columns for place in places)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    vocab=st.sampled_from([1, 31, 64, 333, 1000, 4097]),
    count=st.integers(1, 60),
    values=st.sampled_from([1, 4, 10**6]),
)
def test_the_likeliest_tokens_are_those_of_topk(seed, vocab, count, values):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(values, (3, vocab), generator=generator).float()
    logits[torch.rand(3, vocab, generator=generator) < 0.2] = -math.inf
    count = min(count, vocab)
    with no_sync():
        found, tokens = top_tokens(logits, count)
    assert torch.equal(found, logits.topk(count, dim=1).values)
    assert torch.equal(found, logits.gather(1, tokens))
    assert all(len(set(row)) == count for row in tokens.tolist())


@settings(max_examples=200, deadline=None)
@given(
    penalty=st.floats(-4, 4),
    prefix=st.lists(st.floats(0, 9), min_size=1, max_size=6),
    rest=st.lists(st.floats(0, 9), min_size=1, max_size=6),
    longer=st.integers(0, 5),
)
def test_no_row_scores_better_than_a_prefix_of_it_promises(penalty, prefix, rest, longer):
    length = len(prefix) + len(rest)
    scoring = Scoring([BeamParams(length_penalty=penalty), BeamParams()], length + longer, CPU)
    before = -torch.tensor([[sum(prefix)]] * 2, dtype=torch.float64)
    after = before - sum(rest)
    promised, reached = scoring.optimistic(before, len(prefix)), scoring.scores(after, length)
    assert (promised >= reached * (1 - 1e-12)).all() or (promised >= reached).all()
    assert reached[0].item() == pytest.approx(float(after[0]) / length**penalty)
    assert reached[1].item() == after[1].item()


@pytest.mark.parametrize(("penalty", "length"), [(1.5, 9), (-1.5, 4), (0.0, 7)])
def test_a_promise_is_kept_by_the_row_that_costs_nothing_more(penalty: float, length: int):
    """Long rows where length is rewarded, and else the next token ends the row."""
    scoring = Scoring([BeamParams(length_penalty=penalty)], 9, CPU)
    logprob = torch.tensor([[-5.0, -math.inf]], dtype=torch.float64)
    assert scoring.optimistic(logprob, 3)[0].tolist() == [
        pytest.approx(-5.0 / length**penalty),
        -math.inf,
    ]


def test_without_a_penalty_scores_are_log_probabilities():
    scoring = Scoring([BeamParams(), BeamParams(3)], 9, CPU)
    logprob = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64)
    assert scoring.scores(logprob, 5) is logprob
    assert scoring.optimistic(logprob, 5) is logprob
