"""Metrics: what is counted, what is read at the scrape, and the monitoring port."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any
from unittest.mock import AsyncMock

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.errors import IndexDirectoryError
from genret.retrieval.score_types import ScoreRequest
from genret.retrieval.types import RetrieveRequest
from genret.service.configuration.server_config import (
    HttpConfig,
    LogConfig,
    MetricsConfig,
)
from genret.service.errors import NotReadyError, OverloadedError
from genret.service.observability.metrics import Metrics, geometric, monitoring_app
from genret.service.serving.batching import DeviceQueue, DeviceQueues, QueuedResult
from genret.service.serving.fair_shares import Caller
from genret.service.serving.readiness import Readiness, State
from tests.service.fake_retriever import FakeRetriever, version
from tests.service.full_metrics import watched
from tests.service.running_server import failure, failure_code, running, until
from tests.service.turned_clock import TurnedClock


class Scraped:
    def __init__(self, shown: Metrics | str) -> None:
        text = shown if isinstance(shown, str) else shown.render()[0].decode()
        self.families = {f.name: f for f in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, metric: str, /, **labels: str) -> float:
        return self.samples.get((metric, tuple(sorted(labels.items()))), 0.0)


async def ask(
    lanes: DeviceQueues, fake: FakeRetriever, query: str, token: CancelToken | None = None
) -> QueuedResult:
    return await lanes.of("cpu").submit(fake.respond, RetrieveRequest(query), 1, token or CancelToken())


LABELS = {"method", "code", "device", "finish_reason", "reason", "stage", "index", "outcome", "model"}
LABELS |= {"name", "version", "digest", "generation", "le", "implementation", "major", "minor"}


async def test_names_follow_the_conventions_and_labels_have_bounded_values() -> None:
    async with watched(FakeRetriever()) as (metrics, lanes, _):
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
            assert sample.labels.keys() <= LABELS, "no client, query or request is a label"
            assert family.type != "counter" or sample.name.endswith("_total"), name


async def test_what_exists_anyway_is_read_at_the_scrape() -> None:
    first, second = FakeRetriever(), FakeRetriever()
    async with watched(first, second) as (metrics, lanes, readiness):
        assert Scraped(metrics)("genret_ready") == 0
        await readiness.announce(State.READY)
        first.hold.clear()
        lane = lanes.of("cpu")

        def submit(client: str, tokens: int) -> asyncio.Task[QueuedResult]:
            asked, caller = RetrieveRequest("a"), Caller(client, "call")
            return asyncio.create_task(lane.submit(first.respond, asked, tokens, CancelToken(), caller))

        running = submit("me", 10)
        await until(first.running.is_set)
        waiting = [submit(client, 7) for client in ("me", "you", "me")]
        await until(lambda: lane.num_waiting == 3)
        seen = Scraped(metrics)
        assert seen("genret_ready") == 1
        assert seen("genret_queue_depth", device="cpu") == 3
        assert seen("genret_queue_tokens", device="cpu") == 31
        assert seen("genret_clients", device="cpu") == 2
        assert seen("genret_build_info", version="1.2.3") == 1
        index = {"name": "index0", "version": "v1", "digest": "d1", "model": "fake-model", "device": "cpu"}
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
        await asyncio.gather(running, *waiting)
        seen = Scraped(metrics)
        queues = [seen(f"genret_{name}", device="cpu") for name in ("queue_depth", "queue_tokens", "clients")]
        assert [seen("genret_ready"), *queues] == [0, 0, 0, 0]


async def counted(*requests: Any) -> Scraped:
    """Answer requests of 100 tokens of work, one after the other; return what a scrape shows then."""
    fake = FakeRetriever()
    answer = fake.respond
    async with watched(fake) as (metrics, lanes, _):
        for request in requests:
            await lanes.of("cpu").submit(answer, request, 100, CancelToken())
        return Scraped(metrics)


async def test_an_answer_is_counted_with_its_batch_and_its_work() -> None:
    seen = await counted(
        RetrieveRequest("a", method="beam"),
        RetrieveRequest("nothing", method="beam"),
        RetrieveRequest("b", method="disc", min_mass=0.9),
        AnswerRequest("c", schema="{}"),
    )
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


async def test_scored_titles_are_counted_whoever_proposed_them() -> None:
    methods = ("auto", "shortlist", "beam")
    asked = (RetrieveRequest("a", method=method) for method in methods)
    seen = await counted(*asked, ScoreRequest("d", ("one", "two")))
    for method in (*methods, "score"):
        assert seen("genret_results_total", method=method, finish_reason="ok") == 1
    assert seen("genret_shortlist_seconds_count") == 2
    assert seen("genret_shortlist_seconds_sum") == pytest.approx(2 * 0.003)
    assert seen("genret_score_seconds_count") == 3
    assert seen("genret_score_seconds_sum") == pytest.approx(3 * 0.004)
    assert seen("genret_scored_titles_total") == 3 + 3 + 2
    assert seen("genret_model_tokens_total") == 3 * 11 + 17
    assert seen("genret_decode_seconds_count") == 3, "given titles are not decoded"


async def test_refusals_are_counted_by_their_reason() -> None:
    fake = FakeRetriever(bugs={"huge": MemoryError()})
    async with watched(fake, max_requests=1) as (metrics, lanes, _):
        with pytest.raises(OverloadedError):
            await ask(lanes, fake, "huge")
        fake.hold.clear()
        fake.running.clear()
        running = asyncio.create_task(ask(lanes, fake, "a"))
        await until(fake.running.is_set)
        with pytest.raises(OverloadedError):
            await ask(lanes, fake, "b")
        await lanes.close()
        with pytest.raises(NotReadyError):
            await running
        with pytest.raises(NotReadyError):
            await ask(lanes, fake, "c")
        seen = Scraped(metrics)
    assert seen("genret_rejected_total", reason="memory_full") == 1
    assert seen("genret_rejected_total", reason="queue_full") == 1
    assert seen("genret_rejected_total", reason="shutting_down") == 2


async def test_clients_that_leave_and_deadlines_are_counted_once_where_they_happened(
    clock: TurnedClock,
) -> None:
    fake = FakeRetriever()
    async with watched(fake) as (metrics, lanes, _):
        lane = lanes.of("cpu")
        with pytest.raises(DeadlineExceededError):
            await ask(lanes, fake, "late", CancelToken(time.monotonic() - 1))
        fake.hold.clear()
        running = asyncio.create_task(ask(lanes, fake, "a"))
        await until(fake.running.is_set)
        waiting = asyncio.create_task(ask(lanes, fake, "b"))
        hurried = CancelToken(time.monotonic() + 600)
        expired = asyncio.create_task(ask(lanes, fake, "c", hurried))
        await until(lambda: lane.num_waiting == 2)
        waiting.cancel()
        await until(lambda: lane.num_waiting == 1)
        clock.forward(600)
        await until(lambda: lane.num_waiting == 0)
        running.cancel()
        ended = await asyncio.gather(running, waiting, expired, return_exceptions=True)
        left = asyncio.CancelledError
        assert [type(error) for error in ended] == [left, left, DeadlineExceededError]
        fake.running.clear()
        soon = CancelToken(time.monotonic() + 600)
        decoding = asyncio.create_task(ask(lanes, fake, "d", soon))
        await until(fake.running.is_set)
        clock.forward(600)
        with pytest.raises(DeadlineExceededError):
            await decoding
        seen = Scraped(metrics)
    assert [seen("genret_cancelled_total", stage=s) for s in ("queue", "running")] == [1, 1]
    stages = ("arrival", "queue", "running")
    assert [seen("genret_deadline_exceeded_total", stage=s) for s in stages] == [1, 1, 1]


async def test_a_deadline_that_ends_the_decoding_and_the_wait_at_once_is_counted_once(
    clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decoder has noticed, and the wait is over before who waits is told of it."""
    finish = DeviceQueue._finish

    def late(*arguments: Any) -> None:
        clock.forward(600)
        asyncio.get_running_loop().call_soon(finish, *arguments)

    fake = FakeRetriever({"a": DeadlineExceededError("late")})
    async with watched(fake) as (metrics, lanes, _):
        monkeypatch.setattr(DeviceQueue, "_finish", late)
        with pytest.raises(DeadlineExceededError):
            await ask(lanes, fake, "a", CancelToken(time.monotonic() + 600))
        seen = Scraped(metrics)
    stages = ("arrival", "queue", "running")
    assert [seen("genret_deadline_exceeded_total", stage=s) for s in stages] == [0, 0, 1]


async def test_a_client_that_gives_up_at_its_deadline_is_no_cancellation() -> None:
    fake = FakeRetriever(held=True)
    async with watched(fake) as (metrics, lanes, _):
        token = CancelToken(time.monotonic() + 30)
        running = asyncio.create_task(ask(lanes, fake, "a", token))
        await until(fake.running.is_set)
        token.deadline = time.monotonic() + 0.02
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        seen = Scraped(metrics)
    assert seen("genret_cancelled_total", stage="running") == 0
    assert seen("genret_deadline_exceeded_total", stage="running") == 1


def test_buckets_grow_by_a_factor() -> None:
    assert geometric(0.0001, 2, 4) == (0.0001, 0.0002, 0.0004, 0.0008)
    bounds = geometric(1e-4, 2.0, 22)
    assert bounds[-1] > 120, "a call that takes its longest is in a bucket"


@pytest.fixture
def readiness() -> Readiness:
    return Readiness([])


@pytest.fixture
def client(readiness: Readiness) -> TestClient:
    return TestClient(monitoring_app(Metrics(), readiness, AsyncMock(return_value=b"")))


def test_metrics_are_plain_text_of_now(client: TestClient) -> None:
    reply = client.get("/metrics", headers={"accept-encoding": "gzip"})
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain; version=")
    assert "content-encoding" not in reply.headers
    assert reply.headers["cache-control"] == "no-store"
    assert {f.name for f in text_string_to_metric_families(reply.text)} >= {"genret_batch_size"}


@pytest.mark.parametrize("state", list(State))
def test_readiness_follows_the_state_and_liveness_does_not(
    client: TestClient, readiness: Readiness, state: State
) -> None:
    asyncio.run(readiness.announce(state))
    ready, live = client.get("/readyz"), client.get("/livez")
    assert ready.status_code == (200 if state is State.READY else 503)
    assert ready.text == f"{state.value}\n"
    assert ("retry-after" in ready.headers) is (state is not State.READY)
    assert live.status_code == 200


def test_other_paths_and_methods_are_refused(client: TestClient) -> None:
    for path in ("/", "/metrics/x", "/metrics/", "/livez/", "/readyz/"):  # nor is anybody redirected
        assert client.get(path).status_code == 404
    for path in ("/metrics", "/livez", "/readyz"):
        assert client.post(path).status_code == 405
        assert "GET" in client.post(path).headers["allow"]
        assert client.head(path).status_code in (200, 503)
        assert client.head(path).text == ""


async def test_a_server_tells_of_its_calls_and_reloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "genret.requests")
    options: dict[str, Any] = {"metrics": MetricsConfig(port=0), "http": HttpConfig(port=0)}
    options["log"] = LogConfig(requests=True)
    async with (
        running(FakeRetriever(), load=False, **options) as server,
        httpx.AsyncClient(timeout=60, trust_env=False) as client,
    ):
        watched, api = (f"http://{one.address}" for one in (server.server.monitoring, server.server.http))
        assert (await client.get(f"{watched}/readyz")).status_code == 503
        assert await failure_code(server.retrieve()) is grpc.StatusCode.UNAVAILABLE
        await server.server.load()
        assert (await client.get(f"{watched}/readyz")).status_code == 200
        await server.retrieve("a secret query")
        await failure(server.retrieve(index="nope"))
        assert (await client.post(f"{api}/v1/retrieve", json={"query": "secret"})).status_code == 200
        assert (await client.get(f"{api}/v1/indexes/nope")).status_code == 404
        await _reloads(server)
        text = ""
        counted = [f'{{code="NOT_FOUND",method="{method}"}} 1.0' for method in ("Retrieve", "GetIndex")]
        counted.append('genret_requests_in_flight{method="Retrieve"} 0.0')
        async with asyncio.timeout(60):  # who is refused hears of it before it is counted
            while not all(line in text for line in counted):
                text = (await client.get(f"{watched}/metrics")).text
        assert (await client.get(f"{api}/metrics")).status_code == 200
    seen = Scraped(text)
    for code, count in (("OK", 2), ("NOT_FOUND", 1), ("UNAVAILABLE", 1)):
        assert seen("genret_requests_total", method="Retrieve", code=code) == count
    assert seen("genret_requests_total", method="GetIndex", code="NOT_FOUND") == 1, "asked over HTTP"
    assert seen("genret_results_total", method="auto", finish_reason="ok") == 2
    index = {"name": "fake", "version": "v2", "digest": "d1", "model": "fake-model", "device": "cpu"}
    assert seen("genret_index_info", **index) == 1
    for outcome in ("unchanged", "reloaded", "failed"):
        assert seen("genret_reloads_total", index="fake", outcome=outcome) == 1
    lines = [r.__dict__ for r in caplog.records if r.name == "genret.requests"]
    assert {(r["method"], r["code"]) for r in lines} >= {("Retrieve", "OK"), ("Retrieve", "NOT_FOUND")}
    assert [r["version"] for r in lines if r["code"] == "OK" and r["method"] == "Retrieve"] == ["v1", "v1"]
    assert "secret" not in caplog.text
    assert "secret" not in str(lines)


async def _reloads(server: Any) -> None:
    """Reload in vain, then a new version, then one that cannot be opened."""
    reloader, table = server.server.engine.reloader, server.opener.table
    await reloader.reload("fake")
    table["fake"] = version(2)
    await reloader.reload("fake")
    table["fake"] = IndexDirectoryError("broken")
    with pytest.raises(IndexDirectoryError):
        await reloader.reload("fake")
