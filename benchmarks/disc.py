"""DISC: time per draw, exactness, adaptive draws, proposal beams, and what the mass can tell.

    python benchmarks/disc.py                                         # everything, on synthetic titles
    python benchmarks/disc.py --only time --index six_million.index   # wall time over an index of GPT-2 ids
    python benchmarks/disc.py --only time --titles titles.parquet     # or over a list of titles
    python benchmarks/disc.py --only exactness --only adaptive --plot docs/images/disc.png

`time`: a whole request (prompt of 256 tokens) on a random Llama of 102 M parameters that leans towards
titles (`harness/leaning_model.py` says how), fp32, one torch thread: K draws against one, and eight draws
together against eight over the same prompt KV with the same random numbers, with the prefill and without;
runs that needed phase two, which doubles the forwards, are told apart. `exactness`: catalogues whose P_S is
enumerated, against sampling error (parametric bootstrap), the exact law of Algorithm 1 and Theorem 3.1, all
judged together. `adaptive`: adaptive against plain draws at P_L(S) of 0.5, 0.1 and 0.02, on 24 titles and on
3,000: what comes as close to P_S in fewer forwards, tokens or draws. `beams` and `calibration`: the
default model on the dev and test queries of data/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from disc_figures.adaptive import adaptive
from disc_figures.beams import beams
from disc_figures.calibration import calibration
from disc_figures.exactness import exactness
from disc_figures.plot import draw
from disc_figures.sample_retriever import held_out_queries, sample_retriever
from disc_figures.wall_time import wall_time
from harness.report import announce, command_line, environment, write_json
from harness.titles import JSON, TOKENIZER, batches, tokenizer_file
from tokenizers import Tokenizer

from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.index.reader import Index

_SECTIONS = ("time", "exactness", "adaptive", "beams", "calibration")
_VOCAB, _TITLE_TOKENS = 50_257, 8  # GPT-2's vocabulary; mean length of Wikipedia's titles in it
_HIDDEN, _LAYERS = 768, 9


@click.command(context_settings={"show_default": True})
@JSON
@TOKENIZER
@click.option(
    "--titles",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    show_default="synthetic ones",
    help="`time`: titles as Parquet with a column `title`, TSV with such a header, or one per line.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("../shared/data"),
    envvar="GENRET_SHARED_DATA",
    show_envvar=True,
    help="Directory with tokenizers/, for --titles alone.",
)
@click.option(
    "--only", multiple=True, type=click.Choice(_SECTIONS), help="Run this section; may be repeated."
)
@click.option(
    "--index",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="`time`: titles of an index.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=200_000, help="`time`: most titles, but of an index."
)
@click.option("--repeats", type=click.IntRange(min=1), default=9, help="`time`: pairs of measurements.")
@click.option(
    "--results", type=click.IntRange(min=2), default=20_000, help="Results per law compared, at most."
)
@click.option("--runs", type=click.IntRange(min=1), default=50, help="`adaptive`: queries answered alone.")
@click.option("--seeds", type=click.IntRange(min=1), default=3, help="`beams`: seeds.")
@click.option("--queries", type=click.IntRange(min=1), help="`beams`, `calibration`: only so many queries.")
@click.option("--hidden", type=click.IntRange(min=64), default=_HIDDEN, help="`time`: width of the model.")
@click.option("--layers", type=click.IntRange(min=1), default=_LAYERS, help="`time`: depth of the model.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw `exactness` and `adaptive` there."
)
def main(
    data: Path,
    titles: Path | None,
    tokenizer: Path | None,
    json_file: Path | None,
    only: Sequence[str],
    index: Path | None,
    limit: int,
    repeats: int,
    results: int,
    runs: int,
    seeds: int,
    queries: int | None,
    hidden: int,
    layers: int,
    plot: Path | None,
) -> None:
    """Measure DISC."""
    chosen = only or _SECTIONS
    if plot and not {"exactness", "adaptive"} <= set(chosen):
        raise click.UsageError("--plot needs the sections exactness and adaptive")
    torch.set_num_threads(1)
    facts = environment("numpy", "numba", "torch", "transformers")
    announce(facts)
    figures: dict[str, Any] = {}

    def section(name: str, measure: Callable[[], Any]) -> None:
        if name in chosen:
            click.echo(f"\n{name}")
            figures[name] = measure()

    section(
        "time", lambda: _time(index, titles, tokenizer_file(data, tokenizer), limit, hidden, layers, repeats)
    )
    section("exactness", lambda: exactness(results))
    section("adaptive", lambda: adaptive(results, runs))
    if {"beams", "calibration"} & set(chosen):
        asked = held_out_queries(queries)
        with sample_retriever() as retriever:
            section("beams", lambda: beams(retriever, asked, seeds))
            section("calibration", lambda: calibration(retriever, asked))
    if plot:
        draw(plot, figures["exactness"], figures["adaptive"])
        click.echo(f"drawn: {plot}")
    write_json(json_file, command_line(), facts, figures)


def _time(
    index: Path | None,
    titles: Path | None,
    tokenizer: Path,
    limit: int,
    hidden: int,
    layers: int,
    repeats: int,
) -> dict[str, Any]:
    if index is not None:
        with Index.open(index, verify_digests=False) as opened:
            trie = TitleTrie(opened.trie_arrays(), _VOCAB)
            click.echo(f"{opened.num_rows:,} rows of an index")
            return {"rows": opened.num_rows, **wall_time(trie, _VOCAB, hidden, layers, repeats)}
    rows = _synthetic(limit) if titles is None else _tokenised(titles, tokenizer, limit)
    click.echo(f"{len(rows):,} {'synthetic titles' if titles is None else 'titles'}")
    figures = wall_time(TitleTrie.from_rows(rows, _VOCAB), _VOCAB, hidden, layers, repeats)
    return {"rows": len(rows), **figures}


def _synthetic(count: int) -> set[tuple[int, ...]]:
    """Rows with skewed tokens, with shared prefixes as in real titles; the end token is the last id."""
    rng = np.random.default_rng(0)
    ranks = rng.zipf(1.2, size=(count, _TITLE_TOKENS)) % (_VOCAB - 1)
    return {(*row, _VOCAB - 1) for row in ranks.tolist()}


def _tokenised(file: Path, tokenizer: Path, limit: int) -> set[tuple[int, ...]]:
    """Titles as GPT-2 writes them after a prompt, with its end token."""
    if not tokenizer.exists():
        raise click.UsageError(f"no tokenizer at {tokenizer}; --titles needs --data or --tokenizer")
    model = Tokenizer.from_file(str(tokenizer))
    end = model.get_vocab_size() - 1
    return {
        (*encoding.ids, end)
        for batch in batches(file, limit)
        for encoding in model.encode_batch([f" {title}" for title in batch])
    }


if __name__ == "__main__":
    main()
