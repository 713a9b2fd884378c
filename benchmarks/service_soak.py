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
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from harness.load_generator import slope
from harness.report import announce, command_line, environment, write_json
from harness.served_process import Footprint, ServedProcess, sample_queries, serving

from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from genret.service.errors import CallError

_QUERIES = Path(__file__).resolve().parents[1] / "data" / "queries.tsv"
# What the status table calls retryable.
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
    """What was seen.

    Attributes:
        codes: Per kind of call and code how many there were.
        failures: Of calls that must not have failed, the first texts.
        versions: Versions of the index that answered.
        at_s: Times of the footprints, seconds from the beginning.
        footprints: What the server held at these times.
        reload_s: How long each reload took, seconds.
        killed: Clients that were killed.
    """

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    at_s: list[float] = field(default_factory=list)
    footprints: list[Footprint] = field(default_factory=list)
    reload_s: list[float] = field(default_factory=list)
    killed: int = 0

    def count(self, kind: str, code: str, text: str = "") -> None:
        """Note the end of a call."""
        self.codes[f"{kind} {code}"] += 1
        if code != "OK" and code not in RETRYABLE and len(self.failures) < 20:
            self.failures.append(f"{kind} {code}: {text}")


class MixedLoad:
    """Clients that send every kind of request until they are cancelled.

    Args:
        client: Sends them.
        queries: What is asked.
        soak: Where the ends are counted.
    """

    def __init__(self, client: AsyncRetrievalClient, queries: Sequence[str], soak: Soak) -> None:
        self._client = client
        self._queries = itertools.cycle(queries)
        self._soak = soak

    async def run(self, seconds: float) -> None:
        """Send requests for that long, then let what is in flight end."""
        until = time.monotonic() + seconds
        kinds = [self._retrieve, self._sample, self._filtered, self._batch, self._answer, self._link]
        kinds += [self._beam, self._score, self._stream, self._impatient]
        if (await self._client.get_index()).vectors is not None:
            kinds.append(self._shortlist)
        await asyncio.gather(*(self._repeat(kind, until) for kind in kinds))

    async def _repeat(self, kind: Any, until: float) -> None:
        name = kind.__name__.removeprefix("_")
        while time.monotonic() < until:
            try:
                await kind()
                self._soak.count(name, "OK")
            except CallError as error:
                expected = name == "impatient" and error.code in ("DEADLINE_EXCEEDED", "CANCELLED")
                self._soak.count(name, "OK" if expected else error.code, str(error))
                await asyncio.sleep(min(error.retry_after_s or 0.1, 2.0))

    async def _retrieve(self) -> None:
        reply = await self._client.retrieve(RetrieveRequest(next(self._queries), k=5))
        self._soak.versions.add(reply.index.version)

    async def _beam(self) -> None:
        await self._client.retrieve(RetrieveRequest(next(self._queries), k=5, method="beam"))

    async def _shortlist(self) -> None:
        request = RetrieveRequest(next(self._queries), k=5, method="shortlist", shortlist_size=20)
        reply = await self._client.retrieve(request)
        self._soak.versions.add(reply.index.version)

    async def _score(self) -> None:
        await self._client.score(next(self._queries), ["Lion", "Paris", "no such title"])

    async def _sample(self) -> None:
        await self._client.retrieve(RetrieveRequest(next(self._queries), method="disc", num_samples=4))

    async def _filtered(self) -> None:
        await self._client.retrieve(RetrieveRequest(next(self._queries), k=3, filter="kind = 'animal'"))

    async def _batch(self) -> None:
        requests = [RetrieveRequest(next(self._queries), k=2) for _ in range(6)]
        for reply in await self._client.retrieve_batch(requests):
            if isinstance(reply, CallError):
                raise reply

    async def _answer(self) -> None:
        await self._client.answer(AnswerRequest(next(self._queries), schema=SCHEMA, max_tokens=64))

    async def _link(self) -> None:
        await self._client.link([Mention("Lion", left="The ", right=" roared."), Mention("Paris")])

    async def _stream(self) -> None:
        async def queries() -> AsyncIterator[RetrieveRequest]:
            for _ in range(20):
                yield RetrieveRequest(next(self._queries), k=1)

        async for _, reply in self._client.retrieve_stream(queries()):
            if isinstance(reply, CallError):
                raise reply

    async def _impatient(self) -> None:
        call = asyncio.create_task(self._client.retrieve(RetrieveRequest(next(self._queries), k=50)))
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


async def soak_server(served: ServedProcess, index: Path, seconds: float, reload_s: float, seed: int) -> Soak:
    """Put every kind of load on a server."""
    soak, rng = Soak(), random.Random(seed)
    async with AsyncRetrievalClient(served.address, timeout_s=60) as client:
        load = MixedLoad(client, sample_queries(_QUERIES), soak)
        others = [
            asyncio.create_task(keep_publishing(index, client, soak, reload_s)),
            asyncio.create_task(keep_killing(served.address, soak, rng)),
            asyncio.create_task(keep_looking(served, soak, 5)),
        ]
        try:
            main_load = asyncio.create_task(load.run(seconds))
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
    times, values = [at for at, _ in pairs], [value for _, value in pairs]
    if len(times) < 3:
        return 0.0, float("inf")
    steepness = slope(times, values)
    mean_t, mean_v = statistics.fmean(times), statistics.fmean(values)
    rest = [v - mean_v - steepness / 3600 * (t - mean_t) for t, v in pairs]
    spread = sum((t - mean_t) ** 2 for t in times)
    # Neighbours in time are alike: as many independent samples are counted as there were reloads.
    error = (sum(r * r for r in rest) / (len(rest) - 2) / spread) ** 0.5
    independent = max(1.0, len(rest) / max(1, len(soak.reload_s)))
    return steepness, error * independent**0.5 * 3600


def report(soak: Soak, served: ServedProcess) -> dict[str, Any]:
    """Print what was seen, and return it."""
    for kind, number in sorted(soak.codes.items()):
        click.echo(f"  {kind:32} {number:8}")
    for text in soak.failures:
        click.echo(f"  FAILED: {text}")
    first, last = soak.footprints[min(3, len(soak.footprints) - 1)], soak.footprints[-1]
    steepness, error = memory_trend(soak)
    errors = len(served.log_lines("ERROR")) + len(served.log_lines("Traceback"))
    click.echo(
        f"  reloads {len(soak.reload_s)}, versions that answered {len(soak.versions)}, killed {soak.killed}"
    )
    click.echo(
        f"  anonymous memory MiB: {first.anonymous_mib:.0f} -> {last.anonymous_mib:.0f}, "
        f"slope {steepness:+.1f} ± {error:.1f} a hour behind the first third"
    )
    click.echo(
        f"  fds {first.num_fds} -> {last.num_fds}, threads {first.num_threads} -> {last.num_threads}, "
        f"mapped versions {first.mapped_versions} -> {last.mapped_versions}"
    )
    click.echo(f"  errors in the server's log: {errors}")
    return {
        "codes": dict(soak.codes),
        "failures": soak.failures,
        "reloads_s": soak.reload_s,
        "versions": len(soak.versions),
        "killed": soak.killed,
        "memory_slope_mib_per_hour": steepness,
        "memory_slope_error": error,
        "log_errors": errors,
        "at_s": soak.at_s,
        "footprints": [asdict(footprint) for footprint in soak.footprints],
    }


@click.command()
@click.option("--index", type=click.Path(path_type=Path, exists=True), required=True, help="Is copied first.")
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--reload-seconds", type=float, default=60.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path))
@click.argument("serve_options", nargs=-1)
def main(
    index: Path,
    minutes: float,
    reload_seconds: float,
    seed: int,
    json_file: Path | None,
    serve_options: tuple[str, ...],
) -> None:
    """Soak a server on a copy of INDEX. Options behind -- go to `genret serve`. Exit code 1: calls failed."""
    facts = environment("torch", "grpcio")
    announce(facts)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "soak.index"
        shutil.copytree(index, copy, symlinks=True)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with serving(copy, *serve_options) as served:
            soak = asyncio.run(soak_server(served, copy, minutes * 60, reload_seconds, seed))
            figures = report(soak, served)
    write_json(json_file, command_line(), facts, figures)
    if soak.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
