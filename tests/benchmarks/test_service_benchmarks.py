"""The load on a server is what it says it is: due times and codes."""

from __future__ import annotations

import asyncio
import math

from benchmarks.harness.load_generator import arrivals, closed_loop, open_loop, probe_health
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


def test_a_call_counts_from_when_it_was_due() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        fake.seconds = 0.05
        async with running(fake) as api, AsyncRetrievalClient(api.server.address) as client:
            load = await open_loop(client, REQUESTS, per_second=40, seconds=1)
            assert load.codes() == {"OK": len(load.calls)}
            assert len(load.calls) == len(list(arrivals(40, 1, seed=0)))
            assert load.milliseconds()["p50"] >= 50
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
