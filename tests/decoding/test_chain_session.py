"""Chains equal plain forward passes over the same texts, however they are cut, taken back and selected."""

from __future__ import annotations

import pytest
import torch

from genret.decoding.errors import PromptTooLongError
from genret.decoding.model.hf_model import HFLanguageModel
from genret.decoding.model.self_check import exactly
from tests.tree_oracles import Answer, Drive, PlainPasses, drive
from tests.verified_architectures import ARCHITECTURES, build

# Rotary positions with windows and without, learned ones in two kinds, relative ones.
OF_EVERY_KIND = ["llama-gqa", "gemma3", "gpt2", "bart", "t5"]


def error_of(name: str, dtype: torch.dtype, seed: int, share: bool = False, steps: int = 14) -> float:
    run = drive(HFLanguageModel(build(name, dtype)), seed, steps, share)
    assert len(run.answers) > 10
    return PlainPasses(build(name, dtype)).largest_error(run.answers)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chains_equal_plain_passes(name: str) -> None:
    with exactly(torch.float64):
        for seed in range(2):
            assert error_of(name, torch.float64, seed) < 1e-9


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if "bart" not in name and "t5" not in name])
def test_chains_behind_a_shared_prefix_equal_plain_passes(name: str) -> None:
    with exactly(torch.float64):
        assert error_of(name, torch.float64, 5, share=True) < 1e-9


@pytest.mark.parametrize("name", OF_EVERY_KIND)
def test_chains_equal_plain_passes_in_float32(name: str) -> None:
    assert error_of(name, torch.float32, 3) < 1e-4


def test_dead_slots_are_collected() -> None:
    """Tokens taken back again and again take no more room than a constant share of those kept."""
    model = HFLanguageModel(build("llama-gqa", changes={"max_position_embeddings": 400}))
    chains = model.prefill_chains([[5, 9, 11], [40]])
    before = chains.usage.used_bytes
    for length in range(1, 150):
        chains.extend([[4, 5, 6, 7, 8], [9]])
        chains.rewind([length, length // 2])
    usage = chains.usage
    per_slot = before // 3
    assert usage.num_collections > 0
    assert usage.used_bytes <= before + per_slot * (150 * 5 // 4 + 40)
    assert usage.held_bytes <= before + per_slot * 2 * 150
    logits = chains.extend([[12], []])
    answer = Answer((5, 9, 11), (*[4] * 149, 12), logits[0, 0])
    plain = PlainPasses(build("llama-gqa", changes={"max_position_embeddings": 400}))
    assert plain.largest_error([answer]) < 1e-4


def test_selected_chains_go_on_and_leave_the_others_alone() -> None:
    model = HFLanguageModel(build("gpt2"))
    run = Drive(model.prefill_chains([(5, 9), (4,), (8, 8, 8)]), [(5, 9), (4,), (8, 8, 8)], [[], [], []])
    run.extend([[3], [4, 5], []])
    other = Drive(run.session.select([2, 0]), [(8, 8, 8), (5, 9)], [[], [3]])
    other.extend([[7, 7], [9]])
    run.rewind([0, 1, 0])
    run.extend([[6], [6], [6]])
    other.extend([[5], [5, 5, 5]])
    assert PlainPasses(build("gpt2")).largest_error(run.answers + other.answers) < 1e-4


def test_what_chains_refuse() -> None:
    model = HFLanguageModel(build("gpt2", changes={"max_position_embeddings": 16}))
    chains = model.prefill_chains([[5] * 10, [4]])
    with pytest.raises(ValueError, match="one list per query, 2, got 1"):
        chains.extend([[3]])
    with pytest.raises(ValueError, match="at least one token"):
        chains.extend([[], []])
    chains.extend([[3, 3], [3]])
    with pytest.raises(ValueError, match=r"lengths must be in \[0, \[2, 1\]\], got \[2, 2\]"):
        chains.rewind([2, 2])
    with pytest.raises(ValueError, match="lengths must be in"):
        chains.rewind([-1, 0])
    with pytest.raises(PromptTooLongError, match="position 17 of 16: the prompt has 10 tokens and 2 were"):
        chains.extend([[3] * 5, [3]])
    chains.extend([[3] * 4, [3]])
    assert chains.lengths == (6, 2)


def test_a_query_at_the_limit_does_not_hold_up_the_others() -> None:
    prompts = [(5,) * 10, (4,)]
    model = HFLanguageModel(build("gpt2", changes={"max_position_embeddings": 12}))
    run = Drive(model.prefill_chains(prompts), list(prompts), [[], []])
    run.extend([[3, 3], [3]])
    run.extend([[], [3, 6, 8, 9]])
    plain = PlainPasses(build("gpt2", changes={"max_position_embeddings": 12}))
    assert plain.largest_error(run.answers) < 1e-4
