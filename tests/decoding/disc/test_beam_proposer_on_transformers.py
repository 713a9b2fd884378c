"""Draws that keep several prefixes on tiny transformers, against plain forward passes.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import math

import pytest
import torch

from decoding.disc import DiscResult, disc
from decoding.model.hf_model import HFLanguageModel
from decoding.params import DiscParams
from decoding.trie.title_trie import TitleTrie
from tests.disc_models import NAMES, PROMPTS, ROWS, SEEDS, TOLERANCE, VOCAB, ours, truth
from tests.tiny_transformers import build, random_prompts


def draw(name: str, beam_size: int, **params) -> list[DiscResult]:
    """All prompts in one batch."""
    trie = TitleTrie.from_rows(ROWS, VOCAB)
    requests = [DiscParams(beam_size=beam_size, seed=seed, **params) for seed in range(len(PROMPTS))]
    results = disc(ours(name).prefill(PROMPTS), trie, requests)
    assert all(isinstance(result, DiscResult) for result in results)
    return results


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam_size", [2, 5])
def test_weights_and_logprobs_equal_enumeration(name: str, beam_size: int) -> None:
    results = draw(name, beam_size, num_samples=100, num_draws=3)
    for enumeration, result in zip(truth(name), results, strict=True):
        assert len(result.samples) == 100
        assert len({s.accepted for s in result.samples}) == 2  # both phases gave results
        for s in result.samples:
            row = s.hypothesis.token_ids
            assert ROWS[s.hypothesis.row] == row
            assert abs(s.hypothesis.logprob - enumeration.logprob(row)) < TOLERANCE
            assert abs(s.log_weight - enumeration.log_weight(row)) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_a_beam_as_large_as_the_set_finds_the_best_row_and_the_mass(name: str) -> None:
    for enumeration, result in zip(truth(name), draw(name, len(ROWS), num_samples=4), strict=True):
        assert {s.hypothesis.token_ids for s in result.samples} == {enumeration.ranking()[0][1]}
        assert result.mass == pytest.approx(enumeration.mass(), rel=TOLERANCE)
        assert result.mass_stderr < 1e-9
        assert result.mass_upper >= enumeration.mass() * (1 - TOLERANCE)


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam_size", [2, 6])
def test_the_mass_is_estimated_without_bias(name: str, beam_size: int) -> None:
    """At four standard errors, alpha = 6e-5."""
    results = draw(name, beam_size, num_samples=250, num_draws=4)
    for enumeration, result in zip(truth(name), results, strict=True):
        assert 0 < result.mass_stderr < 0.1 * enumeration.mass()
        assert abs(result.mass - enumeration.mass()) < 4 * result.mass_stderr


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_larger_beams_propose_likelier_rows(name: str) -> None:
    means = []
    for beam_size in (1, 2, 4, 8):
        results = draw(name, beam_size, num_samples=250, num_draws=1)
        logprobs = [s.hypothesis.logprob for result in results for s in result.samples]
        means.append(math.fsum(logprobs) / len(logprobs))
    assert means == sorted(means)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_answers_alone_and_in_a_batch(name: str) -> None:
    prompts = random_prompts([1 + (7 * index) % 13 for index in range(16)], VOCAB, seed=3)
    params = [
        DiscParams(num_samples=1 + i % 4, num_draws=1 + i % 5, beam_size=3, seed=40 - i) for i in range(16)
    ]
    trie = TitleTrie.from_rows(ROWS, VOCAB)
    together = disc(ours(name).prefill(prompts), trie, params)
    for prompt, mine, crowded in zip(prompts, params, together, strict=True):
        (alone,) = disc(ours(name).prefill([prompt]), trie, [mine])
        assert len(alone.samples) == mine.num_samples
        for left, right in zip(alone.samples, crowded.samples, strict=True):
            assert left.hypothesis.token_ids == right.hypothesis.token_ids
            assert (left.accepted, left.num_draws) == (right.accepted, right.num_draws)
        assert alone.mass == pytest.approx(crowded.mass, abs=TOLERANCE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_in_double_precision_a_device_draws_what_the_processor_draws() -> None:
    params = [DiscParams(num_samples=20, num_draws=3, beam_size=4, seed=seed) for seed in (1, 2, 3)]
    here, there = (
        disc(
            HFLanguageModel(build("llama", VOCAB, SEEDS["llama"]).double().to(device)).prefill(PROMPTS),
            TitleTrie.from_rows(ROWS, VOCAB, device),
            params,
        )
        for device in ("cpu", "cuda")
    )
    for left, right in zip(here, there, strict=True):
        assert [s.hypothesis.row for s in left.samples] == [s.hypothesis.row for s in right.samples]
        assert left.mass == pytest.approx(right.mass, rel=1e-9)
