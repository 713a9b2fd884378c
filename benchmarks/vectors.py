"""Shortlists of vectors: bytes per title, time of a query, recall and hits beside Flat search.

    python benchmarks/vectors.py                                      # 907,150 titles of English Wikipedia
    python benchmarks/vectors.py --titles six_million.parquet --work /large/disk --keep six_million.index
    python benchmarks/vectors.py --index six_million.index            # again, without building

Queries are titles of the catalogue drawn at random, every other one with one typing error (two where it is
longer than 20 characters), the others without one of their words. Each asks `Shortlister.propose` for 100
entities, alone. The settings (efforts; filters that allow one entity in a hundred or in ten, drawn at random)
take turns in every round, and before each the embedder, which keeps words, is shown other texts. The parts of
a call are the query's embedding, the ordering of the candidates by exact similarities, and the search, which
is the rest. CPU is the processor time of all threads.

`recall@100` is the share of the 100 entities that Flat search gives in the same order by exact similarities:
Flat's vectors are those of all texts before any compression, embedded again and looked at block by block.
`raw` are Flat's 100 nearest by their vectors alone, looked for among the candidates of ours.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness.processes import available_bytes, measured, resident_bytes
from harness.report import Spread, announce, command_line, environment, write_json
from harness.titles import batches, input_options, titles_file, tokenizer_file, write_tsv
from vector_figures.figures import (
    ALL,
    DEPTHS,
    PartTimes,
    Quality,
    hits,
    hits_text,
    part_times,
    qualities,
    quality_text,
    times_text,
)
from vector_figures.flat import FlatAnswer, Mask, search_flat
from vector_figures.proposing import Asked, TimedVectors
from vector_figures.queries import TitleQuery, title_queries

from retrieval.evaluation.methods.lexical import LexicalIndex
from retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from retrieval.index.reader import Index
from retrieval.vectors.faiss_threads import faiss_threads

_BUILD = "from index_builder.cli import build_command; build_command()"
_SIZE = DEPTHS[-1]
_WARM_UP = 50
_SELECTIVITIES = (0.01, 0.1)
# What the words of a title take in bm25s and on the way there.
_BM25_BYTES_PER_ENTITY = 2_000


@dataclass(frozen=True, slots=True)
class Setting:
    """How a query is asked.

    Attributes:
        effort: Cells visited or candidates kept, as the index's kind has it.
        selectivity: Share of entities that a filter allows; 1 without one.
    """

    effort: int
    selectivity: float

    def text(self, stored: int) -> str:
        """Return what to print."""
        own = " (the index's own)" if self.effort == stored else ""
        return f"effort {self.effort}{own}, " + (
            "all entities" if self.selectivity == 1 else f"{self.selectivity:.0%} of the entities"
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one setting.

    Attributes:
        setting: How queries were asked.
        times: By part.
        quality: By kind of query; None without Flat search.
    """

    setting: Setting
    times: dict[str, PartTimes]
    quality: dict[str, Quality] | None


@click.command(context_settings={"show_default": True})
@input_options
@click.option(
    "--index",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="An index with vectors, such as --keep left behind.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Build the index there and leave it.")
@click.option("--queries", "number", type=click.IntRange(min=2), default=200, help="How many are asked.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="All settings take turns in each.")
@click.option(
    "--effort",
    "wished",
    multiple=True,
    type=click.IntRange(min=0),
    show_default="the index's own, and some from few to all cells",
    help="To ask with; may be repeated.",
)
@click.option("--flat/--no-flat", default=True, help="Whether Flat search is computed.")
@click.option("--bm25", is_flag=True, help="Ask bm25s as well, if there is memory for it.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of queries and filters.")
def main(
    data: Path,
    titles: Path | None,
    tokenizer: Path | None,
    limit: int | None,
    work: Path | None,
    json_file: Path | None,
    index: Path | None,
    keep: Path | None,
    number: int,
    rounds: int,
    wished: Sequence[int],
    flat: bool,
    bm25: bool,
    seed: int,
) -> None:
    """Measure the shortlists of an index's vectors."""
    facts = environment("faiss-cpu", "numpy", "scipy", "scikit-learn", "pyarrow", "bm25s")
    announce(facts)
    with tempfile.TemporaryDirectory(dir=work) as folder:
        path = index or keep or Path(folder) / "vectors.index"
        built = None
        if index is None:
            source = Path(folder) / "titles.tsv"
            write_tsv(source, batches(titles_file(data, titles), limit))
            options = ["--tokenizer", str(tokenizer_file(data, tokenizer)), "--out", str(path), "--quiet"]
            usage = measured([sys.executable, "-c", _BUILD, str(source), "--vectors", "lexical", *options])
            built = {"seconds": usage.seconds, "peak_bytes": usage.peak_bytes}
            click.echo(f"built in {usage.seconds:,.0f} s, peak {usage.peak_bytes / (1 << 20):,.0f} MiB")
        with Index.open(path) as opened:
            if opened.vectors is None:
                raise click.ClickException(f"{path} has no vectors: genret update {path} --vectors lexical")
            queries = title_queries(opened, number, seed)
            figures: dict[str, Any] = {"built": built, "queries": number, "seed": seed}
            figures |= _shortlists(opened, queries, rounds, wished, flat, seed)
            if bm25:
                figures["bm25s"] = _bm25(opened, queries)
    write_json(json_file, command_line(), facts, figures)


def _shortlists(
    index: Index, queries: Sequence[TitleQuery], rounds: int, wished: Sequence[int], flat: bool, seed: int
) -> dict[str, Any]:
    """Ask with every setting, in turn, and compare with Flat search."""
    # Not the same titles: a server meets queries that it has not seen.
    others = [query.text for query in title_queries(index, _WARM_UP, seed + 1)]
    before, begun = resident_bytes(), time.perf_counter()
    vectors = TimedVectors(index)
    opening_s = time.perf_counter() - begun
    own = vectors.entry.effort
    masks = _masks(index.num_entities, queries, seed)
    settings = [Setting(effort, 1) for effort in _efforts(vectors, wished)]
    settings += [Setting(own, selectivity) for selectivity in _SELECTIVITIES]
    texts = [query.text for query in queries]
    vectors.ask(others, _SIZE)
    rng = np.random.default_rng(seed)
    asked: dict[Setting, list[list[Asked]]] = {setting: [] for setting in settings}
    for _ in range(rounds):
        for setting, lists in asked.items():
            vectors.meet_others(rng)
            lists.append(vectors.ask(texts, _SIZE, setting.effort, masks[setting.selectivity]))
    figures = _sizes(index, vectors) | {"opening_s": opening_s, "held_bytes": resident_bytes() - before}
    click.echo(f"opened in {opening_s:.2f} s; held {figures['held_bytes'] / (1 << 20):,.0f} MiB")
    compared = _flat(vectors, texts, masks) if flat else None
    found = []
    for setting, lists in asked.items():
        answers = compared and compared[setting.selectivity]
        quality = qualities(queries, lists[0], answers) if answers else None
        found.append(Figures(setting, part_times(lists), quality))
        _show(found[-1], own)
    return figures | {"settings": found}


def _masks(num_entities: int, queries: Sequence[TitleQuery], seed: int) -> dict[float, Mask | None]:
    """Return filters by the share of entities they allow; what is sought is always allowed."""
    rng = np.random.default_rng(seed)
    masks: dict[float, Mask | None] = {1: None}
    for selectivity in _SELECTIVITIES:
        allowed = rng.random(num_entities) < selectivity
        allowed[[query.entity for query in queries]] = True
        masks[selectivity] = allowed
    return masks


def _efforts(vectors: TimedVectors, wished: Sequence[int]) -> list[int]:
    """Return the efforts to ask with: those wished for, or some of all, and the index's own."""
    some = wished or vectors.efforts[-7::2]
    return sorted({vectors.entry.effort, *some})


def _sizes(index: Index, vectors: TimedVectors) -> dict[str, Any]:
    """Return what the vectors are and what they take."""
    entry = vectors.entry
    sizes = {
        file.name: file.bytes for file in index.manifest.files if file.name in (VECTORS_FILE, EMBEDDER_FILE)
    }
    total = sum(sizes.values())
    click.echo(
        f"{index.num_entities:,} entities, {entry.count:,} vectors of {entry.dimensions} dimensions, "
        f"{entry.factory}: {sizes[VECTORS_FILE] / entry.count:.1f} bytes per vector, "
        f"{total / index.num_entities:.1f} per title with the embedder; effort {entry.effort}, "
        f"recall {entry.recall:.1%} by its build"
    )
    return {
        "entities": index.num_entities,
        "vectors": entry,
        "bytes": sizes,
        "bytes_per_vector": sizes[VECTORS_FILE] / entry.count,
        "bytes_per_title": total / index.num_entities,
    }


def _flat(
    vectors: TimedVectors, texts: Sequence[str], masks: dict[float, Mask | None]
) -> dict[float, list[FlatAnswer]]:
    """Search all vectors under all filters, with all cores."""
    count = vectors.texts.count
    begun = time.perf_counter()
    with (
        click.progressbar(length=count, label="Flat search", file=sys.stderr) as bar,
        faiss_threads(len(os.sched_getaffinity(0))),
    ):
        names = {str(selectivity): mask for selectivity, mask in masks.items()}
        found = search_flat(
            vectors.texts, vectors.embedder, vectors.searcher(), texts, _SIZE, names, bar.update
        )
    click.echo(
        f"Flat search of {len(texts)} queries, embedding included: {time.perf_counter() - begun:,.0f} s"
    )
    return {selectivity: found[str(selectivity)] for selectivity in masks}


def _bm25(index: Index, queries: Sequence[TitleQuery]) -> dict[str, Any] | None:
    """Ask bm25s the same, one query at a time."""
    needed = _BM25_BYTES_PER_ENTITY * index.num_entities
    if needed > available_bytes():
        click.echo(f"bm25s left out: it needs some {needed / (1 << 30):.1f} GiB")
        return None
    before, begun = resident_bytes(), time.perf_counter()
    engine = LexicalIndex(index)
    made_s, held = time.perf_counter() - begun, resident_bytes() - before
    engine.propose([queries[0].text], _SIZE)
    wall, cpu, lists = [], [], []
    for query in queries:
        begun, begun_cpu = time.perf_counter(), time.process_time()
        (found,) = engine.propose([query.text], _SIZE)
        cpu.append(1000 * (time.process_time() - begun_cpu))
        wall.append(1000 * (time.perf_counter() - begun))
        lists.append(index.entities.numbers([entity.entity_id for entity in found]))
    shares = hits(queries, lists)
    p50, p95 = (float(np.percentile(wall, q)) for q in (50, 95))
    click.echo(
        f"bm25s: made in {made_s:,.0f} s, held {held / (1 << 20):,.0f} MiB; p50 {p50:,.2f} ms, "
        f"p95 {p95:,.2f} ms, CPU {np.mean(cpu):,.2f} ms; {hits_text(shares)}"
    )
    return {
        "made_s": made_s,
        "held_bytes": held,
        "p50_ms": p50,
        "p95_ms": p95,
        "cpu_ms": Spread.of(cpu).median,
        "hits": shares,
    }


def _show(figures: Figures, own: int) -> None:
    click.echo(f"\n{figures.setting.text(own)}\n  {times_text(figures.times)}")
    for kind, quality in (figures.quality or {}).items():
        click.echo(f"  {kind if kind != ALL else 'all queries'}: {quality_text(quality)}")


if __name__ == "__main__":
    main()
