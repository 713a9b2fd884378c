"""A prefix that all requests begin with, run once and shared, or run again in every request."""

from __future__ import annotations

import time
from typing import Any

import click
import torch
from harness.report import Spread
from harness.twin_models import FIRST, Twins

from genret.decoding.language_model import PromptPrefix
from genret.decoding.model.hf_model import HFLanguageModel

PREFIXES, BATCHES, OWN = (448, 1984), (1, 4), 64  # tokens shared, queries at a time, tokens behind the prefix


def shared_prefix(
    twins: Twins, repeats: int, prefixes: tuple[int, ...] = PREFIXES, own: int = OWN
) -> list[dict[str, Any]]:
    """Time until the first token's logits, and keys and values per query, in both ways in turn."""
    model, figures = twins.model(), []
    for tokens in prefixes:
        generator = torch.Generator().manual_seed(tokens)
        written = torch.randint(FIRST, twins.vocab_size, (tokens,), generator=generator).tolist()
        begun = time.perf_counter()
        prefix = model.share_prefix(written)
        once = time.perf_counter() - begun
        assert prefix is not None  # a Llama has no encoder
        for batch in BATCHES:
            behind = torch.randint(FIRST, twins.vocab_size, (batch, own), generator=generator).tolist()
            prompts = [written + part for part in behind]
            figure = _compare(model, prefix, prompts, repeats)
            figure |= {"prefix": tokens, "own": own, "batch": batch, "once_s": once}
            figures.append(figure)
            _describe(figure)
    return figures


def _compare(
    model: HFLanguageModel, prefix: PromptPrefix, prompts: list[list[int]], repeats: int
) -> dict[str, Any]:
    times: dict[bool, list[float]] = {False: [], True: []}
    held, logits = {}, {}
    for n in range(repeats + 1):
        for shared, column in times.items():
            begun = time.perf_counter()
            session = model.prefill(prompts, prefix if shared else None)
            seconds = time.perf_counter() - begun
            if n:  # the first round warms up
                column.append(seconds)
            held[shared] = session.usage.held_bytes / len(prompts)
            logits[shared] = session.root_logits.log_softmax(-1)
    return {
        "shared_s": Spread.of(times[True]),
        "again_s": Spread.of(times[False]),
        "ratio": Spread.of_ratios(times[False], times[True]),
        "shared_bytes": held[True],
        "again_bytes": held[False],
        "prefix_bytes": prefix.kv_bytes,
        "largest_difference": float((logits[True] - logits[False]).abs().max()),
    }


def _describe(figure: dict[str, Any]) -> None:
    click.echo(
        f"prefix of {figure['prefix']} tokens, {figure['own']} of its own, {figure['batch']} queries: first "
        f"token after {figure['shared_s'].text(3)} s shared, {figure['again_s'].text(3)} s run again, "
        f"{figure['ratio'].text(1)} times; KV per query {figure['shared_bytes'] / 1e6:.2f} MB and "
        f"{figure['again_bytes'] / 1e6:.2f} MB, {figure['prefix_bytes'] / 1e6:.2f} MB shared by all; "
        f"log-probabilities differ by up to {figure['largest_difference']:.1e}"
    )
