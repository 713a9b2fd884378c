"""DISC on tiny transformers, with one prefix per draw and with several, against plain forward passes.

Statistical tests are seeded, so they pass or fail for good; alpha is the chance that a correct
implementation would have failed at a seed picked blindly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import pytest
import torch
from scipy import stats
from torch import Tensor
from transformers import PreTrainedModel

from genret.decoding.disc import DiscResult, disc
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.params import DiscParams
from genret.decoding.trie.title_trie import TitleTrie
from tests.disc_models import NAMES, PROMPTS, ROWS, SEEDS, TOLERANCE, VOCAB, ours, plain, truth
from tests.tiny_transformers import (
    END,
    PAD,
    Enumeration,
    ForwardMeter,
    Row,
    build,
    random_prompts,
    random_titles,
)

ALPHA = 1e-4


def trie() -> TitleTrie:
    return TitleTrie.from_rows(ROWS, VOCAB)


@cache
def draw(name: str, num_draws: int, num_seeds: int, reject_early: bool = True) -> list[list[DiscResult]]:
    """Results per prompt: `num_seeds` queries of 250 samples each, all prompts in one batch."""
    prompts = [prompt for prompt in PROMPTS for _ in range(num_seeds)]
    params = [
        DiscParams(num_samples=250, num_draws=num_draws, seed=seed, reject_early=reject_early)
        for seed in range(len(prompts))
    ]
    results = disc(ours(name).prefill(prompts), trie(), params)
    assert all(isinstance(result, DiscResult) for result in results)
    return [results[start : start + num_seeds] for start in range(0, len(prompts), num_seeds)]


def rows_of(results: Sequence[DiscResult], accepted_only: bool) -> Counter[Row]:
    return Counter(
        sample.hypothesis.token_ids
        for result in results
        for sample in result.samples
        if sample.accepted or not accepted_only
    )


def chi_square(counts: Mapping[Row, int], law: Mapping[Row, float]) -> float:
    """p-value of the counts under a law; the rarest rows are pooled until five are expected of them."""
    assert set(counts) <= set(law)
    total = sum(counts.values())
    cells: list[tuple[float, int]] = []
    for row in sorted(law, key=lambda row: law[row]):
        cell = (total * law[row], counts.get(row, 0))
        if cells and cells[-1][0] < 5:
            cells[-1] = (cells[-1][0] + cell[0], cells[-1][1] + cell[1])
        else:
            cells.append(cell)
    assert len(cells) > 4
    expected, observed = zip(*cells, strict=True)
    return float(stats.chisquare(observed, expected, sum_check=False).pvalue)


def generate_samples(model: PreTrainedModel, prompt: Sequence[int], number: int) -> Counter[Row]:
    """Plain constrained sampling by Hugging Face."""
    following = {
        row[:depth]: sorted({r[depth] for r in ROWS if r[:depth] == row[:depth] and len(r) > depth})
        for row in ROWS
        for depth in range(len(row))
    }
    written_from = 1 if model.config.is_encoder_decoder else len(prompt)

    def allowed(_: int, written: Tensor) -> list[int]:
        return following.get(tuple(written[written_from:].tolist()), [END])  # [END]: has ended already

    ids = torch.tensor([list(prompt)])
    torch.manual_seed(0)
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=True,
        top_k=0,
        num_return_sequences=number,
        max_new_tokens=max(len(row) for row in ROWS),
        prefix_allowed_tokens_fn=allowed,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    written = output[:, written_from:].tolist()
    return Counter(tuple(tokens[: tokens.index(END) + 1]) for tokens in written)


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_accepted_draws_follow_the_target(name: str) -> None:
    for enumeration, results in zip(truth(name), draw(name, num_draws=16, num_seeds=10), strict=True):
        counts = rows_of(results, accepted_only=True)
        assert sum(counts.values()) > 1000
        assert chi_square(counts, enumeration.target()) > ALPHA


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_one_draw_is_plain_constrained_sampling(name: str) -> None:
    per_prompt = draw(name, num_draws=1, num_seeds=16)
    for enumeration, results in zip(truth(name), per_prompt, strict=True):
        counts = rows_of(results, accepted_only=False)
        assert sum(counts.values()) == 16 * 250
        assert chi_square(counts, enumeration.constrained_law()) > ALPHA
        # The test has power: constrained sampling does not pass for the target.
        assert chi_square(counts, enumeration.target()) < 1e-12


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_one_draw_and_generate_sample_alike(name: str) -> None:
    results = draw(name, num_draws=1, num_seeds=16)[0]
    mine, theirs = rows_of(results, accepted_only=False), generate_samples(plain(name), PROMPTS[0], 2000)
    assert set(theirs) <= set(ROWS)
    common = [row for row in ROWS if theirs[row] >= 5 and mine[row] >= 5]
    table = [[counts[row] for row in common] for counts in (mine, theirs)]
    table = [
        [*cells, sum(counts.values()) - sum(cells)]
        for cells, counts in zip(table, (mine, theirs), strict=True)
    ]
    if table[0][-1] + table[1][-1] < 10:
        table = [cells[:-1] for cells in table]
    assert len(table[0]) > 4
    assert stats.chi2_contingency(table).pvalue > ALPHA


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_draws", [1, 16])
def test_weights_and_logprobs_equal_enumeration(name: str, num_draws: int) -> None:
    per_prompt = draw(name, num_draws, num_seeds=16 if num_draws == 1 else 10)
    for enumeration, results in zip(truth(name), per_prompt, strict=True):
        exact = {row: (enumeration.logprob(row), enumeration.log_weight(row)) for row in ROWS}
        samples = [sample for result in results for sample in result.samples]
        assert len(samples) == 250 * len(results)
        for sample in samples:
            row = sample.hypothesis.token_ids
            assert ROWS[sample.hypothesis.row] == row
            assert abs(sample.hypothesis.logprob - exact[row][0]) < TOLERANCE
            assert abs(sample.log_weight - exact[row][1]) < TOLERANCE
            if sample.accepted:
                assert 1 <= sample.num_draws <= num_draws
            else:
                assert sample.num_draws == (1 if num_draws == 1 else 2 * num_draws)


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reject_early", [True, False])
def test_the_mass_is_estimated_without_bias(name: str, reject_early: bool) -> None:
    """At four standard errors, alpha = 6e-5."""
    per_prompt = draw(name, num_draws=16, num_seeds=10, reject_early=reject_early)
    for enumeration, results in zip(truth(name), per_prompt, strict=True):
        masses = torch.tensor([result.mass for result in results], dtype=torch.float64)
        error = math.hypot(*(result.mass_stderr for result in results)) / len(results)
        assert abs(float(masses.mean()) - enumeration.mass()) < 4 * error


def crowd() -> tuple[list[list[int]], list[DiscParams]]:
    """32 queries, no two alike in prompt, and different in every parameter that may differ."""
    prompts = random_prompts([1 + (7 * index) % 13 for index in range(32)], VOCAB, seed=3)
    params = [
        DiscParams(
            num_samples=1 + index % 5,
            num_draws=1 + index % 7,
            temperature=(1.0, 0.7, 1.5)[index % 3],
            seed=100 - index,
            reject_early=index % 4 != 0,
        )
        for index in range(32)
    ]
    return prompts, params


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_answers_alone_and_in_a_batch_of_32(name: str) -> None:
    prompts, params = crowd()
    together = disc(ours(name).prefill(prompts), trie(), params)
    for prompt, mine, crowded in zip(prompts, params, together, strict=True):
        (alone,) = disc(ours(name).prefill([prompt]), trie(), [mine])
        assert isinstance(alone, DiscResult)
        assert isinstance(crowded, DiscResult)
        assert len(alone.samples) == mine.num_samples
        for left, right in zip(alone.samples, crowded.samples, strict=True):
            assert left.hypothesis.token_ids == right.hypothesis.token_ids
            assert left.hypothesis.row == right.hypothesis.row
            assert left.accepted == right.accepted
            assert left.num_draws == right.num_draws
            assert left.hypothesis.logprob == pytest.approx(right.hypothesis.logprob, abs=TOLERANCE)
            assert left.log_weight == pytest.approx(right.log_weight, abs=TOLERANCE)
        assert alone.num_draws == crowded.num_draws
        assert alone.mass == pytest.approx(crowded.mass, abs=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_other_answers(name: str) -> None:
    answers = [
        [sample.hypothesis.token_ids for sample in result.samples]
        for seed in (1, 2)
        for result in disc(
            ours(name).prefill(PROMPTS[:1]), trie(), [DiscParams(num_samples=40, num_draws=2, seed=seed)]
        )
    ]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("name", NAMES)
def test_one_draw_costs_one_token_per_distinct_live_prefix(name: str) -> None:
    """With K = 1 every draw is returned, so the results say which prefixes were alive."""
    model = build(name, VOCAB, SEEDS[name])
    language_model = HFLanguageModel(model)
    meter = ForwardMeter(model)
    session = language_model.prefill(PROMPTS[:1])
    num_prompt_passes = len(meter.decoder)
    (result,) = disc(session, trie(), [DiscParams(num_samples=60, num_draws=1, seed=5)])
    written = [sample.hypothesis.token_ids for sample in result.samples]
    depths = range(1, max(map(len, written)))
    live = [len({row[:depth] for row in written if len(row) > depth}) for depth in depths]
    assert meter.decoder[num_prompt_passes:] == [(1, count) for count in live]
    assert result.num_steps == len(live)


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
    results = disc(session, trie(), params)
    assert len(meter.encoder) == int(model.config.is_encoder_decoder)
    assert selected == [0, 2]  # some result of 20 has all its draws refused
    first, second = meter.decoder[phases[0] : phases[1]], meter.decoder[phases[1] :]
    assert 0 < len(first) < max(map(len, ROWS))
    assert {queries for queries, _ in first} == {3}
    assert {queries for queries, _ in second} <= {2}
    assert {result.num_steps for result in results} == {len(meter.decoder) - 1}
    # Both phases together compute no prefix twice, however many draws there are.
    num_prefixes = sum(truth(name)[0].num_prefixes(depth) for depth in range(1, max(map(len, ROWS))))
    assert all(0 < result.num_nodes <= num_prefixes for result in results)


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_sweep_of_catalogues_prompts_and_temperatures(name: str, temperature: float) -> None:
    """96 chi-squares at alpha / 4 each: 2.4e-3 for the sweep."""
    for seed in range(4):
        rows = random_titles(40, (1, 2, 3), num_letters=4, seed=seed)
        prompts = random_prompts([11, 2], VOCAB, seed)
        params = [
            DiscParams(num_samples=250, num_draws=32, temperature=temperature, seed=number)
            for number in range(36)
        ]
        batch = [prompt for prompt in prompts for _ in range(18)]
        results = disc(ours(name).prefill(batch), TitleTrie.from_rows(rows, VOCAB), params)
        for index, prompt in enumerate(prompts):
            counts = rows_of(results[18 * index : 18 * index + 18], accepted_only=True)
            assert sum(counts.values()) > 200
            law = Enumeration(plain(name), prompt, rows, temperature).target()
            assert chi_square(counts, law) > ALPHA / 4


def draw_by_beams(name: str, beam_size: int, **params) -> list[DiscResult]:
    """All prompts in one batch."""
    trie = TitleTrie.from_rows(ROWS, VOCAB)
    requests = [DiscParams(beam_size=beam_size, seed=seed, **params) for seed in range(len(PROMPTS))]
    results = disc(ours(name).prefill(PROMPTS), trie, requests)
    assert all(isinstance(result, DiscResult) for result in results)
    return results


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam_size", [2, 5])
def test_weights_and_logprobs_of_beams_equal_enumeration(name: str, beam_size: int) -> None:
    results = draw_by_beams(name, beam_size, num_samples=100, num_draws=3)
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
    for enumeration, result in zip(truth(name), draw_by_beams(name, len(ROWS), num_samples=4), strict=True):
        assert {s.hypothesis.token_ids for s in result.samples} == {enumeration.ranking()[0][1]}
        assert result.mass == pytest.approx(enumeration.mass(), rel=TOLERANCE)
        assert result.mass_stderr < 1e-9
        assert result.mass_upper >= enumeration.mass() * (1 - TOLERANCE)


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beam_size", [2, 6])
def test_beams_estimate_the_mass_without_bias(name: str, beam_size: int) -> None:
    """At four standard errors, alpha = 6e-5."""
    results = draw_by_beams(name, beam_size, num_samples=250, num_draws=4)
    for enumeration, result in zip(truth(name), results, strict=True):
        assert 0 < result.mass_stderr < 0.1 * enumeration.mass()
        assert abs(result.mass - enumeration.mass()) < 4 * result.mass_stderr


@pytest.mark.statistical
@pytest.mark.parametrize("name", NAMES)
def test_larger_beams_propose_likelier_rows(name: str) -> None:
    means = []
    for beam_size in (1, 2, 4, 8):
        results = draw_by_beams(name, beam_size, num_samples=250, num_draws=1)
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
