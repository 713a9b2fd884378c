"""A worker that writes one file per shard and a line per run of it, and can be slow, fail or die."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from genret.retrieval.errors import IndexMismatchError, SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard, ShardFile
from genret.retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.output.folder import ShardRecord, part_name, record_file, write_record
from genret.retrieval.linking.run_progress import LinkCounts


def a_job(folder: Path, **settings: object) -> LinkJob:
    """Return a job over files in a folder, with what the fake worker is to do in a file there."""
    (folder / "index").mkdir(exist_ok=True)
    record_file(folder / "out", 0).parent.mkdir(parents=True, exist_ok=True)
    (folder / "docs.txt").write_text("text", encoding="utf-8")
    (folder / "index" / "fake.json").write_text(json.dumps(settings), encoding="utf-8")
    return job_of(folder)


def job_of(folder: Path) -> LinkJob:
    return LinkJob(
        corpus=CorpusOptions(inputs=(str(folder / "docs.txt"),)),
        options=LinkOptions(),
        worker=WorkerOptions(index=str(folder / "index"), device="cpu"),
        out=str(folder / "out"),
        key="key",
    )


def some_shards(folder: Path, count: int) -> list[Shard]:
    file = ShardFile(path=str(folder / "docs.txt"), source="docs.txt")
    return [Shard(number=n, files=(file,), num_documents=n + 1, digest=f"d{n}") for n in range(count)]


def record_at(folder: Path, shard: int) -> Path:
    return record_file(folder / "out", shard)


def runs_of(folder: Path) -> list[int]:
    """Return the shard of every run that was begun, in no order."""
    return sorted(int(path.name.split("-")[1]) for path in (folder / "out").glob("begun-*"))


def parts_of(folder: Path) -> list[int]:
    """Return the shards whose parts are whole."""
    return sorted(int(path.stem.split("-")[1]) for path in (folder / "out").glob("part-*"))


def finished_in(folder: Path) -> list[int]:
    """Return the shards whose records are there, which comes after their parts."""
    return sorted(int(path.stem) for path in record_at(folder, 0).parent.glob("[0-9]*.json"))


class FakeShardWorker:
    """Does what the file `fake.json` in the index says."""

    def __init__(self, job: LinkJob) -> None:
        self._job = job
        self._out = Path(job.out)
        self._settings = json.loads((Path(job.worker.index) / "fake.json").read_text(encoding="utf-8"))
        if "refuse" in self._settings:
            raise IndexMismatchError(self._settings["refuse"])

    def run(self, shard: Shard, report: Callable[[LinkCounts], None] = lambda counts: None) -> ShardRecord:
        stamp = f"{shard.number}-{os.getpid()}-{time.time_ns()}"
        (self._out / f"begun-{stamp}").touch()
        while self._num_workers() < self._settings.get("workers", 1):
            time.sleep(0.02)
        if shard.number == self._settings.get("fail_at"):
            raise SourceError(f"docs.txt: shard {shard.number} is broken")
        if shard.number == self._settings.get("always_die_at"):  # as the system does to who needs most memory
            os.kill(os.getpid(), signal.SIGKILL)
        counts = LinkCounts()
        for _ in range(10):
            time.sleep(self._settings.get("seconds", 0.0) / 10)
            counts.num_mentions += 1
            report(counts)
        part = self._out / part_name(shard.number, self._job.output_format)
        hidden = self._out / f".{stamp}"
        hidden.write_text(str(shard.number), encoding="utf-8")
        hidden.rename(part)
        time.sleep(self._settings.get("seconds_before_record", 0.0))
        size = part.stat().st_size
        record = ShardRecord(shard.number, self._job.key, shard.digest, part.name, size, counts)
        write_record(record_file(self._out, shard.number), record)
        if shard.number == self._settings.get("die_when_recorded"):
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    def _num_workers(self) -> int:
        """How many have begun a shard so far."""
        return len({path.name.split("-")[2] for path in self._out.glob("begun-*")})

    def close(self) -> None:
        """Nothing."""


HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]


def script_environment(home: Path) -> dict[str, str]:
    """Return the environment of a script and of what it starts; Ray writes its token into `home`."""
    return {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "token",  # as of a cluster that `ray.init` starts; who joins one must say so
        "RAY_USAGE_STATS_ENABLED": "0",
    }
