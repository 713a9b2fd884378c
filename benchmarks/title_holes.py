"""A string that must be one of N titles: attaching it to a schema, its masks, and what peers make of an enum.

    python benchmarks/title_holes.py --sizes 10000 --sizes 100000 --json title_holes.json
    python benchmarks/title_holes.py --titles six_million.parquet --sizes 1000000 --sizes 6000000
    python benchmarks/title_holes.py --index six_million.index --sizes 6000000

The schema is an object of two strings, the first of which must be a title. Every round opens the index's
titles anew, compiles two schemas over them, has 50 titles written token by token and 10 near misses refused.
Peers get the titles as an `enum`, and llguidance also as a `pattern` with its limits raised; they take turns
with genret in every round. Only anonymous memory is counted: mapped files belong to the system.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from harness.grammar_engines import TokenizerFile
from harness.hole_contest import Contest, opened_by_genret, peer_forms, print_figures
from harness.hole_titles import near_misses, sample_titles, walked_titles
from harness.report import announce, command_line, environment, write_json
from harness.titles import input_options, titles_file, tokenizer_file

from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.retrieval.index.reader import Index
from genret.retrieval.text import TextTokenizer


@click.command(context_settings={"show_default": True})
@input_options
@click.option("--sizes", type=click.IntRange(min=100), multiple=True, default=(1_000, 10_000, 100_000))
@click.option(
    "--index",
    "index_dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="An index that is there already, for the size it has.",
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Rounds.")
@click.option(
    "--peer-titles", type=click.IntRange(min=0), default=10_000, help="Most titles peers are given."
)
@click.option("--walks", type=click.IntRange(min=1), default=50, help="Titles written in each round.")
def main(
    data: Path,
    titles: Path | None,
    tokenizer: Path | None,
    limit: int | None,
    work: Path | None,
    json_file: Path | None,
    sizes: tuple[int, ...],
    index_dir: Path | None,
    repeats: int,
    peer_titles: int,
    walks: int,
) -> None:
    """Measure titles inside JSON."""
    model = tokenizer_file(data, tokenizer)
    facts = environment("numpy", "numba", "pyarrow", "xgrammar", "llguidance") | {"tokenizer": model.name}
    announce(facts)
    file = TokenizerFile(model)
    figures: dict[str, Any] = {}
    for size in sizes:
        with _index_of(size, titles_file(data, titles), limit, model, index_dir, work) as index:
            goals = walked_titles(index, walks)
            misses = near_misses(index, goals[:10])
            contest = Contest(file, goals, misses)
            engines = [opened_by_genret(file, index)]
            if index.num_entities <= peer_titles:
                engines += peer_forms(file, index)
            for _ in range(repeats):
                for engine in engines:
                    gc.collect()
                    contest.take_turn(engine)
            figures[f"{index.num_entities}"] = contest.figures()
            print_figures(index.num_entities, figures[f"{index.num_entities}"])
    write_json(json_file, command_line(), facts, figures)


@contextmanager
def _index_of(
    size: int, source: Path, limit: int | None, model: Path, given: Path | None, work: Path | None
) -> Iterator[Index]:
    """Yield an index of so many titles: the one that is given if it has as many, else one of a sample."""
    if given is not None:
        with Index.open(given) as index:
            if index.num_entities == size:
                yield index
                return
    with tempfile.TemporaryDirectory(dir=work) as folder:
        chosen = Path(folder) / "titles.tsv"
        sample_titles(source, limit, size, chosen)
        begun = time.perf_counter()
        tokenizer = TextTokenizer.load(model)
        build_index(chosen, tokenizer, BuildOptions(out=Path(folder) / "it.index"))
        click.echo(f"{size:,} titles: index built in {time.perf_counter() - begun:.1f} s")
        with Index.open(Path(folder) / "it.index") as index:
            yield index


if __name__ == "__main__":
    main()
