"""Place names that several places share: is the greatest of them first, with its population as its weight?

    python benchmarks/place_names.py --work /large/disk --json place_names.json

The catalogue is the shared data's places, "City, State, Country", with the name alone as an alias. The
queries are the names that the most people live under, of those that several places have and no title is:
nothing in them says which place is meant. The model was not taught these places, so the queries are asked
of beam search, and of `auto` with the ranking that is fitted to the catalogue. The same catalogue without
weights stands beside it, and both indexes' sizes.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
from harness.processes import build_index
from harness.report import COUNT, NEW_FOLDER, benchmark, shown
from harness.titles import DATA

from genret import Retriever
from genret.retrieval.defaults import small_model_dir
from genret.retrieval.linking import Document, LinkOptions, Span, link_documents


@benchmark("generative-retrieval", "torch", "transformers")
@DATA
@click.option("--model", help="Checkpoint directory.", show_default="the small model")
@click.option("--names", "num_names", type=COUNT, default=300, help="Names asked.")
@click.option("--work", type=NEW_FOLDER, required=True, help="For the indexes: 50 MB.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Ask for shared names, with and without weights."""
    work, model = options.work, options.model or str(small_model_dir())
    work.mkdir(parents=True, exist_ok=True)
    source = work / "places.parquet"
    places = _write_places(options.data, source)
    asked = _shared_names(places, options.num_names)
    figures: dict[str, Any] = {"names": len(asked)}
    for kind, arguments in (("without", []), ("with", ["--weight-column", "population"])):
        index = work / f"places-{kind}.index"
        if not index.exists():
            build_index(source, index, "--tokenizer", model, *arguments)
        with Retriever.open(index, model, num_threads=1) as retriever:
            figures[kind] = {
                "beam": _retrieved(retriever, asked, places, "beam"),
                "auto": _retrieved(retriever, asked, places, "auto"),
                "link": _linked(retriever, asked),
                "bytes": retriever.index.manifest.num_bytes,
                "postings": len(retriever.index.postings.entity),
            }
    return shown("weights", figures)


def _retrieved(
    retriever: Retriever, asked: dict[str, str], places: dict[str, tuple[str, float]], method: str
) -> dict[str, int]:
    """Ask for every name as a query; of each list look at the first, and at the first place of that name."""
    counts = {"the greatest is first": 0, "first of its name": 0, "a place of the name is listed": 0}
    for answer in retriever.retrieve(list(asked), k=10, method=method):
        greatest = asked[answer.query]
        namesakes = [c.title for c in answer.candidates if places[c.title][0] == answer.query]
        counts["the greatest is first"] += answer.candidates[0].title == greatest
        counts["first of its name"] += namesakes[:1] == [greatest]
        counts["a place of the name is listed"] += bool(namesakes)
    return counts


def _linked(retriever: Retriever, asked: dict[str, str]) -> dict[str, int]:
    """Link every name as `genret link` links what it finds, in a text of nothing else."""
    texts = [Document("names", n, name, name, (Span(0, len(name)),)) for n, name in enumerate(asked)]
    rows = link_documents(retriever, texts, LinkOptions(candidates="named"))
    return {"the greatest is first": sum(row["title"] == asked[row["mention"]] for row in rows)}


def _write_places(data: Path, file: Path) -> dict[str, tuple[str, float]]:
    """Write the catalogue; return title -> name, population."""
    table = pq.read_table(data / "titles" / "places.parquet", columns=["title", "name", "population"])
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    names = [[name] if name and name != title else [] for title, name, _ in rows]
    aliases = pa.array(names, pa.list_(pa.string()))
    columns = {"title": table["title"], "aliases": aliases, "population": table["population"]}
    pq.write_table(pa.table(columns), file)
    return {title: (name, float(population or 0)) for title, name, population in rows}


def _shared_names(places: dict[str, tuple[str, float]], count: int) -> dict[str, str]:
    """Return name -> title of its greatest place, the names of the most people first."""
    of_name: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for title, (name, population) in places.items():
        of_name[name].append((population, title))
    shared = {
        name: sorted(owners, reverse=True)
        for name, owners in of_name.items()
        if len(owners) > 1 and name not in places and sorted(owners)[-1][0] > sorted(owners)[-2][0]
    }
    ordered = sorted(shared, key=lambda name: (-sum(p for p, _ in shared[name]), name))
    return {name: shared[name][0][1] for name in ordered[:count]}


if __name__ == "__main__":
    main()
