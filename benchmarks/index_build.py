"""Build an index over real titles and measure time, peak memory and bytes per title.

    python benchmarks/index_build.py --data ../shared/data

The data directory holds titles/wikipedia_en.parquet (column `title`) and tokenizers/gpt2.tokenizer.json. Each
build is a process of its own, as a user would start it; its peak memory is what the kernel reports for it.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet as pq

from decoding.trie_arrays import derive_trie
from index_builder.sort import sort_rows
from retrieval.index.layout import ENTITIES_FILE, ROWS_DIR, TRIE_FILE
from retrieval.index.reader import Index
from retrieval.index.verification import verify
from retrieval.text import Rendering, TextTokenizer

_BUILD = "from index_builder.cli import build_command; build_command()"
_SAMPLE = 1000
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """One build process.

    Attributes:
        seconds: Wall time.
        cpu_seconds: User and system time over all threads.
        peak_bytes: Largest resident set.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


@click.command(context_settings={"show_default": True})
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("../shared/data"),
    envvar="GENRET_SHARED_DATA",
    show_envvar=True,
    help="Directory with titles/ and tokenizers/.",
)
@click.option("--titles", default="wikipedia_en", help="Name of the titles file.")
@click.option("--tokenizer", default="gpt2", help="Name of the tokenizer file.")
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first so many titles.")
def main(data: Path, titles: str, tokenizer: str, limit: int | None) -> None:
    """Build twice, verify, read titles back, print the figures."""
    texts = (
        pq.read_table(data / "titles" / f"{titles}.parquet", columns=["title"]).column("title").to_pylist()
    )
    texts = texts[:limit]
    tokenizer_file = data / "tokenizers" / f"{tokenizer}.tokenizer.json"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "wikipedia_titles.tsv"
        source.write_text("title\n" + "\n".join(texts) + "\n", encoding="utf-8")
        runs = [
            build(source, tokenizer_file, Path(folder) / name) for name in ("first.index", "second.index")
        ]
        first, second = (Path(folder) / name for name in ("first.index", "second.index"))
        compare(first, second)
        report = verify(first)
        if not report.ok:
            raise click.ClickException(f"verify: {report.problems}")
        read_back(first, TextTokenizer.load(tokenizer_file), texts)
        describe(first, runs)


def build(source: Path, tokenizer: Path, out: Path) -> Run:
    arguments = [str(source), "--out", str(out), "--tokenizer", str(tokenizer), "--quiet"]
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", _BUILD, *arguments])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"the build failed with status {process.returncode}")
    seconds = time.perf_counter() - begun
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def compare(first: Path, second: Path) -> None:
    """Fail unless both indexes hold the same files with the same bytes."""
    ours, theirs = ({p.relative_to(i): p for p in i.rglob("*") if p.is_file()} for i in (first, second))
    if set(ours) != set(theirs) or any(ours[n].read_bytes() != theirs[n].read_bytes() for n in ours):
        raise click.ClickException("the second build differs from the first")
    click.echo(f"second build: byte-identical ({len(ours)} files)")


def read_back(path: Path, tokenizer: TextTokenizer, texts: list[str]) -> None:
    """Fail unless random titles come back token for token."""
    chosen = random.Random(0).sample(texts, min(_SAMPLE, len(texts)))
    rows = tokenizer.encode_titles(chosen, Rendering())
    with Index.open(path) as index:
        for text, row in zip(chosen, rows, strict=True):
            rank = index.row_of(row or ())
            if rank < 0 or index.row_token_ids(rank) != tuple(row or ()) or index.surface(rank) != text:
                raise click.ClickException(f"{text!r} did not come back")
    click.echo(f"round trip: {len(chosen)} random titles, token for token")


def describe(path: Path, runs: list[Run]) -> None:
    with Index.open(path) as index:
        counts, files = index.manifest.counts, index.manifest.files
        tokens, offsets = index.rows.flat()
        vocab_size = index.vocab_size
    shuffled = np.random.default_rng(0).permutation(counts.rows)
    rows = [tokens[offsets[r] : offsets[r + 1]] for r in shuffled.tolist()]
    mixed, mixed_offsets = np.concatenate(rows), np.cumsum([0, *map(len, rows)])
    sort_seconds = timed(lambda: sort_rows(mixed, mixed_offsets, vocab_size))
    trie_seconds = timed(lambda: derive_trie(tokens, offsets))
    parts = {
        "whole index": sum(f.bytes for f in files),
        "trie.arrow (the constraint)": sum(f.bytes for f in files if f.name == TRIE_FILE),
        "rows/": sum(f.bytes for f in files if f.name.startswith(ROWS_DIR)),
        "entities.arrow": sum(f.bytes for f in files if f.name == ENTITIES_FILE),
    }
    figures = {
        "titles": counts.rows,
        "tokens per title, end token included": round(counts.tokens / counts.rows, 2),
        "trie nodes per title": round(counts.nodes / counts.rows, 2),
        "build, wall seconds": [round(run.seconds, 1) for run in runs],
        "build, CPU seconds": [round(run.cpu_seconds, 1) for run in runs],
        "build, peak RSS MiB": [round(run.peak_bytes / _MIB) for run in runs],
        "of it sorting, seconds": round(sort_seconds, 2),
        "of it deriving the trie, seconds": round(trie_seconds, 2),
        "open with digests, seconds": round(timed(lambda: Index.open(path).close()), 3),
        "open without digests, seconds": round(timed(lambda: Index.open(path, False).close()), 3),
        "verify, seconds": round(timed(lambda: verify(path)), 2),
        **{f"bytes per title, {name}": round(size / counts.rows, 2) for name, size in parts.items()},
    }
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "pyarrow", "tokenizers"))
    click.echo(f"machine: {machine}; {libraries}; load average {os.getloadavg()[0]:.1f}")
    click.echo(json.dumps(figures, indent=1))


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
