"""Trie beam search over a shared token tree against `generate`: time, memory, and whether lists agree.

    python benchmarks/beam_search.py                                        # everything
    python benchmarks/beam_search.py --only titles --settings 512/15/1 --settings 2048/40/1

The model is a random Llama of 100 M parameters (12 layers, width 768, 12 heads over 4 of keys and values,
32,000 tokens), fp32. A setting is PROMPT/BEAMS/BATCH. `titles`: lists from 100,000 synthetic titles of one
length against transformers' `generate`, with a dictionary trie as `prefix_allowed_tokens_fn`, and against the
same with a prompt that was run once; times, memory, and whether sets and scores agree. `free`: 100 tokens
without a catalogue, on this model and on the default one. `prefix`: a few-shot prefix shared by all requests.

The exit status is 1 when a list of ours differs from one of `generate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import click
import torch
from harness.beam_contest import (
    OURS,
    PLAIN,
    PREFILLED,
    Agreement,
    EqualTitles,
    Run,
    Setting,
    generate,
    search,
)
from harness.dictionary_trie import Node
from harness.report import COUNT, Spread, benchmark, shown
from harness.sample_data import SMALL_MODEL, sample_prompts
from harness.timing import in_turn, timed
from harness.twin_models import END, FIRST, Sizes, Twins
from torch import Tensor

from genret.decoding.constraints import Constraint
from genret.decoding.free_text import FreeText
from genret.decoding.language_model import PromptPrefix
from genret.decoding.model.hf_model import HFLanguageModel

TOLERANCE = 1e-3  # float32, sums of up to a hundred log-probabilities in the hundreds
_SECTIONS = ("titles", "free", "prefix")
_TITLES = (
    *(Setting(64, beams, 8) for beams in (5, 15, 40)),
    *(Setting(prompt, beams) for prompt in (64, 512, 2048) for beams in (5, 15, 40)),
)
_FREE = tuple(Setting(prompt, beams) for prompt in (64, 400) for beams in (9, 15))
# Tokens shared, queries at a time, tokens behind the prefix.
_PREFIXES, _BATCHES, _OWN = (448, 1984), (1, 4), 64


def _differing(figures: dict[str, Any], _options: SimpleNamespace) -> str | None:
    compared = [figures[name]["agreement"] for name in ("titles", "free") if name in figures]
    return "lists differ" if any(agreement["different"] for agreement in compared) else None


@benchmark("numpy", "numba", "torch", "transformers", check=_differing)
@click.option(
    "--only", multiple=True, type=click.Choice(_SECTIONS), help="Run this section; may be repeated."
)
@click.option(
    "--settings",
    multiple=True,
    type=Setting.parse,
    metavar="PROMPT/BEAMS/BATCH",
    show_default="each section's own",
    help="`titles`, `free`: only this; may be repeated.",
)
@click.option("--repeats", type=COUNT, default=3, help="Rounds; all sides take turns.")
@click.option("--threads", type=COUNT, default=1, help="Threads of torch, for all sides.")
@click.option("--titles", "number", type=click.IntRange(min=1000), default=100_000, help="Titles.")
@click.option("--new-tokens", type=click.IntRange(min=2), default=100, help="Length of free outputs.")
@click.option("--hidden", type=click.IntRange(min=64), default=Sizes().hidden, help="Width of the model.")
@click.option("--layers", type=COUNT, default=Sizes().layers, help="Depth of the model.")
@click.option("--device", default="cpu", help="`titles`: where to run.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure trie beam search."""
    chosen, hidden, repeats = options.only or _SECTIONS, options.hidden, options.repeats
    if hidden % 64:
        raise click.UsageError(f"--hidden must be a multiple of 64, got {hidden}")
    torch.set_num_threads(options.threads)
    usual = Sizes()
    intermediate = hidden * usual.intermediate // usual.hidden
    sizes = Sizes(
        hidden=hidden, layers=options.layers, kv_heads=max(1, hidden // 192), intermediate=intermediate
    )
    twins = Twins.random(sizes, options.device)
    titles = EqualTitles.make(options.number, twins.vocab_size, options.device)
    click.echo(
        f"random Llama of {twins.num_parameters / 1e6:.1f} M parameters, {twins.token_bytes:,} bytes of keys "
        f"and values per token; {titles.number:,} titles of {titles.tokens} tokens"
    )
    _warm_up(twins, titles)
    figures: dict[str, Any] = {}

    def section(name: str, measure: Callable[[], Any]) -> None:
        if name in chosen:
            click.echo(f"\n{name}")
            figures[name] = measure()

    section("titles", lambda: title_search(twins, titles, options))
    section("free", lambda: free_outputs(twins, options))
    section("prefix", lambda: shared_prefix(twins, repeats))
    return figures


def _warm_up(twins: Twins, titles: EqualTitles) -> None:
    """Let everything be imported, compiled and allocated once."""
    setting = Setting(64, 5)
    prompts = setting.prompts(twins.vocab_size).to(twins.stock.device)
    search(twins.model(), titles.trie, prompts, setting.beams)
    generate(twins.stock, prompts, setting.beams, titles.tokens, titles.dictionary)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Search that all sides do."""

    twins: Twins
    constraint: Constraint
    dictionary: Node | None
    new_tokens: int


def compete(work: Work, setting: Setting, prompts: Tensor, options: SimpleNamespace) -> dict[str, Any]:
    """Run all sides in turn. Shape of the prompts: (batch, prompt), int64."""
    model, beams = work.twins.model(), setting.beams
    asked = (work.twins.stock, prompts, beams, work.new_tokens, work.dictionary)
    sides: dict[str, Callable[[], Run]] = {
        OURS: partial(search, model, work.constraint, prompts, beams),
        PLAIN: partial(generate, *asked),
        PREFILLED: partial(generate, *asked, prefilled=True),
    }
    taken = in_turn(sides, options.repeats, warm_up=0)
    runs = {name: [took.value for took in column] for name, column in taken.items()}
    peers = {name: _against(runs[name], runs[OURS]) for name in (PLAIN, PREFILLED)}
    return shown(
        setting.words(), {"setting": setting.text(), **asdict(setting), OURS: summary(runs[OURS]), **peers}
    )


def summary(runs: list[Run]) -> dict[str, Any]:
    """Return times, and bytes of keys and values."""
    return {
        "total_s": Spread.of([run.total_s for run in runs]),
        "prefill_s": Spread.of([run.prefill_s for run in runs]),
        "decode_s": Spread.of([run.decode_s for run in runs]),
        "kv_bytes": max(run.kv_bytes for run in runs),
    }


def _against(runs: list[Run], ours: list[Run]) -> dict[str, Any]:
    agreements = [Agreement.of(a.lists, b.lists) for a, b in zip(ours, runs, strict=True)]
    found = summary(runs)
    return {
        **found,
        "ratio": Spread.of_ratios([run.total_s for run in runs], [run.total_s for run in ours]),
        "kv_share": max(run.kv_bytes for run in ours) / found["kv_bytes"],
        "same_rows": all(agreement.same_rows for agreement in agreements),
        "agrees": all(agreement.holds(TOLERANCE) for agreement in agreements),
        "largest_difference": max(agreement.largest_difference for agreement in agreements),
    }


def agreement(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Count the comparisons with peers, and name those where rows or scores differ."""
    peers = [(cell, name) for cell in cells for name in (PLAIN, PREFILLED)]
    figures = {
        "compared": len(peers),
        "different": [f"{cell['setting']} {name}" for cell, name in peers if not cell[name]["agrees"]],
        "largest_difference": max(cell[name]["largest_difference"] for cell, name in peers),
    }
    return shown("lists", figures)


def title_search(twins: Twins, titles: EqualTitles, options: SimpleNamespace) -> dict[str, Any]:
    """Search the titles at several settings."""
    work = Work(twins, titles.trie, titles.dictionary, titles.tokens)
    cells = [
        compete(work, setting, setting.prompts(twins.vocab_size).to(twins.stock.device), options)
        for setting in options.settings or _TITLES
    ]
    return {"titles": titles.number, "cells": cells, "agreement": agreement(cells)}


def free_outputs(twins: Twins, options: SimpleNamespace) -> dict[str, Any]:
    """Search free outputs at several settings, on a random model and on the small one behind real queries.

    Beams of random weights need not have ancestors in common as those of a trained model have, and what they
    share is what a tree saves.
    """
    new_tokens = options.new_tokens
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, model in (("random", twins), ("default", Twins.load(SMALL_MODEL))):
        click.echo(f"{name} model of {model.num_parameters / 1e6:.1f} M parameters, {new_tokens} new tokens")
        work = Work(model, FreeText(model.vocab_size, new_tokens, END, new_tokens), None, new_tokens)
        figures[name] = []
        for setting in options.settings or _FREE:
            prompts = (
                sample_prompts(setting.prompt, setting.batch)
                if name == "default"
                else setting.prompts(model.vocab_size)
            )
            figures[name].append(compete(work, setting, prompts, options))
    return {"new_tokens": new_tokens, **figures, "agreement": agreement([*chain(*figures.values())])}


def shared_prefix(twins: Twins, repeats: int) -> list[dict[str, Any]]:
    """Time until the first token's logits, and keys and values per query, in both ways in turn."""
    model, figures = twins.model(), []
    for tokens in _PREFIXES:
        generator = torch.Generator().manual_seed(tokens)
        written = torch.randint(FIRST, twins.vocab_size, (tokens,), generator=generator).tolist()
        once, _, prefix = timed(model.share_prefix, written)
        assert prefix is not None  # a Llama has no encoder
        for batch in _BATCHES:
            behind = torch.randint(FIRST, twins.vocab_size, (batch, _OWN), generator=generator).tolist()
            prompts = [written + part for part in behind]
            figure = _compare_prefix(model, prefix, prompts, repeats)
            figure |= {"prefix": tokens, "own": _OWN, "batch": batch, "once_s": once}
            figures.append(shown(f"prefix of {tokens} tokens, {batch} queries", figure))
    return figures


def _compare_prefix(
    model: HFLanguageModel, prefix: PromptPrefix, prompts: list[list[int]], repeats: int
) -> dict[str, Any]:
    ways = {"again": lambda: model.prefill(prompts), "shared": lambda: model.prefill(prompts, prefix)}
    taken = in_turn(ways, repeats)
    times = {way: [took.wall_s for took in column] for way, column in taken.items()}
    again, shared = (taken[way][-1].value for way in ("again", "shared"))
    apart = shared.root_logits.log_softmax(-1) - again.root_logits.log_softmax(-1)
    return {
        "prefix_bytes": prefix.kv_bytes,
        "shared_bytes": shared.usage.held_bytes / len(prompts),
        "again_bytes": again.usage.held_bytes / len(prompts),
        "shared_s": Spread.of(times["shared"]),
        "again_s": Spread.of(times["again"]),
        "ratio": Spread.of_ratios(times["again"], times["shared"]),
        "largest_difference": float(apart.abs().max()),
    }


if __name__ == "__main__":
    main()
