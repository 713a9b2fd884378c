"""One client, many clients and the library alone, in turn: all see the machine's good and bad minutes.

Served, the model shares its cores with the client and the server's event loop; so the library answers alone,
and beside a process that is as busy as those two were.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from genret.retrieval.types import RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from harness.load_generator import closed_loop

_ONE_S, _MANY_S = 5.0, 8.0
_NUM_CLIENTS = 64
_BATCH_SIZE, _BATCHES = 32, 5  # of the library in a turn; batches are those of a server by default


@contextlib.contextmanager
def busy_process(share: float) -> Iterator[None]:
    """Let another process use a share of a core during the block, a millisecond at a time."""
    code = (
        "import time\nprint(flush=True)\nwhile True:\n"
        "    end = time.thread_time() + 0.001\n    while time.thread_time() < end: pass\n"
        f"    time.sleep({0.001 * (1 - share) / share!r})"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is not None:
                process.stdout.readline()  # it runs
            yield
        finally:
            process.kill()


async def measure_turns(
    client: AsyncRetrievalClient,
    requests: Sequence[RetrieveRequest],
    index: Path,
    busy_share: float,
    num_turns: int,
) -> dict[str, Any]:
    """Compare 64 clients with one, and with the library in this process.

    Args:
        client: Of the server.
        requests: What is asked, by the library too.
        index: The index that the server has.
        busy_share: Of a core: of the process beside the library.
        num_turns: How often.

    Returns:
        Answers per second by turn, and the ratios of them within turns.
    """
    from genret.retrieval.retriever import Retriever

    per_second: dict[str, list[float]] = {"one": [], "many": [], "alone": [], "beside": []}
    with Retriever.open(index, num_threads=1) as retriever:
        retriever.warm_up()
        for turn in range(num_turns):
            per_second["one"].append((await closed_loop(client, requests, 1, _ONE_S)).per_second)
            per_second["many"].append((await closed_loop(client, requests, _NUM_CLIENTS, _MANY_S)).per_second)
            seconds = {"alone": 0.0, "beside": 0.0}
            for number in range(turn * _BATCHES, (turn + 1) * _BATCHES):
                first = number * _BATCH_SIZE % (len(requests) - _BATCH_SIZE + 1)
                for name in seconds:
                    with busy_process(busy_share) if name == "beside" else contextlib.nullcontext():
                        begun = time.perf_counter()
                        retriever.retrieve_batch(list(requests[first : first + _BATCH_SIZE]))
                        seconds[name] += time.perf_counter() - begun
            for name, taken in seconds.items():
                per_second[name].append(_BATCHES * _BATCH_SIZE / taken)
    ratios = {
        name: [many / other for many, other in zip(per_second["many"], per_second[name], strict=True)]
        for name in ("one", "alone", "beside")
    }
    _print(per_second, ratios, busy_share)
    return {"busy_share": busy_share, "per_second": per_second, "ratios": ratios}


def _print(per_second: dict[str, list[float]], ratios: dict[str, list[float]], busy_share: float) -> None:
    names = {
        "one": "one client",
        "many": f"{_NUM_CLIENTS} clients",
        "alone": f"the library, batches of {_BATCH_SIZE}",
        "beside": f"the same beside a process that uses {busy_share:.0%} of a core",
    }
    for name, values in per_second.items():
        click.echo(f"  {names[name]}: {_spread(values, 1)} answers/s")
    for name, values in ratios.items():
        click.echo(f"  {_NUM_CLIENTS} clients against {names[name]}: {_spread(values, 2)}x")


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
