"""A linking run that is killed at random moments and goes on each time, against one that is left alone.

    python benchmarks/linking_crashes.py                        # the small model, the sample catalogue
    python benchmarks/linking_crashes.py --kills 50 --workers 4 --json crashes.json

`genret link` runs in a process of its own, and is killed with SIGKILL: the whole run, or one of its workers,
after which the run ends by itself. The same command is started again until the output is complete. Then every
row is compared with those of the undisturbed run. Fails when a row is lost, doubled or different, when a
finished shard was written again, or when a kill cost more than one shard per worker.
"""

from __future__ import annotations

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
from types import SimpleNamespace
from typing import Any

import click
import pyarrow.parquet as pq
from harness.report import COUNT, benchmark
from harness.sample_data import DATA, read_tsv
from harness.timing import timed

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
        seconds: Time from the start of the process until all of it was gone.
        num_done: Shards finished by then.
        num_begun: Shards that had been begun and are done again.
        message: Message of the run when a worker was killed.
    """

    victim: str
    seconds: float
    num_done: int
    num_begun: int
    message: str


def _wrong(figures: dict[str, Any], _options: SimpleNamespace) -> str | None:
    if any(figures[kind] for kind in ("lost", "doubled", "different", "rewritten")):
        return "rows or shards are not as they should be"
    if figures["most_redone"] > figures["num_workers"]:
        return f"a kill cost {figures['most_redone']} shards with {figures['num_workers']} workers"
    return None


@benchmark("torch", "transformers", "pyarrow", check=_wrong)
@click.option(
    "--index", type=click.Path(path_type=Path), help="Index; else one of the sample catalogue is built."
)
@click.option("--model", help="Checkpoint; else the shipped one.")
@click.option("--documents", type=COUNT, default=400, help="Documents, of two mentions each.")
@click.option("--shard-documents", type=COUNT, default=10, help="Documents per shard.")
@click.option("--workers", type=COUNT, default=2, help="Workers of the run.")
@click.option("--kills", "num_kills", type=COUNT, default=20, help="How often something is killed.")
@click.option("--seed", type=int, default=0, help="Of the documents and the moments.")
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Kill a linking run at random moments, and compare what it ends with."""
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = write_documents(folder / "documents.jsonl", options.documents, chance)
        index = options.index or built_index(folder)
        command = [*_GENRET, "link", str(corpus), "--index", str(index), "--workers", str(options.workers)]
        command += ["--shard-documents", str(options.shard_documents), "--cache-dir", str(folder / "cache")]
        command += ["--model", options.model] if options.model else []
        undisturbed = folder / "undisturbed"
        took = timed(subprocess.run, [*command, "--out", str(undisturbed), "--quiet"])
        took.value.check_returncode()
        expected = rows(undisturbed)
        click.echo(f"undisturbed: {len(expected)} rows in {took.wall_s:.1f} s")
        figures = {
            "num_documents": options.documents,
            "num_rows": len(expected),
            "num_shards": len(list(undisturbed.glob("part-*"))),
            "num_workers": options.workers,
            "undisturbed_s": round(took.wall_s, 2),
            **killed_runs(command, folder, expected, took.wall_s, options, chance),
        }
    click.echo(
        f"{len(figures['kills'])} kills, {figures['completed']} complete runs of {figures['num_rows']} rows "
        f"in {figures['num_shards']} shards with {figures['num_workers']} workers: {figures['lost']} rows "
        f"lost, {figures['doubled']} doubled, {figures['different']} different; {figures['rewritten']} "
        f"finished shards written again, at most {figures['most_redone']} shards begun anew for a kill"
    )
    return figures


def killed_runs(
    command: list[str],
    folder: Path,
    expected: list[dict[str, Any]],
    took: float,
    options: SimpleNamespace,
    chance: random.Random,
) -> dict[str, Any]:
    """Kill runs until that was done often enough; one that becomes complete is followed by another.

    Args:
        command: Command of a run, without --out.
        folder: Folder of all outputs; `undisturbed` has that of the undisturbed run.
        expected: Rows of the undisturbed run.
        took: Wall time of the undisturbed run, seconds.
        options: Number of kills and of workers.
        chance: Source of the moments.

    Returns:
        The kills, and counts: runs that became complete, rows lost, doubled, or different (in entity or
        log-probability), finished shards written again, and most shards begun anew for one kill.
    """
    ended = [file.stat().st_mtime for file in (folder / "undisturbed").glob("_shards/*.json")]
    linking_s = max(ended) - min(ended)
    kills: list[Kill] = []
    written: dict[Path, int] = {}
    compared = Counter[str](lost=0, doubled=0, different=0, rewritten=0)
    completed = 0
    while len(kills) < options.num_kills:
        out = folder / f"killed-{completed}"
        # Three of four moments are in the linking, wherever it is by then; the others before it, or anywhere.
        is_linking = len(kills) % 4 != 0
        seconds = chance.uniform(0, 2 * linking_s / options.num_kills if is_linking else took / 2)
        kill = killed_once(command, out, seconds, is_linking, options.workers, chance)
        if kill is not None:
            kills.append(kill)
            click.echo(
                f"{len(kills):3}  {kill.victim:6}  after {kill.seconds:6.2f} s  "
                f"{kill.num_done:4} shards done, {kill.num_begun} begun  {kill.message}"
            )
        compared["rewritten"] += rewritten(out, written)
        if (out / "_summary.json").exists():
            compared.update(compare(out, expected))
            completed += 1
    out = folder / f"killed-{completed}"
    if not (out / "_summary.json").exists():
        subprocess.run([*command, "--out", str(out), "--quiet"], check=True)
    compared["rewritten"] += rewritten(out, written)
    compared.update(compare(out, expected))
    most_redone = max(kill.num_begun for kill in kills)
    return {"kills": kills, "completed": completed + 1, **compared, "most_redone": most_redone}


def killed_once(
    command: list[str], out: Path, seconds: float, is_linking: bool, workers: int, chance: random.Random
) -> Kill | None:
    """Start the run, kill it or a worker after some seconds, and wait until nothing of it is left.

    Args:
        command: Command of the run, without --out.
        out: Its output folder.
        seconds: Time of the kill after the start.
        is_linking: Whether the seconds count from the first shard that is begun.
        workers: Number of workers.
        chance: Source of the choice between the run and a worker.

    Returns:
        The kill; None where the run ended before.
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
    titles = [entry["title"] for entry in read_tsv(DATA / "catalogue.tsv")]
    with file.open("w", encoding="utf-8") as documents:
        for i in range(number):
            text = chance.choice(_FRAMES).format(*chance.sample(titles, 2))
            documents.write(json.dumps({"id": f"d{i}", "text": text}, ensure_ascii=False) + "\n")
    return file


def built_index(folder: Path) -> Path:
    """Build the index of the sample catalogue."""
    index = folder / "sample.index"
    build = ["build", str(DATA / "catalogue.tsv"), "--out", str(index), "--quiet"]
    subprocess.run([*_GENRET, *build], check=True)
    return index


if __name__ == "__main__":
    main()
