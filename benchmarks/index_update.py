"""An update of one per cent of an index against building the final catalogue anew.

    python benchmarks/index_update.py                                   # 907,150 titles of English Wikipedia
    python benchmarks/index_update.py --titles six_million.parquet --work /large/disk

Entities have ids and a kind. A third of the share is added, a third removed, and a third gets new titles. The
catalogue from before is built once; in every round a copy of its index is updated and the catalogue from
afterwards is built anew, each in a process of its own. Fails unless the updated index verifies and has the
bytes of the one that was built anew, apart from the manifest's history and from the ranking: an update keeps
the one that there is.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from harness.processes import Usage, digests, measured, same_files
from harness.report import COUNT, Spread, benchmark, shown
from harness.titles import chosen_titles, input_options, tokenizer_file

from genret.retrieval.index.layout import MANIFEST_FILE, RANKING_FILE
from genret.retrieval.index.versions import version_dir

_GENRET = "from genret.service.main import cli; cli()"
_KINDS = ("person", "place", "work", "event", "organisation", "species", "other")
_HEADER = "entity_id\ttitle\tkind\n"
_MIB = 1 << 20
_SHARE = click.FloatRange(0, 0.5, min_open=True)


@benchmark("numpy", "pyarrow", "tokenizers")
@input_options
@click.option("--memory-limit", default="2GiB", help="Passed to builds and updates.")
@click.option("--share", type=_SHARE, default=0.01, help="Share that changes.")
@click.option("--repeats", type=COUNT, default=3, help="Rounds.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Update an index and build the final catalogue anew, in turn, and compare."""
    common = ["--tokenizer", tokenizer_file(options), "--memory-limit", options.memory_limit, "--quiet"]
    with tempfile.TemporaryDirectory(dir=options.work) as name:
        folder = Path(name)
        counts = write_catalogues(folder, chosen_titles(options), options.share)
        before = genret("build", folder / "before.tsv", "--out", folder / "before.index", *common)
        changes = ["--add", folder / "add.tsv", "--remove", folder / "remove.txt"]
        update: list[Usage] = []
        anew: list[Usage] = []
        for n in range(options.repeats):
            updated, fresh = folder / "updated.index", folder / "fresh.index"
            shutil.copytree(folder / "before.index", updated)
            update.append(genret("update", updated, *changes, *common))
            anew.append(genret("build", folder / "after.tsv", "--out", fresh, *common))
            if n == 0:
                compare(updated, fresh)
                genret("verify", updated)
                click.echo("the updated index verifies and has the bytes of the one built anew")
            shutil.rmtree(updated)
            shutil.rmtree(fresh)
    figures = {**counts, "memory_limit": options.memory_limit, "build_before_s": Spread.of([before.seconds])}
    for what, runs in (("update", update), ("build_anew", anew)):
        figures[f"{what}_s"] = Spread.of([run.seconds for run in runs])
        figures[f"{what}_cpu_s"] = Spread.of([run.cpu_seconds for run in runs])
        figures[f"{what}_peak_rss_mib"] = Spread.of([run.peak_bytes / _MIB for run in runs])
    figures["build_anew_over_update"] = Spread.of_ratios(
        [run.seconds for run in anew], [run.seconds for run in update]
    )
    return shown("update", figures)


def write_catalogues(folder: Path, titles: Iterable[list[str]], share: float) -> dict[str, int]:
    """Write before.tsv, add.tsv, remove.txt and after.tsv; return how many entities each step touches.

    Which entity meets which fate follows from its number alone, so that they are spread evenly.
    """
    period = round(3 / share)  # of so many entities one is added, one removed and one gets another title
    number = 0
    counts = dict.fromkeys(("before", "added", "removed", "changed", "after"), 0)
    names = ("before.tsv", "add.tsv", "remove.txt", "after.tsv")
    files = {name: (folder / name).open("w", encoding="utf-8") for name in names}
    for name, file in files.items():
        file.write("" if name == "remove.txt" else _HEADER)
    for batch in titles:
        for title in batch:
            fate = number % period
            line = f"E{number}\t{title}\t{_KINDS[number % len(_KINDS)]}\n"
            changed = f"E{number}\t{title} (changed)\t{_KINDS[number % len(_KINDS)]}\n"
            if fate != 0:
                files["before.tsv"].write(line)
                counts["before"] += 1
            if fate in (0, 2):
                files["add.tsv"].write(line if fate == 0 else changed)
                counts["added" if fate == 0 else "changed"] += 1
            if fate == 1:
                files["remove.txt"].write(f"E{number}\n")
                counts["removed"] += 1
            else:
                files["after.tsv"].write(changed if fate == 2 else line)
                counts["after"] += 1
            number += 1
    for file in files.values():
        file.close()
    return counts


def genret(*arguments: object) -> Usage:
    """Run a command as a user would."""
    return measured([sys.executable, "-c", _GENRET, *map(str, arguments)])


def compare(updated: Path, fresh: Path) -> None:
    """Fail unless both live versions have the same files, but for history and ranking."""
    same_files(_content(version_dir(updated)), _content(version_dir(fresh)), "the updated index differs")


def _content(version: Path) -> dict[str, Any]:
    manifest = json.loads((version / MANIFEST_FILE).read_text())
    del manifest["history"]
    manifest["files"] = [entry for entry in manifest["files"] if entry["name"] != RANKING_FILE]
    files = digests(version)
    files.pop(RANKING_FILE, None)
    return {**files, MANIFEST_FILE: manifest}


if __name__ == "__main__":
    main()
