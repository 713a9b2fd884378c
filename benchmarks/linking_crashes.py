"""A linking run that is killed at random moments and goes on each time, against one that is left alone.

    python benchmarks/linking_crashes.py                        # the small model, the sample catalogue
    python benchmarks/linking_crashes.py --kills 50 --workers 4 --json crashes.json

`genret link` runs in a process of its own, and is killed with SIGKILL: the whole run, or one of its workers,
after which the run ends by itself. The same command is started again until the output is complete. Then every
row is compared with those of the undisturbed run. Fails when a row is lost, doubled or different, when a
finished shard was written again, or when a kill cost more than one shard per worker.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
from harness.report import announce, command_line, environment, write_json

_DATA = Path(__file__).resolve().parents[1] / "data"
_GENRET = [sys.executable, "-m", "genret"]
_LOGPROB_TOLERANCE = 1e-4  # answers are kept from batches that other mentions shared
_FRAMES = (
    "We read about {} and then about {}, until it was late.",
    "Nobody could say whether {} had more to do with {} than with the rest.",
    "{} came first; {} was to follow in the next chapter.",
)


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill and what it cost.

    Attributes:
        victim: "run" or "worker".
        seconds: After the start of the process, until all of it was gone.
        num_done: Shards finished by then.
        num_begun: Shards that had been begun and are done again.
        message: What the run said when a worker was killed.
    """

    victim: str
    seconds: float
    num_done: int
    num_begun: int
    message: str


@dataclass(frozen=True, slots=True)
class Figures:
    """What came out.

    Attributes:
        num_documents: Linked.
        num_rows: Of the undisturbed run.
        num_shards: Of the corpus.
        num_workers: Of every run.
        undisturbed_s: Wall time of the undisturbed run.
        kills: In order.
        completed: Runs that became complete under the kills.
        lost: Rows that are missing.
        doubled: Rows that are there twice.
        different: Rows with another entity or log-probability.
        rewritten: Finished shards that were written again.
        most_redone: Shards that one kill had to be done again for, at most.
    """

    num_documents: int
    num_rows: int
    num_shards: int
    num_workers: int
    undisturbed_s: float
    kills: list[Kill]
    completed: int
    lost: int
    doubled: int
    different: int
    rewritten: int
    most_redone: int


@click.command(context_settings={"show_default": True})
@click.option(
    "--index", type=click.Path(path_type=Path), help="Index; else one of the sample catalogue is built."
)
@click.option("--model", help="Checkpoint; else the shipped one.")
@click.option("--documents", type=click.IntRange(min=1), default=400, help="Documents, of two mentions each.")
@click.option("--shard-documents", type=click.IntRange(min=1), default=10, help="Documents per shard.")
@click.option("--workers", type=click.IntRange(min=1), default=2, help="Workers of the run.")
@click.option("--kills", type=click.IntRange(min=1), default=20, help="How often something is killed.")
@click.option("--seed", type=int, default=0, help="Of the documents and the moments.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Where the figures go.")
def main(
    index: Path | None,
    model: str | None,
    documents: int,
    shard_documents: int,
    workers: int,
    kills: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Kill a linking run at random moments, and compare what it ends with."""
    facts = environment("torch", "transformers", "pyarrow")
    announce(facts)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = write_documents(folder / "documents.jsonl", documents, chance)
        index = index or built_index(folder)
        command = [*_GENRET, "link", str(corpus), "--index", str(index), "--workers", str(workers)]
        command += ["--shard-documents", str(shard_documents), "--cache-dir", str(folder / "cache")]
        command += ["--model", model] if model else []
        started = time.monotonic()
        subprocess.run([*command, "--out", str(folder / "undisturbed"), "--quiet"], check=True)
        took = time.monotonic() - started
        expected = rows(folder / "undisturbed")
        click.echo(f"undisturbed: {len(expected)} rows in {took:.1f} s")
        ended = [file.stat().st_mtime for file in (folder / "undisturbed").glob("_shards/*.json")]
        linking_s = max(ended) - min(ended)
        figures = killed_runs(command, folder, expected, took, linking_s, kills, workers, chance, documents)
    report(figures)
    write_json(json_file, command_line(), facts, figures)
    if figures.lost or figures.doubled or figures.different or figures.rewritten:
        raise click.ClickException("rows or shards are not as they should be")
    if figures.most_redone > workers:
        raise click.ClickException(f"a kill cost {figures.most_redone} shards with {workers} workers")


def killed_runs(
    command: list[str],
    folder: Path,
    expected: list[dict[str, Any]],
    took: float,
    linking_s: float,
    num_kills: int,
    workers: int,
    chance: random.Random,
    documents: int,
) -> Figures:
    """Kill runs until that was done often enough; one that becomes complete is followed by another."""
    kills: list[Kill] = []
    written: dict[Path, int] = {}
    compared = Counter[str]()
    completed = 0
    while len(kills) < num_kills:
        out = folder / f"killed-{completed}"
        # Three of four moments are in the linking, wherever it is by then; the others before it, or anywhere.
        is_linking = len(kills) % 4 != 0
        seconds = chance.uniform(0, 2 * linking_s / num_kills if is_linking else took / 2)
        kill = killed_once(command, out, seconds, is_linking, workers, chance)
        if kill is not None:
            kills.append(kill)
            tell(len(kills), kill)
        compared["rewritten"] += rewritten(out, written)
        if (out / "_summary.json").exists():
            compared += compare(out, expected)
            completed += 1
    out = folder / f"killed-{completed}"
    if not (out / "_summary.json").exists():
        subprocess.run([*command, "--out", str(out), "--quiet"], check=True)
    compared["rewritten"] += rewritten(out, written)
    compared += compare(out, expected)
    return Figures(
        num_documents=documents,
        num_rows=len(expected),
        num_shards=len(list((folder / "undisturbed").glob("part-*"))),
        num_workers=workers,
        undisturbed_s=round(took, 2),
        kills=kills,
        completed=completed + 1,
        lost=compared["lost"],
        doubled=compared["doubled"],
        different=compared["different"],
        rewritten=compared["rewritten"],
        most_redone=max(kill.num_begun for kill in kills),
    )


def killed_once(
    command: list[str], out: Path, seconds: float, is_linking: bool, workers: int, chance: random.Random
) -> Kill | None:
    """Start the run, kill it or a worker after some seconds, and wait until nothing of it is left.

    Args:
        command: Of the run, without --out.
        out: Its output.
        seconds: When, after the start.
        is_linking: Count the seconds from the first shard that is begun.
        workers: Of the run.
        chance: Says whether the run or a worker is killed.

    Returns:
        What happened; None where the run ended before.
    """
    before = shard_files(out)
    started = time.monotonic()
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE)
    with process:
        # A run that goes on first removes what was left half written: only what is new counts.
        while is_linking and process.poll() is None and not shard_files(out) - before:
            time.sleep(0.01)
        time.sleep(seconds)
        below = children(process.pid)
        victim = "worker" if below and workers > 1 and chance.random() < 0.5 else "run"
        if process.poll() is not None:
            return None
        begun = unfinished(out)
        os.kill(chance.choice(below) if victim == "worker" else process.pid, signal.SIGKILL)
        assert process.stderr is not None
        said = process.stderr.read().decode().strip().splitlines()
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        time.sleep(0.01)
    if victim == "worker" and process.returncode == 0:
        return None  # it had done its last shard
    records = {file.stem for file in out.glob("_shards/[0-9]*.json")}
    begun = (begun | unfinished(out)) - records
    seconds = time.monotonic() - started
    message = "" if victim == "run" else " ".join(line for line in said if "died" in line)
    return Kill(victim, round(seconds, 2), len(records), len(begun), message)


def children(pid: int) -> list[int]:
    """Return the worker processes of a run."""
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(c) for c in found if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def shard_files(out: Path) -> set[str]:
    """Return the names of all parts, whole or half written."""
    return {part.name for part in [*out.glob("part-*"), *out.glob(".part-*.tmp")]}


def unfinished(out: Path) -> set[str]:
    """Return the numbers of shards that have a part, whole or half written, and no record."""
    begun = {name.lstrip(".").removeprefix("part-").partition(".")[0] for name in shard_files(out)}
    return begun - {file.stem for file in out.glob("_shards/[0-9]*.json")}


def rewritten(out: Path, written: dict[Path, int]) -> int:
    """Count records that were there before and have been written again since."""
    now = {file: file.stat().st_mtime_ns for file in out.glob("_shards/[0-9]*.json")}
    changed = sum(written.get(file, time_ns) != time_ns for file, time_ns in now.items())
    written.update(now)
    return changed


def compare(out: Path, expected: list[dict[str, Any]]) -> Counter[str]:
    """Count rows that are lost, doubled or different."""
    found = rows(out)
    here, there = Counter(map(place, found)), Counter(map(place, expected))
    by_place = {place(row): row for row in found}
    different = 0
    for row in expected:
        other = by_place.get(place(row), row)
        apart = abs((row["logprob"] or 0.0) - (other["logprob"] or 0.0))
        different += row["entity_id"] != other["entity_id"] or apart > _LOGPROB_TOLERANCE
    if [place(row) for row in found] != [place(row) for row in expected] and here == there:
        different += 1  # the same rows in another order
    return Counter(lost=(there - here).total(), doubled=(here - there).total(), different=different)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells a row from every other one."""
    return row["source"], row["row"], row["start"], row["end"]


def rows(out: Path) -> list[dict[str, Any]]:
    """Return all rows of an output folder, in order."""
    return [row for part in sorted(out.glob("part-*")) for row in pq.read_table(part).to_pylist()]


def write_documents(file: Path, number: int, chance: random.Random) -> Path:
    """Write sentences that name entities of the sample catalogue."""
    with (_DATA / "catalogue.tsv").open(encoding="utf-8", newline="") as catalogue:
        titles = [
            entry["title"] for entry in csv.DictReader(catalogue, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
    with file.open("w", encoding="utf-8") as documents:
        for i in range(number):
            text = chance.choice(_FRAMES).format(*chance.sample(titles, 2))
            documents.write(json.dumps({"id": f"d{i}", "text": text}, ensure_ascii=False) + "\n")
    return file


def built_index(folder: Path) -> Path:
    """Build the index of the sample catalogue."""
    index = folder / "sample.index"
    build = ["build", str(_DATA / "catalogue.tsv"), "--out", str(index), "--quiet"]
    subprocess.run([*_GENRET, *build], check=True)
    return index


def tell(number: int, kill: Kill) -> None:
    """Print a line of the table."""
    click.echo(
        f"{number:3}  {kill.victim:6}  after {kill.seconds:6.2f} s  {kill.num_done:4} shards done, "
        f"{kill.num_begun} begun  {kill.message}"
    )


def report(figures: Figures) -> None:
    """Print what came out."""
    click.echo(
        f"{len(figures.kills)} kills, {figures.completed} complete runs of {figures.num_rows} rows in "
        f"{figures.num_shards} shards with {figures.num_workers} workers: {figures.lost} rows lost, "
        f"{figures.doubled} doubled, {figures.different} different; {figures.rewritten} finished shards "
        f"written again, at most {figures.most_redone} shards begun anew for a kill"
    )


if __name__ == "__main__":
    main()
