"""The load on a server is what it says it is: due times, codes, percentiles."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.harness.load_generator import (
    Percentiles,
    arrivals,
    closed_loop,
    open_loop,
    probe_health,
)
from benchmarks.harness.served_process import ServedProcess, ThreadTimes
from genret.retrieval.types import RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from genret.service.configuration.server_config import QueueLimits
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import running, until

REQUESTS = [RetrieveRequest(f"query {i}") for i in range(5)]


def test_arrivals_are_a_poisson_process_and_the_same_for_a_seed() -> None:
    times = list(arrivals(200, 50, seed=3))
    assert times == list(arrivals(200, 50, seed=3)) != list(arrivals(200, 50, seed=4))
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 50
    assert abs(len(times) - 10_000) < 5 * math.sqrt(10_000)  # 5 sigma


def test_percentiles() -> None:
    figure = Percentiles.of([float(value) for value in range(100, 0, -1)])
    assert (figure.p50, figure.p90, figure.p99, figure.worst, figure.count) == (51, 91, 100, 100, 100)
    assert math.isnan(Percentiles.of([]).p99)


def test_a_call_counts_from_when_it_was_due() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.seconds = 0.05
        async with running(fake) as api, AsyncRetrievalClient(api.server.address) as client:
            load = await open_loop(client, REQUESTS, per_second=40, seconds=1)
            assert load.codes() == {"OK": len(load.calls)}
            assert len(load.calls) == len(list(arrivals(40, 1, seed=0)))
            assert load.milliseconds().p50 >= 50
            assert all(call.late_seconds <= call.seconds for call in load.calls)

    asyncio.run(scenario())


def test_refusals_are_counted_with_their_hints() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.seconds = 0.02
        queue = QueueLimits(max_requests=1)
        async with running(fake, queue=queue) as api, AsyncRetrievalClient(api.server.address) as client:
            times: list[float] = []
            probe = asyncio.create_task(probe_health(client, times, every_s=0.01))
            load = await closed_loop(client, REQUESTS, num_clients=4, seconds=0.5)
            await until(lambda: len(times) > 1)
            probe.cancel()
            refused = load.with_code("RESOURCE_EXHAUSTED")
            assert refused
            assert len(refused) + len(load.with_code("OK")) == len(load.calls)
            assert all(call.retry_after_s is not None for call in refused)
            assert load.per_second == len(load.with_code("OK")) / load.seconds

    asyncio.run(scenario())


def test_threads_of_a_process_tell_where_their_time_went(tmp_path: Path) -> None:
    busy = "while sum(range(1000)): pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as process:
        try:
            served = ServedProcess(process, "nowhere", tmp_path / "log")
            begun = served.thread_times()
            while served.thread_times()[process.pid].since(begun[process.pid]).ran_s < 0.02:
                time.sleep(0.001)
            assert set(served.thread_times()) == {process.pid}
        finally:
            process.kill()
    assert ThreadTimes(3.0, 1.0).since(ThreadTimes(1.0, 0.5)) == ThreadTimes(2.0, 0.5)
    assert ThreadTimes(3.0, 1.0).since(None) == ThreadTimes(3.0, 1.0)
