"""What filters cost: making one over an index, and a decoding step under one against a step without.

    python benchmarks/filters.py                                      # 907,150 titles of English Wikipedia
    python benchmarks/filters.py --titles six_million.parquet --work /large/disk --keep six_million.index
    python benchmarks/filters.py --index six_million.index            # again, without building

The index gets three metadata columns: `kind`, of a few dozen values and therefore dictionary-encoded, `code`,
nearly unique text, and `year`, an integer. A step lists the exact children of 1, 16 or 128 branches, which
stand on prefixes of allowed rows, 1 to 6 tokens deep, and then of 32 queries with 1 to 32 different filters;
both ways in turn, one torch thread.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from harness.prefixes import sample_prefixes, walk
from harness.processes import measured
from harness.report import Spread, announce, command_line, environment, write_json
from harness.titles import batches, input_options, titles_file, tokenizer_file

from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.filters.entity_filter import EntityFilter, FilterCache, FilterMaker
from genret.retrieval.filters.predicate import parse
from genret.retrieval.filters.restriction import Restriction
from genret.retrieval.index.reader import Index

_BUILD = "from genret.index_builder.cli import build_command; build_command()"
_HEADER = "entity_id\ttitle\tkind\tcode\tyear\n"
_KINDS = 40
_FIRST_YEAR, _YEARS = 1000, 1025
_BRANCHES = (1, 16, 128)
_SELECTIVITIES = (0.5, 0.1, 0.01, 0.001)
_QUERIES, _BEAMS = 32, 4
_DIFFERENT_FILTERS = (1, 2, 8, 32)
_PREDICATES = {
    "dictionary-encoded string, equal": "kind = 'kind 7'",
    "dictionary-encoded string, order": "kind < 'kind 2'",
    "plain string, equal": "code = 'c0000000000000007'",
    "plain string, order": "code < 'c4'",
    "integer, order": "year >= 1990",
}


@click.command(context_settings={"show_default": True})
@input_options
@click.option(
    "--index",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="An index that --keep left behind.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Build the index there and leave it.")
@click.option("--repeats", type=click.IntRange(min=1), default=15, help="Measurements of each kind.")
def main(
    data: Path,
    titles: Path | None,
    tokenizer: Path | None,
    limit: int | None,
    work: Path | None,
    json_file: Path | None,
    index: Path | None,
    keep: Path | None,
    repeats: int,
) -> None:
    """Measure the making of filters and steps under them."""
    torch.set_num_threads(1)
    facts = environment("numpy", "pyarrow", "torch")
    announce(facts)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = index or keep or Path(folder) / "filters.index"
        if index is None:
            source = Path(folder) / "titles.tsv"
            write_catalogue(source, batches(titles_file(data, titles), limit))
            options = ["--tokenizer", str(tokenizer_file(data, tokenizer)), "--out", str(path), "--quiet"]
            measured([sys.executable, "-c", _BUILD, str(source), "--evidence", "none", *options])
        with Index.open(path, verify_digests=False) as opened:
            click.echo(f"{opened.num_rows:,} rows of {opened.num_entities:,} entities")
            figures = {
                "rows": opened.num_rows,
                "making": making(opened, repeats),
                "steps": steps(opened, repeats),
            }
    write_json(json_file, command_line(), facts, figures)


def write_catalogue(file: Path, titles: Iterable[list[str]]) -> None:
    """Write a TSV file whose metadata follows from the number of each title."""
    rng = np.random.default_rng(0)
    number = 0
    with file.open("w", encoding="utf-8") as out:
        out.write(_HEADER)
        for batch in titles:
            kinds = (rng.zipf(1.3, len(batch)) % _KINDS).tolist()
            years = (_FIRST_YEAR + rng.integers(0, _YEARS, len(batch))).tolist()
            codes = rng.integers(0, 1 << 63, len(batch)).tolist()
            for title, kind, year, code in zip(batch, kinds, years, codes, strict=True):
                out.write(f"E{number}\t{title}\tkind {kind}\tc{code:016x}\t{year}\n")
                number += 1


def making(index: Index, repeats: int) -> dict[str, Any]:
    """Time filters from the text of a predicate to prefix counts, in turn, and again from the cache."""
    maker, cache = FilterMaker(index, "cpu"), FilterCache(1 << 40)
    cold: dict[str, list[float]] = {name: [] for name in _PREDICATES}
    warm: dict[str, list[float]] = {name: [] for name in _PREDICATES}
    allowed: dict[str, int] = {}
    for n in range(repeats + 1):
        cache.clear()
        for name, text in _PREDICATES.items():

            def get(text: str = text) -> EntityFilter:
                restriction = Restriction(parse(text))
                return cache.get_or_make(restriction.key(), lambda: maker.make(restriction))

            first, second = _seconds(get), _seconds(get)
            allowed[name] = get().num_allowed
            if n:  # the first round brings the columns into memory
                cold[name].append(1e3 * first)
                warm[name].append(1e3 * second)
    figures: dict[str, Any] = {}
    for name, text in _PREDICATES.items():
        uncached, again = Spread.of(cold[name]), Spread.of(warm[name])
        column = text.split()[0]
        figures[name] = {
            "predicate": text,
            "type": str(index.entities.stored_column(column).type),
            "allowed": allowed[name],
            "uncached_ms": uncached,
            "cached_ms": again,
        }
        click.echo(
            f"{name} ({text}, {figures[name]['type']}): {uncached.text()} ms, cached {again.text(4)} ms; "
            f"{allowed[name]:,} entities"
        )
    return figures


def steps(index: Index, repeats: int) -> list[dict[str, Any]]:
    """Compare steps under filters of several selectivities with unfiltered ones."""
    trie = TitleTrie(index.trie_arrays(), index.vocab_size)
    rng = np.random.default_rng(0)
    figures: list[dict[str, Any]] = []
    for selectivity in _SELECTIVITIES:
        mask = rng.random(index.num_rows) < selectivity
        filtered = FilteredTrie(trie, [RowFilter.from_mask(mask)])
        prefixes = sample_prefixes(index, np.flatnonzero(mask), max(_BRANCHES), rng)
        for branches in _BRANCHES:
            figures.append(
                {
                    "allowed": int(mask.sum()),
                    "selectivity": selectivity,
                    "branches": branches,
                    **compare_steps(trie, filtered, [p[:branches] for p in prefixes], repeats),
                }
            )
            click.echo(_describe_step(figures[-1]))
    figures += several_filters(index, trie, rng, repeats)
    return figures


def compare_steps(
    trie: TitleTrie, filtered: FilteredTrie, prefixes: list[list[tuple[int, ...]]], repeats: int
) -> dict[str, Any]:
    """Time steps from the same prefixes both ways."""
    free = [walk(trie, group) for group in prefixes]
    narrow = [walk(filtered, group) for group in prefixes]
    return compare(trie, free, filtered, narrow, repeats)


def compare(
    trie: TitleTrie,
    free: list[torch.Tensor],
    filtered: FilteredTrie,
    narrow: list[torch.Tensor],
    repeats: int,
) -> dict[str, Any]:
    """Time steps from the states of each depth, both ways in turn; a round is one step at every depth."""
    sides: list[list[float]] = [[], []]
    for n in range(repeats + 1):
        times = [
            sum(_seconds_per_call(partial(c.children, s)) for s in states)
            for c, states in ((trie, free), (filtered, narrow))
        ]
        if n:  # the first round warms up
            for side, seconds in zip(sides, times, strict=True):
                side.append(seconds / len(free))
    return {
        "depths": len(free),
        "unfiltered_us": Spread.of([1e6 * s for s in sides[0]]),
        "filtered_us": Spread.of([1e6 * s for s in sides[1]]),
        "ratio": Spread.of_ratios(sides[1], sides[0]),
    }


def several_filters(
    index: Index, trie: TitleTrie, rng: np.random.Generator, repeats: int
) -> list[dict[str, Any]]:
    """Time batches whose queries have different filters: making the constraint, and one step.

    All filters allow one row in ten and a set of common rows, on whose prefixes the branches stand.
    """
    common = rng.random(index.num_rows) < 0.01
    masks = [common | (rng.random(index.num_rows) < 0.1) for _ in range(max(_DIFFERENT_FILTERS))]
    filters = [RowFilter.from_mask(mask) for mask in masks]
    prefixes = sample_prefixes(index, np.flatnonzero(common), _QUERIES * _BEAMS, rng)
    queries = torch.arange(_QUERIES).repeat_interleave(_BEAMS)
    free = [walk(trie, group) for group in prefixes]
    figures = []
    for number in _DIFFERENT_FILTERS:
        chosen = [filters[query % number] for query in range(_QUERIES)]
        joining = Spread.of([1e6 * _seconds(lambda: FilteredTrie(trie, chosen)) for _ in range(repeats)])  # noqa: B023
        filtered = FilteredTrie(trie, chosen)
        narrow = [walk(filtered, group, queries) for group in prefixes]
        figures.append(
            {
                "filters_in_batch": number,
                "joining_us": joining,
                **compare(trie, free, filtered, narrow, repeats),
            }
        )
        click.echo(
            f"{_QUERIES} queries of {_BEAMS} branches, {number} different filters: joining them "
            f"{joining.text(0)} us, {_describe_ratio(figures[-1])}"
        )
    return figures


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _seconds_per_call(call: Callable[[], object], calls: int = 5) -> float:
    return statistics.median(_seconds(call) for _ in range(calls))


def _describe_step(figure: dict[str, Any]) -> str:
    branches, selectivity = figure["branches"], figure["selectivity"]
    return f"{branches:>4} branches, {selectivity:.1%} of the rows: {_describe_ratio(figure)}"


def _describe_ratio(figure: dict[str, Any]) -> str:
    return (
        f"unfiltered {figure['unfiltered_us'].text(0)} us, filtered {figure['filtered_us'].text(0)} us, "
        f"ratio {figure['ratio'].text()}"
    )


if __name__ == "__main__":
    main()
