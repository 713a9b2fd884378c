"""A server under mixed load for half an hour, reloaded every minute, with clients that are killed at random.

    python benchmarks/service_soak.py --index sample.index --minutes 30 --json soak.json

Requests of every kind come from clients of this process, shortlists where the index has vectors; others, in
processes of their own, are killed in the middle of theirs. Every minute a new version of the index is
published and reloaded. Failed are calls that end with a status that is not to be retried. At the end: what
the server holds, over time.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from harness.report import benchmark, shown
from harness.sample_data import sample_queries
from harness.served_process import Footprint, ServedProcess, serving
from scipy import stats

from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from genret.service.errors import CallError

# Codes that the status table calls retryable.
RETRYABLE = {"UNAVAILABLE", "RESOURCE_EXHAUSTED"}
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "x-genret-index": "titles"}, "sure": {"type": "boolean"}},
    "required": ["title", "sure"],
    "additionalProperties": False,
}
# A client that is killed: it keeps calls of several kinds in flight for as long as it lives.
VICTIM = """
import asyncio, sys
from genret.retrieval.types import RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from genret.service.errors import CallError

async def main():
    async with AsyncRetrievalClient(sys.argv[1], timeout_s=30) as client:
        async def single():
            while True:
                try:
                    await client.retrieve(RetrieveRequest("a river in europe", k=10))
                except CallError:
                    await asyncio.sleep(0.1)
        async def stream():
            async def queries():
                while True:
                    yield RetrieveRequest("a mountain", k=3)
            async for _ in client.retrieve_stream(queries()):
                pass
        await asyncio.gather(single(), single(), stream())

asyncio.run(main())
"""


@dataclass(slots=True)
class Soak:
    """Observations of a soak."""

    codes: Counter[str] = field(default_factory=Counter)  # calls per kind and code
    failures: list[str] = field(default_factory=list)  # first texts of calls that must not have failed
    versions: set[str] = field(default_factory=set)  # of the index, which answered
    at_s: list[float] = field(default_factory=list)  # of the footprints, seconds from the beginning
    footprints: list[Footprint] = field(default_factory=list)
    reload_s: list[float] = field(default_factory=list)
    killed: int = 0  # clients

    def count(self, kind: str, code: str, text: str = "") -> None:
        """Note the end of a call."""
        self.codes[f"{kind} {code}"] += 1
        if code != "OK" and code not in RETRYABLE and len(self.failures) < 20:
            self.failures.append(f"{kind} {code}: {text}")


class MixedLoad:
    """Clients that send every kind of request until they are cancelled."""

    def __init__(self, client: AsyncRetrievalClient, queries: Sequence[str], soak: Soak) -> None:
        self._client = client
        self._queries = itertools.cycle(queries)
        self._soak = soak

    async def run(self, seconds: float) -> None:
        """Send requests for that long, then let what is in flight end."""
        until = time.monotonic() + seconds
        retrieve, client = self._retrieve, self._client
        mentions = [Mention("Lion", left="The ", right=" roared."), Mention("Paris")]
        kinds: dict[str, Callable[[], Awaitable[object]]] = {
            "retrieve": lambda: retrieve(k=5),
            "sample": lambda: retrieve(method="disc", num_samples=4),
            "filtered": lambda: retrieve(k=3, filter="kind = 'animal'"),
            "batch": self._batch,
            "answer": lambda: client.answer(AnswerRequest(self._next(), schema=SCHEMA, max_tokens=64)),
            "link": lambda: client.link(mentions),
            "beam": lambda: retrieve(k=5, method="beam"),
            "score": lambda: client.score(self._next(), ["Lion", "Paris", "no such title"]),
            "stream": self._stream,
            "impatient": self._impatient,
        }
        if (await client.get_index()).vectors is not None:
            kinds["shortlist"] = lambda: retrieve(k=5, method="shortlist", shortlist_size=20)
        await asyncio.gather(*(self._repeat(name, kind, until) for name, kind in kinds.items()))

    def _next(self) -> str:
        return next(self._queries)

    async def _retrieve(self, **options: Any) -> None:
        reply = await self._client.retrieve(RetrieveRequest(self._next(), **options))
        self._soak.versions.add(reply.index.version)

    async def _repeat(self, name: str, kind: Callable[[], Awaitable[object]], until: float) -> None:
        while time.monotonic() < until:
            try:
                await kind()
                self._soak.count(name, "OK")
            except CallError as error:
                expected = name == "impatient" and error.code in ("DEADLINE_EXCEEDED", "CANCELLED")
                self._soak.count(name, "OK" if expected else error.code, str(error))
                await asyncio.sleep(min(error.retry_after_s or 0.1, 2.0))

    async def _batch(self) -> None:
        requests = [RetrieveRequest(self._next(), k=2) for _ in range(6)]
        for reply in await self._client.retrieve_batch(requests):
            if isinstance(reply, CallError):
                raise reply

    async def _stream(self) -> None:
        async def queries() -> AsyncIterator[RetrieveRequest]:
            for _ in range(20):
                yield RetrieveRequest(self._next(), k=1)

        async for _, reply in self._client.retrieve_stream(queries()):
            if isinstance(reply, CallError):
                raise reply

    async def _impatient(self) -> None:
        call = asyncio.create_task(self._client.retrieve(RetrieveRequest(self._next(), k=50)))
        await asyncio.sleep(random.uniform(0, 0.3))
        call.cancel()
        await asyncio.wait({call})


async def keep_publishing(index: Path, client: AsyncRetrievalClient, soak: Soak, every_s: float) -> None:
    """Publish a new version and reload it, again and again."""
    for number in itertools.count():
        await asyncio.sleep(every_s)
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write(f"title\tentity_id\nSoaked catalogue entry {number}\tsoak.{number % 3}\n")
            file.flush()
            command = [sys.executable, "-m", "genret", "update", str(index), "--add", file.name]
            update = await asyncio.create_subprocess_exec(*command, "--quiet", stderr=subprocess.DEVNULL)
            if await update.wait() != 0:
                raise RuntimeError("genret update failed")
        started = time.monotonic()
        await client.reload_index()
        soak.reload_s.append(time.monotonic() - started)


async def keep_killing(address: str, soak: Soak, rng: random.Random) -> None:
    """Start clients and kill them in the middle of their calls."""
    while True:
        victim = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, address)
        try:
            await asyncio.sleep(rng.uniform(4, 15))
        finally:
            victim.send_signal(signal.SIGKILL)
            await victim.wait()
        soak.killed += 1


async def keep_looking(served: ServedProcess, soak: Soak, every_s: float) -> None:
    """Note what the server holds."""
    started = time.monotonic()
    while True:
        soak.footprints.append(await asyncio.to_thread(served.footprint))
        soak.at_s.append(time.monotonic() - started)
        await asyncio.sleep(every_s)


async def soak_server(served: ServedProcess, index: Path, options: SimpleNamespace) -> Soak:
    """Put every kind of load on a server."""
    soak, rng = Soak(), random.Random(options.seed)
    async with AsyncRetrievalClient(served.address, timeout_s=60) as client:
        load = MixedLoad(client, sample_queries(), soak)
        others = [
            asyncio.create_task(keep_publishing(index, client, soak, options.reload_seconds)),
            asyncio.create_task(keep_killing(served.address, soak, rng)),
            asyncio.create_task(keep_looking(served, soak, 5)),
        ]
        try:
            main_load = asyncio.create_task(load.run(options.minutes * 60))
            done, _ = await asyncio.wait({main_load, *others}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await main_load
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(2)  # what was cancelled is let go of
        soak.footprints.append(served.footprint())
        soak.at_s.append(soak.at_s[-1] + 2)
    return soak


def memory_trend(soak: Soak) -> tuple[float, float]:
    """Return the slope of anonymous memory and its standard error, MiB per hour, behind the first third."""
    pairs = [
        (at, print_.anonymous_mib)
        for at, print_ in zip(soak.at_s, soak.footprints, strict=True)
        if at > soak.at_s[-1] / 3
    ]
    if len(pairs) < 3:
        return 0.0, float("inf")
    line = stats.linregress(*zip(*pairs, strict=True))
    # Neighbours in time are alike: as many independent samples are counted as there were reloads.
    independent = max(1.0, len(pairs) / max(1, len(soak.reload_s)))
    return 3600 * line.slope, 3600 * line.stderr * independent**0.5


def report(soak: Soak, served: ServedProcess) -> dict[str, Any]:
    """Print what was seen, and return it."""
    steepness, error = memory_trend(soak)
    figures = {
        "codes": dict(soak.codes),
        "failures": soak.failures,
        "reloads_s": soak.reload_s,
        "versions": len(soak.versions),
        "killed": soak.killed,
        "memory_slope_mib_per_hour": steepness,
        "memory_slope_error": error,
        "log_errors": len(served.log_lines("ERROR")) + len(served.log_lines("Traceback")),
        "at_s": soak.at_s,
        "footprints": soak.footprints,
    }
    ends = {"first": soak.footprints[min(3, len(soak.footprints) - 1)], "last": soak.footprints[-1]}
    shown("soak", {**figures, "footprints": ends})
    return figures


def _failed(figures: dict[str, Any], _options: SimpleNamespace) -> str | None:
    return f"{len(figures['failures'])} calls failed" if figures["failures"] else None


@benchmark("torch", "grpcio", check=_failed)
@click.option("--index", type=click.Path(path_type=Path, exists=True), required=True, help="Is copied first.")
@click.option("--minutes", type=float, default=30.0)
@click.option("--reload-seconds", type=float, default=60.0)
@click.option("--seed", type=int, default=0)
@click.argument("serve_options", nargs=-1)
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Soak a server on a copy of INDEX. Options behind -- go to `genret serve`. Exit code 1: calls failed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "soak.index"
        shutil.copytree(options.index, copy, symlinks=True)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with serving(copy, *options.serve_options) as served:
            return report(asyncio.run(soak_server(served, copy, options)), served)


if __name__ == "__main__":
    main()
