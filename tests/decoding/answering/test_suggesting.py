"""What a draft model proposes: the likeliest allowed tokens, or a draw from the allowed ones."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from decoding.answering.token_choice import MAX_LISTED, ChoicePoint, decide, suggest
from tests.fakes import chi_square

V = 2 * MAX_LISTED + 11  # not a multiple of the words of a mask


def masked(allowed: np.ndarray) -> np.ndarray:
    bits = np.zeros((V + 31) // 32 * 32, dtype=np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def point(query: int, allowed: np.ndarray, temperature: float, seed: int = 0) -> ChoicePoint:
    mask = masked(allowed)
    return ChoicePoint(query, 0, mask, temperature, seed, 3, 1, listed=ChoicePoint.listing(mask))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_suggestions_are_what_decisions_would_be(temperature: float) -> None:
    """Few and many allowed tokens in one call, greedy and drawn ones."""
    rng = np.random.default_rng(0)
    counts = [1, 2, 40, MAX_LISTED, MAX_LISTED + 1, V]
    logits = torch.from_numpy(rng.normal(size=(len(counts), 1, V)).astype(np.float32))
    allowed = [np.sort(rng.choice(V, count, replace=False)) for count in counts]
    points = [
        point(query, tokens, temperature if query % 2 else 0.0, query) for query, tokens in enumerate(allowed)
    ]
    decided = decide(logits, [()] * len(points), points).choices
    for query, (choice, said, tokens) in enumerate(
        zip(decided, suggest(logits, points), allowed, strict=True)
    ):
        assert said.tokens[0] == choice.token
        assert not said.broken
        if points[query].temperature > 0:
            law = torch.softmax(logits[query, 0, torch.from_numpy(tokens)] / temperature, 0)
            assert said.probabilities is not None
            ours = said.probabilities if len(tokens) > MAX_LISTED else said.probabilities[: len(tokens)]
            ours = ours[torch.from_numpy(tokens)] if len(tokens) > MAX_LISTED else ours
            assert torch.allclose(ours, law, atol=1e-6)
        else:
            order = sorted(tokens, key=lambda token: -float(logits[query, 0, token]))
            assert list(said.tokens) == order[: len(said.tokens)]
            assert len(said.tokens) == min(4, len(tokens))


def test_what_is_not_allowed_and_what_has_no_probability_is_not_suggested() -> None:
    logits = torch.full((3, 1, V), -math.inf)
    logits[0, 0, 5] = 1.0
    logits[1, 0, [5, 6]] = 1.0
    points = [point(query, np.array([5, 9]), 0.0) for query in range(2)] + [point(2, np.array([5, 9]), 1.0)]
    first, second, third = suggest(logits, points)
    assert first.tokens == second.tokens == (5,)
    assert (third.tokens, third.broken) == ((), False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_cannot_be_used_are_said_to_be_broken(value: float, temperature: float) -> None:
    logits = torch.zeros(1, 1, V)
    logits[0, 0, 9] = value
    (said,) = suggest(logits, [point(0, np.array([5, 9]), temperature)])
    assert said.broken


def test_draws_have_the_law_they_are_said_to_have() -> None:
    logits = torch.zeros(1000, 1, V)
    logits[:, 0, 7] = 1.0
    tokens = np.array([5, 7, 9])
    said = suggest(logits, [point(seed, tokens, 1.0, seed) for seed in range(1000)])
    law = torch.softmax(torch.tensor([0.0, 1.0, 0.0]), 0).tolist()
    assert (
        chi_square(Counter(one.tokens for one in said), dict(zip(((5,), (7,), (9,)), law, strict=True)))
        > 1e-4
    )
