"""Build an index over real titles under a memory limit: time, peak memory, bytes per title, opening.

    python benchmarks/index_build.py                                  # 907,150 titles of English Wikipedia
    python benchmarks/index_build.py --titles six_million.parquet --work /large/disk

Every build, verification and opening is a process of its own, as a user would start it. Fails unless the
second build has the same bytes as the first, the index verifies, and random titles come back token for token.
"""

from __future__ import annotations

import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from harness.processes import build_index, digests, measured, same_files
from harness.report import COUNT, Spread, benchmark, shown
from harness.timing import in_turn
from harness.titles import batches, chosen_titles, input_options, titles_file, tokenizer_file, write_tsv

from genret.retrieval.index.layout import (
    ENTITIES_FILE,
    NAMES_FILE,
    POSTINGS_FILE,
    ROWS_DIR,
    TITLE_ORDER_FILE,
    TRIE_FILE,
)
from genret.retrieval.index.reader import Index
from genret.retrieval.text import Rendering, TextTokenizer

_VERIFY = "from genret.retrieval.index.inspect_command import verify_command; verify_command()"
_OPEN = """
import sys, time
from pathlib import Path
from genret.retrieval.index.reader import Index
begun = time.perf_counter()
Index.open(Path(sys.argv[1]), verify_digests=sys.argv[2] == "digests")
print(time.perf_counter() - begun)
"""
_SAMPLE = 1000
_MIB = 1 << 20
_PARTS = {
    "whole index": "",
    "trie.arrow, the constraint": TRIE_FILE,
    "rows/": ROWS_DIR,
    "entities.arrow": ENTITIES_FILE,
    "postings.arrow": POSTINGS_FILE,
    "title_order.arrow": TITLE_ORDER_FILE,
    "names.arrow, evidence": NAMES_FILE,
}


@benchmark("numpy", "pyarrow", "tokenizers")
@input_options
@click.option("--memory-limit", default="2GiB", help="Passed to the build.")
@click.option("--threads", type=COUNT, help="Threads of the tokenizer; all cores if not given.")
@click.option("--builds", type=click.IntRange(min=2), default=2, help="Builds, each from nothing.")
@click.option("--repeats", type=COUNT, default=5, help="How often the index is opened.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Build an index from a TSV file several times, and measure it."""
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        folder, model = Path(name), tokenizer_file(options)
        source = folder / "titles.tsv"
        number = write_tsv(source, chosen_titles(options))
        arguments = ["--tokenizer", model, "--memory-limit", options.memory_limit]
        if options.threads is not None:
            arguments += ["--threads", options.threads]
        runs = [build_index(source, folder / f"{n}.index", *arguments) for n in range(options.builds)]
        first = folder / "0.index"
        for n in range(1, options.builds):
            same_files(
                digests(first), digests(folder / f"{n}.index"), "a further build differs from the first"
            )
        click.echo("every build has the same bytes")
        figures = {
            "titles": number,
            "memory_limit": options.memory_limit,
            "build_wall_s": Spread.of([run.seconds for run in runs]),
            "build_cpu_s": Spread.of([run.cpu_seconds for run in runs]),
            "build_peak_rss_mib": Spread.of([run.peak_bytes / _MIB for run in runs]),
            **size(first),
            **opening(first, options.repeats),
        }
        read_back(first, TextTokenizer.load(model), titles_file(options), number)
    return shown("index", figures)


def size(path: Path) -> dict[str, Any]:
    """Return counts and bytes per title by part."""
    with Index.open(path) as index:
        counts, files = index.manifest.counts, index.manifest.files
    return {
        "tokens_per_title": counts.tokens / counts.rows,
        "nodes_per_title": counts.nodes / counts.rows,
        "bytes_per_title": {
            part: sum(f.bytes for f in files if f.name.startswith(start)) / counts.entities
            for part, start in _PARTS.items()
        },
    }


def opening(path: Path, repeats: int) -> dict[str, Any]:
    """Time opening and verifying in fresh processes, with the files in the page cache."""
    commands = {how: [sys.executable, "-c", _OPEN, str(path), how] for how in ("digests", "no digests")}
    measured(commands["digests"])  # brings the files into the page cache
    taken = in_turn(
        {how: partial(measured, command) for how, command in commands.items()}, repeats, warm_up=0
    )
    seconds = {how: [float(took.value.stdout) for took in column] for how, column in taken.items()}
    verified = [measured([sys.executable, "-c", _VERIFY, str(path)]) for _ in range(2)]
    return {
        "open_without_digests_s": Spread.of(seconds["no digests"]),
        "open_with_digests_s": Spread.of(seconds["digests"]),
        "verify_wall_s": Spread.of([run.seconds for run in verified]),
        "verify_peak_rss_mib": Spread.of([run.peak_bytes / _MIB for run in verified]),
    }


def read_back(path: Path, tokenizer: TextTokenizer, file: Path, number: int) -> None:
    """Fail unless random titles come back token for token."""
    wanted = set(random.Random(0).sample(range(number), min(_SAMPLE, number)))
    chosen, seen = [], 0
    for batch in batches(file, number):
        chosen += [title for n, title in enumerate(batch, start=seen) if n in wanted]
        seen += len(batch)
    rows = tokenizer.encode_titles(chosen, Rendering())
    with Index.open(path) as index:
        for text, row in zip(chosen, rows, strict=True):
            rank = index.row_of(row or ())
            if rank < 0 or index.row_token_ids(rank) != tuple(row or ()) or index.surface(rank) != text:
                raise click.ClickException(f"{text!r} did not come back")
    click.echo(f"{len(chosen)} random titles came back token for token")


if __name__ == "__main__":
    main()
