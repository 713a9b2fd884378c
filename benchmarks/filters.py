"""Cost of filters: making one over an index, and a decoding step under one against a step without.

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
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from harness.prefixes import sample_prefixes, walk
from harness.report import COUNT, FOLDER, Spread, benchmark, shown
from harness.timing import Took, in_turn, timed
from harness.titles import index_of_titles, input_options

from genret.decoding.trie.row_filter import FilteredTrie, RowFilter
from genret.decoding.trie.title_trie import TitleTrie
from genret.retrieval.arguments import Restriction
from genret.retrieval.filters.entity_filter import FilterStore
from genret.retrieval.filters.predicate import parse
from genret.retrieval.index.reader import Index

_HEADER = "entity_id\ttitle\tkind\tcode\tyear\n"
_KINDS = 40
_FIRST_YEAR, _YEARS = 1000, 1025
_BRANCHES = (1, 16, 128)
_SELECTIVITIES = (0.5, 0.1, 0.01, 0.001)
_QUERIES, _BEAMS = 32, 4
_CALLS = 5
_DIFFERENT_FILTERS = (1, 2, 8, 32)
_PREDICATES = {
    "dictionary-encoded string, equal": "kind = 'kind 7'",
    "dictionary-encoded string, order": "kind < 'kind 2'",
    "plain string, equal": "code = 'c0000000000000007'",
    "plain string, order": "code < 'c4'",
    "integer, order": "year >= 1990",
}


@benchmark("numpy", "pyarrow", "torch")
@input_options
@click.option("--index", type=FOLDER, help="An index that --keep left behind.")
@click.option("--keep", type=click.Path(path_type=Path), help="Build the index there and leave it.")
@click.option("--repeats", type=COUNT, default=15, help="Measurements of each kind.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure the making of filters and steps under them."""
    torch.set_num_threads(1)
    with index_of_titles(options, write_catalogue, options.keep) as opened:
        return {
            "rows": opened.num_rows,
            "making": making(opened, options.repeats),
            "steps": steps(opened, options.repeats),
        }


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
    maker = FilterStore(index, "cpu", 1 << 40)

    def num_allowed(text: str) -> int:
        restriction = Restriction(parse(text))
        return maker.cache.get_or_make(restriction.key(), lambda: maker.make(restriction)).num_allowed

    def made_twice(text: str) -> tuple[Took, Took]:
        return timed(num_allowed, text), timed(num_allowed, text)

    calls = {name: partial(made_twice, text) for name, text in _PREDICATES.items()}
    # The round that warms up brings the columns into memory.
    taken = in_turn({"clear": maker.cache.clear, **calls}, repeats)
    figures: dict[str, Any] = {}
    for name, text in _PREDICATES.items():
        uncached, cached = zip(*(took.value for took in taken[name]), strict=True)
        figures[name] = {
            "predicate": text,
            "type": str(index.entities.stored_column(text.split()[0]).type),
            "allowed": cached[0].value,
            "uncached_ms": Spread.of([1e3 * took.wall_s for took in uncached]),
            "cached_ms": Spread.of([1e3 * took.wall_s for took in cached]),
        }
    return shown("making", figures)


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
            groups = [prefix[:branches] for prefix in prefixes]
            free = [walk(trie, group) for group in groups]
            narrow = [walk(filtered, group) for group in groups]
            figure = compare(trie, free, filtered, narrow, repeats)
            about = {"allowed": int(mask.sum()), "selectivity": selectivity, "branches": branches}
            figures.append(shown(f"{branches} branches", about | figure))
    figures += several_filters(index, trie, rng, repeats)
    return figures


def compare(
    trie: TitleTrie,
    free: list[torch.Tensor],
    filtered: FilteredTrie,
    narrow: list[torch.Tensor],
    repeats: int,
) -> dict[str, Any]:
    """Time steps from the states of each depth, both ways in turn; a round is one step at every depth."""

    def mean_us(constraint: TitleTrie | FilteredTrie, states: list[torch.Tensor]) -> float:
        seconds = sum(_seconds_per_call(partial(constraint.children, s)) for s in states)
        return 1e6 * seconds / len(states)

    calls = {"unfiltered": partial(mean_us, trie, free), "filtered": partial(mean_us, filtered, narrow)}
    taken = in_turn(calls, repeats)
    us = {side: [took.value for took in column] for side, column in taken.items()}
    return {
        "depths": len(free),
        "unfiltered_us": Spread.of(us["unfiltered"]),
        "filtered_us": Spread.of(us["filtered"]),
        "ratio": Spread.of_ratios(us["filtered"], us["unfiltered"]),
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
        joining = Spread.of([1e6 * timed(FilteredTrie, trie, chosen).wall_s for _ in range(repeats)])
        filtered = FilteredTrie(trie, chosen)
        narrow = [walk(filtered, group, queries) for group in prefixes]
        figure = compare(trie, free, filtered, narrow, repeats)
        about = {"filters_in_batch": number, "joining_us": joining}
        figures.append(shown(f"{_QUERIES} queries of {_BEAMS} branches", about | figure))
    return figures


def _seconds_per_call(call: partial[object]) -> float:
    return statistics.median(timed(call).wall_s for _ in range(_CALLS))


if __name__ == "__main__":
    main()
