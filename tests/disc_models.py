"""Tiny transformers and a catalogue on which DISC's laws can be enumerated."""

from __future__ import annotations

from functools import cache

from transformers import PreTrainedModel

from genret.decoding.model.hf_model import HFLanguageModel
from tests.tiny_transformers import Enumeration, build, random_prompts, random_titles

# Seeds of weights that give the catalogue a tenth of the probability or more, so that draws get accepted.
SEEDS = {"llama": 4, "gpt2": 10, "bart": 27, "t5": 14}
NAMES = tuple(SEEDS)
VOCAB = 8
ROWS = sorted(random_titles(18, (1, 2), num_letters=5) + random_titles(12, (3,), num_letters=5))
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
