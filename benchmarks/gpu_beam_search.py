"""Trie beam search on a GPU against `generate`: tokens per second, time per step, peak memory.

    python benchmarks/gpu_beam_search.py                         # random Llamas of 1 and 8 billion parameters
    python benchmarks/gpu_beam_search.py --model 1b --settings 2048/40/1
    python benchmarks/gpu_beam_search.py --tiny                  # checks the script on a CPU, in seconds

The models are random, in bfloat16, built on the device in the shapes of Llama 3.2 1B and Llama 3.1 8B; titles
and peers are those of `beam_search.py`. Memory is the allocator's peak beside the weights. In bfloat16 two
ways of computing the same sum differ by more than beams do, so lists are compared and none has to be equal:
`beam_search.py` asks for that, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import click
import torch
from beam_search import Work, peer, summary
from harness.beam_contest import (
    OURS,
    PLAIN,
    PREFILLED,
    EqualTitles,
    Run,
    Setting,
    SettingType,
    search,
)
from harness.report import COUNT, Spread, benchmark, shown
from harness.timing import in_turn
from harness.twin_models import Sizes, Twins, synchronize

_MODELS = {
    "1b": Sizes(128_256, 2048, 16, 8, 8192, tied=True),
    "8b": Sizes(128_256, 4096, 32, 8, 14_336, tied=False, head_size=128),
}
_SETTINGS = tuple(Setting(prompt, beams) for prompt in (512, 2048) for beams in (5, 15, 40))
_TINY = Sizes(1000, 64, 1, 1, 128)
_TINY_SETTING = Setting(16, 3, 2)


@benchmark("numpy", "torch", "transformers")
@click.option("--model", "names", multiple=True, type=click.Choice(list(_MODELS)), default=tuple(_MODELS))
@click.option(
    "--settings", multiple=True, type=SettingType(), default=_SETTINGS, help="Only this; may be repeated."
)
@click.option("--titles", "number", type=click.IntRange(min=1000), default=100_000, help="Titles.")
@click.option("--repeats", type=COUNT, default=5, help="Rounds; all sides take turns.")
@click.option("--device", default="cuda", help="Where to run.")
@click.option("--tiny", is_flag=True, help="A tiny model on the CPU: checks the script, measures nothing.")
def main(options: SimpleNamespace) -> list[dict[str, Any]] | None:
    """Measure trie beam search on a GPU."""
    where = torch.device("cpu" if options.tiny else options.device)
    if where.type == "cuda" and not torch.cuda.is_available():
        click.echo("no CUDA device on this machine: nothing was measured")
        return None
    chosen = {"tiny": _TINY} if options.tiny else {name: _MODELS[name] for name in options.names}
    figures = []
    for name, sizes in chosen.items():
        twins = Twins.random(sizes, where, torch.bfloat16)
        titles = EqualTitles.make(1000 if options.tiny else options.number, sizes.vocab_size, where)
        click.echo(f"{name}: {twins.num_parameters / 1e9:.2f} G parameters, {titles.number:,} titles")
        for setting in (_TINY_SETTING,) if options.tiny else options.settings:
            repeats = 1 if options.tiny else options.repeats
            figure = {"model": name, **measure(twins, titles, setting, repeats)}
            figures.append(shown(setting.words(), figure))
        del twins, titles
    return figures


def measure(twins: Twins, titles: EqualTitles, setting: Setting, repeats: int) -> dict[str, Any]:
    """Run all sides in turn, after a round that warms up."""
    prompts = setting.prompts(twins.vocab_size).to(twins.stock.device)
    model, work = twins.model(), Work(twins, titles.trie, titles.dictionary, titles.tokens)
    sides: dict[str, Callable[[], Run]] = {
        OURS: lambda: search(model, titles.trie, prompts, setting.beams),
        **{name: peer(work, setting, prompts, name) for name in (PLAIN, PREFILLED)},
    }
    taken = in_turn({name: partial(_measured, side, twins) for name, side in sides.items()}, repeats)
    runs = {name: [took.value for took in column] for name, column in taken.items()}
    failed = {name for name, column in runs.items() if None in column}
    figure: dict[str, Any] = asdict(setting)
    for name, column in runs.items():
        figure[name] = {"failed": "out of memory"} if name in failed else _summary(column, titles, setting)
    for name in (PLAIN, PREFILLED):
        if not {name, OURS} & failed:
            figure[name] |= _against([run for run, _ in runs[name]], [run for run, _ in runs[OURS]])
    return figure


def _measured(side: Callable[[], Run], twins: Twins) -> tuple[Run, int | None] | None:
    """Return a run, and the bytes that were allocated at its peak beside what stood before.

    None: the memory of the device was too small.
    """
    device = twins.stock.device
    if device.type != "cuda":
        return side(), None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        run = side()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return run, torch.cuda.max_memory_allocated(device) - before


def _summary(column: list[tuple[Run, int | None]], titles: EqualTitles, setting: Setting) -> dict[str, Any]:
    runs = [run for run, _ in column]
    tokens = setting.batch * setting.beams * titles.tokens
    peaks = [peak for _, peak in column if peak is not None]
    return {
        **summary(runs),
        "ms_per_step": Spread.of([1e3 * run.decode_s / titles.tokens for run in runs]),
        "tokens_per_s": Spread.of([tokens / run.total_s for run in runs]),
        "decoded_tokens_per_s": Spread.of([tokens / run.decode_s for run in runs]),
        "peak_bytes": max(peaks) if peaks else None,
    }


def _against(runs: list[Run], ours: list[Run]) -> dict[str, Any]:
    shares = [
        len(a.keys() & b.keys()) / max(1, len(a))
        for one, other in zip(ours, runs, strict=True)
        for a, b in zip(one.lists, other.lists, strict=True)
    ]
    return {
        "ratio": Spread.of_ratios([run.total_s for run in runs], [run.total_s for run in ours]),
        "rows_in_common": fmean(shares),
    }


if __name__ == "__main__":
    main()
