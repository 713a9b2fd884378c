"""Decode steps of a random model, for what else a step costs to be compared with."""

from __future__ import annotations

import statistics
import time

import torch

from genret.decoding.model.hf_model import HFLanguageModel

_PROMPT_TOKENS = 64


def mean_step_seconds(model: HFLanguageModel, branches: int, num_steps: int) -> float:
    """Return the mean time of the first steps of so many branches behind a prompt of 64 tokens."""
    session = model.prefill([torch.randint(model.vocab_size, (_PROMPT_TOKENS,)).tolist()])
    parents, seconds = torch.zeros(1, branches, dtype=torch.int64), []
    for _ in range(num_steps):
        tokens = torch.randint(model.vocab_size, (1, branches))
        begun = time.perf_counter()
        session.step(parents, tokens)
        seconds.append(time.perf_counter() - begun)
        parents = torch.arange(branches).unsqueeze(0)
    return statistics.fmean(seconds)
