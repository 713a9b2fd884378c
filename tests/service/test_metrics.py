"""Metrics: their names follow the conventions, their labels are bounded, and they say what happened."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from decoding.cancellation import CancelToken
from decoding.errors import DeadlineExceededError
from retrieval.answers.answer_types import AnswerRequest
from retrieval.score_types import ScoreRequest
from retrieval.types import RetrieveRequest
from service.configuration.server_config import BatchLimits, QueueLimits
from service.errors import NotReadyError, OverloadedError
from service.observability.metrics import Metrics, ServerState, geometric
from service.observability.observations import QueueObservations
from service.serving.batching import DeviceExecutor, DeviceQueues
from service.serving.readiness import Readiness, State
from service.serving.served import IndexTable
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.full_metrics import CachingFake
from tests.service.running_server import until
from tests.service.turned_clock import TurnedClock


class Scraped:
    """What a scrape shows."""

    def __init__(self, metrics: Metrics) -> None:
        text, self.content_type = metrics.render()
        self.families = {f.name: f for f in text_string_to_metric_families(text.decode())}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, metric: str, /, **labels: str) -> float:
        return self.samples.get((metric, tuple(sorted(labels.items()))), 0.0)


@asynccontextmanager
async def watched(
    *retrievers: FakeRetriever, **queue: Any
) -> AsyncIterator[tuple[Metrics, DeviceQueues, Readiness]]:
    metrics, readiness, table = Metrics(), Readiness([]), IndexTable()
    for i, retriever in enumerate(retrievers):
        table.put(served(retriever, f"index{i}"))
    lanes = DeviceQueues(
        BatchLimits(), QueueLimits(**queue), lambda device: QueueObservations(metrics, device)
    )
    metrics.watch(ServerState("1.2.3", readiness, lanes, table))
    try:
        yield metrics, lanes, readiness
    finally:
        for retriever in retrievers:
            retriever.hold.set()
        await lanes.close()


def test_names_follow_the_conventions() -> None:
    async def scenario() -> None:
        async with watched(CachingFake()) as (metrics, lanes, _):
            lanes.of("cpu")
            found = Scraped(metrics).families
        assert len(found) > 40
        for name, family in found.items():
            assert re.fullmatch(r"(genret|process|python)_[a-z0-9_]*", name), name
            assert family.documentation.strip(), name
            assert not any(sample.name.endswith("_created") for sample in family.samples)
            assert not name.endswith(("_ms", "_millis", "_kib", "_mib", "_count", "_sum", "_bucket")), name
            if name.startswith("genret_"):
                assert family.documentation.endswith("."), name
            words = name.split("_")
            assert all(unit not in words or words[-1] == unit for unit in ("seconds", "bytes")), name
            for sample in family.samples:
                assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels), name
                assert family.type != "counter" or sample.name.endswith("_total"), name

    asyncio.run(scenario())


def test_every_label_has_bounded_values_without_clients_in_them() -> None:
    allowed = {"method", "code", "device", "finish_reason", "reason", "stage", "index", "outcome", "model"}
    allowed |= {"name", "version", "digest", "generation", "le", "implementation", "major", "minor"}

    async def scenario() -> None:
        async with watched(CachingFake()) as (metrics, lanes, _):
            lanes.of("cpu")
            labels = {label for _, pairs in Scraped(metrics).samples for label, _ in pairs}
            assert labels <= allowed

    asyncio.run(scenario())


def test_what_exists_anyway_is_read_at_the_scrape() -> None:
    async def scenario() -> None:
        first, second = CachingFake(), CachingFake()
        async with watched(first, second) as (metrics, lanes, readiness):
            assert Scraped(metrics)("genret_ready") == 0
            await readiness.announce(State.READY)
            first.hold.clear()
            batcher = lanes.of("cpu").batcher
            token = CancelToken()
            running = asyncio.create_task(batcher.submit(first.respond, RetrieveRequest("a"), 10, token))
            await until(first.running.is_set)
            waiting = asyncio.create_task(batcher.submit(first.respond, RetrieveRequest("b"), 7, token))
            await until(lambda: batcher.num_waiting == 1)
            seen = Scraped(metrics)
            assert seen("genret_ready") == 1
            assert seen("genret_queue_depth", device="cpu") == 1
            assert seen("genret_queue_tokens", device="cpu") == 17
            assert seen("genret_build_info", version="1.2.3") == 1
            index = {
                "name": "index0",
                "version": "v1",
                "digest": "d1",
                "model": "fake-model",
                "device": "cpu",
            }
            assert seen("genret_index_info", **index) == 1
            assert seen("genret_index_rows", name="index1") == 30
            assert seen("genret_index_entities", name="index1") == 20
            assert ("genret_index_loaded_timestamp_seconds", (("name", "index1"),)) in seen.samples
            assert seen("genret_filter_cache_hits_total", index="index0") == 5
            assert seen("genret_filter_cache_misses_total", index="index1") == 2
            assert seen("genret_filter_cache_evictions_total", index="index1") == 1
            assert seen("genret_filter_cache_held_bytes", index="index1") == 300
            assert seen("genret_grammar_cache_hits_total", model="fake-model") == 7
            assert seen("genret_grammar_cache_misses_total", model="fake-model") == 3
            assert seen("genret_grammar_cache_held_bytes", model="fake-model") == 4000
            await readiness.announce(State.DRAINING)
            first.hold.set()
            await asyncio.gather(running, waiting)
            seen = Scraped(metrics)
            assert (seen("genret_ready"), seen("genret_queue_depth", device="cpu")) == (0, 0)
            assert seen("genret_queue_tokens", device="cpu") == 0

    asyncio.run(scenario())


def test_an_answer_is_counted_with_its_batch_and_its_work() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        answer = fake.respond
        async with watched(fake) as (metrics, lanes, _):
            batcher = lanes.of("cpu").batcher
            for request in (
                RetrieveRequest("a", method="beam"),
                RetrieveRequest("nothing", method="beam"),
                RetrieveRequest("b", method="disc", min_mass=0.9),
                AnswerRequest("c", schema="{}"),
            ):
                await batcher.submit(answer, request, 100, CancelToken())
            seen = Scraped(metrics)
        assert seen("genret_results_total", method="beam", finish_reason="ok") == 1
        assert seen("genret_results_total", method="beam", finish_reason="no_match") == 1
        assert seen("genret_results_total", method="disc", finish_reason="abstained") == 1
        assert seen("genret_results_total", method="json_greedy", finish_reason="ok") == 1
        assert seen("genret_batch_size_count") == seen("genret_batch_size_sum") == 4
        assert seen("genret_batch_tokens_sum") == 400
        assert seen("genret_batch_seconds_count", device="cpu") == 4
        assert seen("genret_queue_wait_seconds_count") == 4
        assert seen("genret_prefill_seconds_sum") == pytest.approx(0.002)
        assert seen("genret_decode_seconds_sum") == pytest.approx(0.004)
        assert seen("genret_decode_steps_total") == 4 + 5
        assert seen("genret_model_tokens_total") == 11 + 9
        assert seen("genret_kv_peak_bytes_sum") == 2000

    asyncio.run(scenario())


def test_scored_titles_are_counted_whoever_proposed_them() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        answer = fake.respond
        async with watched(fake) as (metrics, lanes, _):
            batcher = lanes.of("cpu").batcher
            for request in (
                RetrieveRequest("a", method="auto"),
                RetrieveRequest("b", method="shortlist"),
                RetrieveRequest("c", method="beam"),
                ScoreRequest("d", ("one", "two")),
            ):
                await batcher.submit(answer, request, 100, CancelToken())
            seen = Scraped(metrics)
        for method in ("auto", "shortlist", "beam", "score"):
            assert seen("genret_results_total", method=method, finish_reason="ok") == 1
        assert seen("genret_shortlist_seconds_count") == 2
        assert seen("genret_shortlist_seconds_sum") == pytest.approx(2 * 0.003)
        assert seen("genret_score_seconds_count") == 3
        assert seen("genret_score_seconds_sum") == pytest.approx(3 * 0.004)
        assert seen("genret_scored_titles_total") == 3 + 3 + 2
        assert seen("genret_model_tokens_total") == 3 * 11 + 17
        assert seen("genret_decode_seconds_count") == 3, "given titles are not decoded"

    asyncio.run(scenario())


def test_refusals_are_counted_by_their_reason() -> None:
    async def scenario() -> None:
        fake = FakeRetriever(bugs={"huge": MemoryError()})
        answer = fake.respond
        async with watched(fake, max_requests=1) as (metrics, lanes, _):
            batcher = lanes.of("cpu").batcher
            with pytest.raises(OverloadedError):
                await batcher.submit(answer, RetrieveRequest("huge"), 1, CancelToken())
            fake.hold.clear()
            fake.running.clear()
            running = asyncio.create_task(batcher.submit(answer, RetrieveRequest("a"), 1, CancelToken()))
            await until(fake.running.is_set)
            with pytest.raises(OverloadedError):
                await batcher.submit(answer, RetrieveRequest("b"), 1, CancelToken())
            await lanes.close()
            with pytest.raises(NotReadyError):
                await running
            with pytest.raises(NotReadyError):
                await batcher.submit(answer, RetrieveRequest("c"), 1, CancelToken())
            seen = Scraped(metrics)
        assert seen("genret_rejected_total", reason="memory_full") == 1
        assert seen("genret_rejected_total", reason="queue_full") == 1
        assert seen("genret_rejected_total", reason="shutting_down") == 2

    asyncio.run(scenario())


def test_clients_that_leave_and_deadlines_are_counted_once_where_they_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = TurnedClock(monkeypatch)

    async def scenario() -> None:
        fake = FakeRetriever()
        answer = fake.respond
        async with watched(fake) as (metrics, lanes, _):
            batcher = lanes.of("cpu").batcher
            with pytest.raises(DeadlineExceededError):
                await batcher.submit(answer, RetrieveRequest("late"), 1, CancelToken(time.monotonic() - 1))
            fake.hold.clear()
            running = asyncio.create_task(batcher.submit(answer, RetrieveRequest("a"), 1, CancelToken()))
            await until(fake.running.is_set)
            waiting = asyncio.create_task(batcher.submit(answer, RetrieveRequest("b"), 1, CancelToken()))
            hurried = CancelToken(time.monotonic() + 600)
            expired = asyncio.create_task(batcher.submit(answer, RetrieveRequest("c"), 1, hurried))
            await until(lambda: batcher.num_waiting == 2)
            waiting.cancel()
            await until(lambda: batcher.num_waiting == 1)
            clock.forward(600)
            await until(lambda: batcher.num_waiting == 0)
            running.cancel()
            ended = await asyncio.gather(running, waiting, expired, return_exceptions=True)
            assert [type(error) for error in ended] == [
                asyncio.CancelledError,
                asyncio.CancelledError,
                DeadlineExceededError,
            ]
            fake.running.clear()
            soon = CancelToken(time.monotonic() + 600)
            decoding = asyncio.create_task(batcher.submit(answer, RetrieveRequest("d"), 1, soon))
            await until(fake.running.is_set)
            clock.forward(600)
            with pytest.raises(DeadlineExceededError):
                await decoding
            seen = Scraped(metrics)
        assert {s: seen("genret_cancelled_total", stage=s) for s in ("queue", "running")} == {
            "queue": 1,
            "running": 1,
        }
        stages = ("arrival", "queue", "running")
        assert [seen("genret_deadline_exceeded_total", stage=s) for s in stages] == [1, 1, 1]

    asyncio.run(scenario())


def test_a_deadline_that_ends_the_decoding_and_the_wait_at_once_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The decoder has noticed, and the wait is over before who waits is told of it."""
    clock = TurnedClock(monkeypatch)
    run = DeviceExecutor.run

    async def late(*arguments: Any) -> Any:
        outcomes = await run(*arguments)
        clock.forward(600)
        await asyncio.sleep(0)
        return outcomes

    async def scenario() -> None:
        fake = FakeRetriever({"a": DeadlineExceededError("late")})
        answer = fake.respond
        async with watched(fake) as (metrics, lanes, _):
            batcher = lanes.of("cpu").batcher
            monkeypatch.setattr(DeviceExecutor, "run", late)
            with pytest.raises(DeadlineExceededError):
                await batcher.submit(answer, RetrieveRequest("a"), 1, CancelToken(time.monotonic() + 600))
            seen = Scraped(metrics)
        stages = ("arrival", "queue", "running")
        assert [seen("genret_deadline_exceeded_total", stage=s) for s in stages] == [0, 0, 1]

    asyncio.run(scenario())


def test_work_of_batches_and_streams_counts_while_it_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = TurnedClock(monkeypatch)

    async def scenario() -> None:
        fake = FakeRetriever()
        async with watched(fake, max_requests=2) as (metrics, lanes, _):
            fair_queue, entered = lanes.of("cpu").fair_queue, asyncio.Event()

            async def hold() -> None:
                async with fair_queue.room(1, math.inf):
                    entered.set()
                    await asyncio.Event().wait()

            async def wait(deadline: float, bounded: bool = False) -> None:
                async with fair_queue.room(1, deadline, bounded):
                    raise AssertionError("there was no room")

            holding = asyncio.create_task(hold())
            await entered.wait()
            waiting = asyncio.create_task(wait(math.inf))
            expiring = asyncio.create_task(wait(time.monotonic() + 600))
            await until(lambda: fair_queue.num_waiting == 2)
            assert Scraped(metrics)("genret_queue_patient", device="cpu") == 2
            with pytest.raises(OverloadedError):
                await wait(math.inf, bounded=True)
            clock.forward(600)
            with pytest.raises(DeadlineExceededError):
                await expiring
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            seen = Scraped(metrics)
        assert seen("genret_queue_patient", device="cpu") == 0
        assert seen("genret_rejected_total", reason="queue_full") == 1
        assert seen("genret_deadline_exceeded_total", stage="arrival") == 1
        assert seen("genret_cancelled_total", stage="queue") == 1

    asyncio.run(scenario())


def test_a_client_that_gives_up_at_its_deadline_is_no_cancellation() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        answer = fake.respond
        async with watched(fake) as (metrics, lanes, _):
            fake.hold.clear()
            token = CancelToken(time.monotonic() + 30)
            running = asyncio.create_task(
                lanes.of("cpu").batcher.submit(answer, RetrieveRequest("a"), 1, token)
            )
            await until(fake.running.is_set)
            token.deadline = time.monotonic() + 0.02
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            seen = Scraped(metrics)
        assert seen("genret_cancelled_total", stage="running") == 0
        assert seen("genret_deadline_exceeded_total", stage="running") == 1

    asyncio.run(scenario())


def test_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.requests.labels("Retrieve", "OK").inc()
    assert Scraped(one)("genret_requests_total", method="Retrieve", code="OK") == 1
    assert Scraped(other)("genret_requests_total", method="Retrieve", code="OK") == 0
    assert Scraped(one).content_type.startswith("text/plain")


def test_buckets_grow_by_a_factor() -> None:
    assert geometric(0.0001, 2, 4) == (0.0001, 0.0002, 0.0004, 0.0008)
    bounds = geometric(1e-4, 2.0, 22)
    assert bounds[-1] > 120, "a call that takes its longest is in a bucket"
    for bad in ((0, 2, 1), (1, 1, 1), (1, 2, 0)):
        with pytest.raises(ValueError, match="expected"):
            geometric(*bad)
