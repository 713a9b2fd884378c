"""Vectors of an index: bytes, time of a query, and what the search effort loses beside a look at everything.

    python benchmarks/vectors.py --vectors encoder:MODEL              # 907,150 titles of English Wikipedia
    python benchmarks/vectors.py --vectors encoder:MODEL --keep titles.index
    python benchmarks/vectors.py --index titles.index                 # again, without building

Queries are titles of the catalogue drawn at random, every other one with a typing error, the others without
one of their words. Each is asked alone for 100 entities. The settings (efforts; filters that allow one
entity in a hundred or in ten, drawn at random) take turns in every round. Embedding is timed apart from the
search; `similarities` is the time for 100 entities drawn at random. CPU is the processor time of all threads.

`recall@100` is the share of the 100 entities that full effort finds, `first` that of the known items (queries
whose title full effort finds first) that are found first; hits are those of the title that was meant. An
effort is the number of cells visited or candidates kept, 0 for everything; times are medians over queries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from harness.processes import build_index
from harness.report import COUNT, FOLDER, Spread, benchmark, shown
from harness.timing import Took, in_turn, timed
from harness.titles import chosen_titles, input_options, tokenizer_file, write_tsv

from genret.retrieval.index.layout import VECTORS_FILE
from genret.retrieval.index.reader import Index
from genret.retrieval.noise import typo
from genret.retrieval.vectors.embedder import open_embedder
from genret.retrieval.vectors.faiss_index import efforts, faiss_threads, open_vectors, vectors_entry
from genret.retrieval.vectors.vector_search import VectorSearcher

IntArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

SIZE = 100
DEPTHS = (1, 10, 100)
_SELECTIVITIES = (0.01, 0.1)


@dataclass(frozen=True, slots=True)
class TitleQuery:
    """A query and the number of the entity whose title was meant."""

    text: str
    entity: int


def title_queries(index: Index, number: int, seed: int) -> list[TitleQuery]:
    """Return damaged titles drawn at random, no entity twice.

    Raises:
        click.ClickException: too few titles can be damaged.
    """
    random = Random(seed)
    queries: list[TitleQuery] = []
    for entity in random.sample(range(index.num_entities), index.num_entities):
        title = index.entity(entity).title
        words = title.split()
        if len(queries) % 2 and len(words) > 1:
            del words[random.randrange(len(words))]
            text = " ".join(words)
        else:
            text = typo(title, random)
        if text != title:
            queries.append(TitleQuery(text, entity))
        if len(queries) == number:
            return queries
    raise click.ClickException(f"expected titles for {number} queries, got {len(queries)}")


@benchmark("faiss-cpu", "numpy", "torch", "pyarrow")
@input_options
@click.option("--vectors", help="What makes the vectors of an index that is built, such as encoder:MODEL.")
@click.option("--index", type=FOLDER, help="With vectors.")
@click.option("--keep", type=click.Path(path_type=Path), help="Build the index there and leave it.")
@click.option("--queries", "number", type=click.IntRange(min=2), default=200, help="How many are asked.")
@click.option("--rounds", type=COUNT, default=3, help="All settings take turns in each.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Of queries and filters.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Measure the vectors of an index."""
    if (options.vectors is None) == (options.index is None):
        raise click.UsageError("expected either --vectors, to build an index, or --index")
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        path, built = options.index or options.keep or Path(folder) / "vectors.index", None
        if options.vectors is not None:
            source = Path(folder) / "titles.tsv"
            write_tsv(source, chosen_titles(options))
            arguments = ["--tokenizer", tokenizer_file(options), "--evidence", "none"]
            usage = build_index(source, path, "--vectors", options.vectors, *arguments)
            built = shown("built", {"seconds": usage.seconds, "peak_bytes": usage.peak_bytes})
        with Index.open(path) as opened:
            queries = title_queries(opened, options.number, options.seed)
            figures = measure(opened, queries, options.rounds, options.seed)
    return {"built": built, "queries": options.number, "seed": options.seed, **figures}


def measure(index: Index, queries: Sequence[TitleQuery], rounds: int, seed: int) -> dict[str, Any]:
    """Ask with every setting, in turn, and compare with full effort."""
    entry, stored = vectors_entry(index), open_vectors(index)
    searcher, embedder = VectorSearcher(stored, index.num_entities, entry.effort), open_embedder(entry)
    file = index.manifest.file(VECTORS_FILE)
    stored_bytes = 0 if file is None else file.bytes
    embedding_ms, vectors = [], []
    for query in queries:
        embedded = timed(embedder.embed_queries, [query.text])
        vectors.append(embedded.value[0])
        embedding_ms.append(1000 * embedded.wall_s)
    draw = np.random.default_rng(seed)
    meant = [query.entity for query in queries]
    settings: list[tuple[int, float, Mask | None]] = [(0, 1, None)]
    settings += [(effort, 1, None) for effort in sorted({entry.effort, *efforts(stored)} - {0})]
    for selectivity in _SELECTIVITIES:
        allowed = draw.random(index.num_entities) < selectivity
        allowed[meant] = True
        settings.append((entry.effort, selectivity, allowed))
    few = [draw.integers(0, index.num_entities, SIZE) for _ in queries]

    def searches(mask: Mask | None, effort: int) -> list[Took]:
        return [timed(searcher.search, vector, SIZE, mask, effort) for vector in vectors]

    def similarities() -> list[Took]:
        return [timed(searcher.similarities, v, f) for v, f in zip(vectors, few, strict=True)]

    calls: dict[str, Callable[[], list[Took]]] = {
        **{str(at): partial(searches, mask, effort) for at, (effort, _, mask) in enumerate(settings)},
        "similarities": similarities,
    }
    with faiss_threads(1):
        full = [[searcher.search(v, SIZE, mask, 0).entities for v in vectors] for _, _, mask in settings]
        taken = in_turn(calls, rounds, warm_up=0)

    def median_ms(name: str, clock: str) -> Spread:
        rounds = ([getattr(one, clock) for one in took.value] for took in taken[name])
        return Spread.of([1000 * float(np.median(seconds)) for seconds in rounds])

    listed = []
    for at, (effort, selectivity, _) in enumerate(settings):
        found = [one.value.entities for one in taken[str(at)][-1].value]
        recall, first, hits = quality(meant, found, full[at])
        setting = {"effort": effort, "selectivity": selectivity}
        times = {"search_ms": median_ms(str(at), "wall_s"), "cpu_ms": median_ms(str(at), "cpu_s")}
        listed.append({**setting, **times, "recall": recall, "first": first, "hits": hits})
    figures = {
        "entry": entry,
        "bytes": stored_bytes,
        "embedding_ms": float(np.median(embedding_ms)),
        "similarities_ms": median_ms("similarities", "wall_s"),
        "settings": listed,
    }
    return shown("vectors", figures)


def quality(
    meant: Sequence[int], found: Sequence[IntArray], full: Sequence[IntArray]
) -> tuple[float, float, dict[int, float]]:
    """Return the recall beside full effort, the share of known items found first, and hits by depth."""
    recall = [
        len(np.intersect1d(one, all_)) / max(len(all_), 1) for one, all_ in zip(found, full, strict=True)
    ]
    known = [i for i, all_ in enumerate(full) if len(all_) and all_[0] == meant[i]]
    first = [bool(len(found[i])) and found[i][0] == meant[i] for i in known]
    hits = {
        depth: float(np.mean([entity in one[:depth] for entity, one in zip(meant, found, strict=True)]))
        for depth in DEPTHS
    }
    return float(np.mean(recall)), float(np.mean(first)) if first else 1.0, hits


if __name__ == "__main__":
    main()
