"""Trie beam search over a shared token tree: against `generate`, what it costs beside the model, and memory.

    python benchmarks/beam_search.py                                        # everything
    python benchmarks/beam_search.py --only titles --settings 512/15/1 --settings 2048/40/1
    python benchmarks/beam_search.py --only trace --plot docs/images/beam-search-kv.png

The model is a random Llama of 100 M parameters (12 layers, width 768, 12 heads over 4 of keys and values,
32,000 tokens), fp32. A setting is PROMPT/BEAMS/BATCH. `titles`: lists from 100,000 synthetic titles of one
length against transformers' `generate`, with a dictionary trie as `prefix_allowed_tokens_fn`, and against the
same with a prompt that was run once; times, memory, and whether sets and scores agree. `upkeep`: the share of
decoding that is not the model's forward, by component, instrumented. `free`: 100 tokens without a catalogue,
on this model and on the default one. `ablation`: policies of collecting dead branches. `trace`: memory over
the steps of decoding. `prefix`: a few-shot prefix shared by all requests.

The exit status is 1 when a list of ours differs from one of `generate`. Peers that would take too long or too
much memory are left out, and the table says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from beam_search_figures.ablation import ablation
from beam_search_figures.free_outputs import SETTINGS as FREE_SETTINGS
from beam_search_figures.free_outputs import free_outputs
from beam_search_figures.plot import draw
from beam_search_figures.settings import Setting, SettingType
from beam_search_figures.shared_prefix import shared_prefix
from beam_search_figures.tables import tables
from beam_search_figures.title_search import SETTINGS as TITLE_SETTINGS
from beam_search_figures.title_search import title_search
from beam_search_figures.trace import trace
from beam_search_figures.upkeep import SETTINGS as UPKEEP_SETTINGS
from beam_search_figures.upkeep import upkeep
from harness.beam_contest import generate, search
from harness.equal_titles import EqualTitles
from harness.report import announce, command_line, environment, write_json
from harness.titles import JSON
from harness.twin_models import Sizes, Twins

_SECTIONS = ("titles", "upkeep", "free", "ablation", "trace", "prefix")


@click.command(context_settings={"show_default": True})
@JSON
@click.option(
    "--only", multiple=True, type=click.Choice(_SECTIONS), help="Run this section; may be repeated."
)
@click.option(
    "--settings",
    "chosen_settings",
    multiple=True,
    type=SettingType(),
    show_default="each section's own",
    help="`titles`, `upkeep`, `free`: only this; may be repeated.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=3, help="Rounds; all sides take turns.")
@click.option("--threads", type=click.IntRange(min=1), default=1, help="Threads of torch, for all sides.")
@click.option(
    "--max-cell-seconds",
    type=click.FloatRange(min=0),
    default=300.0,
    help="Leave out a peer where one run would take longer.",
)
@click.option("--titles", "number", type=click.IntRange(min=1000), default=100_000, help="Titles.")
@click.option("--new-tokens", type=click.IntRange(min=2), default=100, help="Length of free outputs.")
@click.option(
    "--queries", type=click.IntRange(min=1), default=4, help="`ablation`, `trace`: queries averaged over."
)
@click.option(
    "--prompt", type=click.IntRange(64, 400), default=400, help="`ablation`, `trace`: tokens of prompts."
)
@click.option("--hidden", type=click.IntRange(min=64), default=Sizes().hidden, help="Width of the model.")
@click.option("--layers", type=click.IntRange(min=1), default=Sizes().layers, help="Depth of the model.")
@click.option(
    "--tables",
    "tables_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write tables there.",
)
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw `trace` there.")
def main(
    json_file: Path | None,
    only: Sequence[str],
    chosen_settings: Sequence[Setting],
    repeats: int,
    threads: int,
    max_cell_seconds: float,
    number: int,
    new_tokens: int,
    queries: int,
    prompt: int,
    hidden: int,
    layers: int,
    tables_file: Path | None,
    plot: Path | None,
) -> None:
    """Measure trie beam search."""
    chosen = only or _SECTIONS
    if plot and "trace" not in chosen:
        raise click.UsageError("--plot needs the section trace")
    if hidden % 64:
        raise click.UsageError(f"--hidden must be a multiple of 64, got {hidden}")
    torch.set_num_threads(threads)
    facts = environment("numpy", "numba", "torch", "transformers") | {"threads": threads}
    announce(facts)
    usual = Sizes()
    twins = Twins.random(
        Sizes(
            hidden=hidden,
            layers=layers,
            kv_heads=max(1, hidden // 192),
            intermediate=hidden * usual.intermediate // usual.hidden,
        )
    )
    titles = EqualTitles.make(number, twins.vocab_size)
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

    free, wide = Setting(prompt, 15, queries), Setting(min(512, prompt), 40, queries)
    limits = (repeats, max_cell_seconds)
    section("titles", lambda: title_search(twins, titles, chosen_settings or TITLE_SETTINGS, *limits))
    section("upkeep", lambda: upkeep(twins, titles, chosen_settings or UPKEEP_SETTINGS, repeats))
    section("free", lambda: free_outputs(twins, chosen_settings or FREE_SETTINGS, new_tokens, *limits))
    section("ablation", lambda: ablation(twins, titles, free, wide, new_tokens, repeats))
    section("trace", lambda: trace(twins, titles, free, wide, new_tokens))
    section("prefix", lambda: shared_prefix(twins, repeats))
    if plot:
        draw(plot, figures["trace"])
        click.echo(f"drawn: {plot}")
    if tables_file:
        tables_file.write_text(tables(figures), encoding="utf-8")
        click.echo(f"written: {tables_file}")
    write_json(json_file, command_line(), facts, figures)
    different = [name for name in figures if name in ("titles", "free", "ablation")]
    if any(figures[name]["agreement"]["different"] for name in different):
        click.echo("lists differ", err=True)
        sys.exit(1)


def _warm_up(twins: Twins, titles: EqualTitles) -> None:
    """Let everything be imported, compiled and allocated once."""
    setting = Setting(64, 5)
    prompts = setting.prompts(twins.vocab_size)
    search(twins.model(), titles.trie, prompts, setting.beams)
    generate(twins.stock, prompts, setting.beams, titles.tokens, titles.dictionary)


if __name__ == "__main__":
    main()
