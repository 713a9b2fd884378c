"""Decode steps of a random model, for what else a step costs to be compared with."""

from __future__ import annotations

import statistics
import time

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from decoding.hf_model import HFLanguageModel

_PROMPT_TOKENS = 64


def random_llama(vocab_size: int) -> HFLanguageModel:
    """Return a random Llama of about 100 M parameters, embeddings tied, float32."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=9,
        num_attention_heads=12,
        num_key_value_heads=12,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    click.echo(f"random Llama of {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
    return HFLanguageModel(model)


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
