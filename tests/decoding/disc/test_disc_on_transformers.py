"""DISC on tiny transformers, with one prefix per draw and with several, against plain forward passes."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from genret.decoding.disc import DiscResult, disc
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.beam_oracles import inner_prefixes
from tests.tiny_transformers import Enumeration, ForwardMeter, build, random_prompts, random_titles

# Seeds of weights that give the catalogue a tenth of the probability or more, so that draws get accepted.
SEEDS = {"llama": 4, "gpt2": 10, "bart": 27, "t5": 14}
NAMES = tuple(SEEDS)
VOCAB = 8
ROWS = sorted(random_titles(18, (1, 2), num_letters=5) + random_titles(12, (3,), num_letters=5))
TRIE = TitleTrie.from_rows(ROWS, VOCAB)
PROMPTS = random_prompts([7, 3, 1], VOCAB)
TOLERANCE = 1e-4  # float32, sums of up to four logarithms


@cache
def plain(name: str) -> PreTrainedModel:
    """The model as transformers runs it."""
    return build(name, VOCAB, SEEDS[name])


@cache
def ours(name: str) -> HFLanguageModel:
    return HFLanguageModel(build(name, VOCAB, SEEDS[name]))


@cache
def truth(name: str) -> list[Enumeration]:
    return [Enumeration(plain(name), prompt, ROWS) for prompt in PROMPTS]


@cache
def draw(name: str, num_draws: int, num_seeds: int, beam_size: int = 1) -> list[list[DiscResult]]:
    """Results per prompt: `num_seeds` queries of 250 samples each, 100 of beams, all prompts in one batch."""
    prompts = [prompt for prompt in PROMPTS for _ in range(num_seeds)]
    params = [
        DiscParams(250 if beam_size == 1 else 100, num_draws, seed=seed, beam_size=beam_size)
        for seed in range(len(prompts))
    ]
    results = disc(ours(name).prefill(prompts), TRIE, params)
    assert all(isinstance(result, DiscResult) for result in results)
    return [results[start : start + num_seeds] for start in range(0, len(prompts), num_seeds)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("num_draws", "beam_size"), [(1, 1), (16, 1), (3, 2), (3, 5)])
def test_weights_and_logprobs_equal_enumeration(name: str, num_draws: int, beam_size: int) -> None:
    per_prompt = draw(name, num_draws, 16 if num_draws == 1 else 10, beam_size)
    for enumeration, results in zip(truth(name), per_prompt, strict=True):
        exact = {row: (enumeration.logprob(row), enumeration.log_weight(row)) for row in ROWS}
        samples = [sample for result in results for sample in result.samples]
        assert len(samples) == (250 if beam_size == 1 else 100) * len(results)
        for sample in samples:
            row = sample.hypothesis.token_ids
            assert ROWS[sample.hypothesis.row] == row
            assert abs(sample.hypothesis.logprob - exact[row][0]) < TOLERANCE
            assert abs(sample.log_weight - exact[row][1]) < TOLERANCE
            if sample.accepted:
                assert 1 <= sample.num_draws <= num_draws
            else:
                assert sample.num_draws == (1 if num_draws == 1 else 2 * num_draws)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_run_once_for_both_phases(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name, VOCAB, SEEDS[name])
    language_model = HFLanguageModel(model, pack_frontiers=False)
    meter = ForwardMeter(model)
    session = language_model.prefill(PROMPTS)
    width = max(map(len, PROMPTS))
    if model.config.is_encoder_decoder:
        assert meter.encoder == [(3, width)]
        width = len(language_model.decoder_prompt)
    assert meter.decoder == [(3, width)]
    phases = [len(meter.decoder)]
    select, selected = session.select, []

    def noted(queries: list[int], branches: bool = False) -> TreeSession:
        phases.append(len(meter.decoder))
        selected.extend(queries)
        return select(queries, branches)

    monkeypatch.setattr(session, "select", noted)
    # One draw each and no second phase for the query in the middle: the others go on without it.
    params = [DiscParams(num_samples=20, num_draws=draws, seed=seed) for seed, draws in enumerate((3, 1, 3))]
    results = disc(session, TRIE, params)
    assert len(meter.encoder) == int(model.config.is_encoder_decoder)
    assert selected == [0, 2]  # some result of 20 has all its draws refused
    first, second = meter.decoder[phases[0] : phases[1]], meter.decoder[phases[1] :]
    assert 0 < len(first) < max(map(len, ROWS))
    assert {queries for queries, _ in first} == {3}
    assert {queries for queries, _ in second} <= {2}
    assert {result.num_steps for result in results} == {len(meter.decoder) - 1}
    # Both phases together compute no prefix twice, however many draws there are.
    assert all(0 < result.num_nodes <= len(inner_prefixes(ROWS)) for result in results)


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
