"""The titles a benchmark works on, and the options that name them."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click
import pyarrow.parquet as pq

from genret.retrieval.index.reader import Index
from harness.processes import build_index
from harness.report import COUNT, FILE, FOLDER

_Command = TypeVar("_Command", bound=Callable[..., Any])
_BATCH = 1 << 16

DATA = click.option(
    "--data",
    type=FOLDER,
    default=Path("../shared/data"),
    envvar="GENRET_SHARED_DATA",
    show_envvar=True,
    help="Directory with titles/, queries/, el/, schemas/ and tokenizers/.",
)
TITLES = click.option(
    "--titles",
    type=FILE,
    show_default="titles/wikipedia_en.parquet below --data",
    help="Titles: Parquet with a column `title`, TSV with such a header, or one title per line. A list of "
    "6,000,000: scripts/expand_titles.py below --data.",
)
TOKENIZER = click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, exists=True),
    show_default="tokenizers/gpt2.tokenizer.json below --data",
    help="A tokenizer.json or a checkpoint directory.",
)
LIMIT = click.option("--limit", type=COUNT, help="Use only the first so many titles.")
WORK = click.option(
    "--work",
    type=FOLDER,
    show_default="the system's temporary directory",
    help="Where scratch files go; they are removed. It needs about 3 GB for 6,000,000 titles.",
)


def input_options(command: _Command) -> _Command:
    """Add the options `data`, `titles`, `tokenizer`, `limit` and `work`."""
    for option in (WORK, LIMIT, TOKENIZER, TITLES, DATA):
        command = option(command)
    return command


def titles_file(options: SimpleNamespace) -> Path:
    """Return the file that titles are read from."""
    return options.titles or options.data / "titles" / "wikipedia_en.parquet"


def tokenizer_file(options: SimpleNamespace) -> Path:
    """Return the tokenizer to use."""
    return options.tokenizer or options.data / "tokenizers" / "gpt2.tokenizer.json"


def chosen_titles(options: SimpleNamespace) -> Iterator[list[str]]:
    """Yield the titles that options name, in batches."""
    return batches(titles_file(options), options.limit)


def batches(file: Path, limit: int | None = None) -> Iterator[list[str]]:
    """Yield the titles of a file in batches."""
    left = limit if limit is not None else 1 << 62
    for batch in _parquet(file) if file.suffix == ".parquet" else _lines(file):
        if left <= 0:
            return
        yield batch[:left]
        left -= len(batch)


@contextmanager
def index_of_titles(
    options: SimpleNamespace, write: Callable[[Path, Iterator[list[str]]], object], kept: Path | None = None
) -> Iterator[Index]:
    """Open the index that the option `index` names, else one that is built of the titles, without evidence.

    `write` makes a TSV file of them; `kept` is where the index is left.
    """
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        path = options.index or kept or Path(folder) / "titles.index"
        if options.index is None:
            source = Path(folder) / "titles.tsv"
            write(source, chosen_titles(options))
            build_index(source, path, "--tokenizer", tokenizer_file(options), "--evidence", "none")
        with Index.open(path, verify_digests=False) as opened:
            click.echo(f"{opened.num_rows:,} rows of {opened.num_entities:,} entities")
            yield opened


def json_lines(file: Path) -> Iterator[Any]:
    """Yield the values of a gzipped file of JSON lines."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_tsv(file: Path, titles: Iterator[list[str]]) -> int:
    """Write a TSV file with the one column `title`; return the number of titles."""
    number = 0
    with file.open("w", encoding="utf-8") as out:
        out.write("title\n")
        for batch in titles:
            out.writelines(f"{title}\n" for title in batch)
            number += len(batch)
    return number


def _parquet(file: Path) -> Iterator[list[str]]:
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(_BATCH, columns=["title"]):
            yield batch.column(0).to_pylist()


def _lines(file: Path) -> Iterator[list[str]]:
    batch: list[str] = []
    column = 0
    with file.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines):
            cells = line.removesuffix("\n").split("\t")
            if number == 0 and "title" in cells:
                column = cells.index("title")
                continue
            batch.append(cells[column])
            if len(batch) == _BATCH:
                yield batch
                batch = []
    if batch:
        yield batch
