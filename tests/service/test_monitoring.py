"""The port for those who watch, alone and on a real server."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import grpc
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from retrieval.errors import IndexDirectoryError
from service.configuration.server_config import HttpConfig, LogConfig, MetricsConfig
from service.observability.metrics import Metrics, monitoring_app
from service.serving.readiness import Readiness, State
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.running_server import failure, running, until


@pytest.fixture
def readiness() -> Readiness:
    return Readiness([])


@pytest.fixture
def client(readiness: Readiness) -> TestClient:
    return TestClient(monitoring_app(Metrics(), readiness))


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
    assert client.get("/").status_code == 404
    assert client.get("/metrics/x").status_code == 404
    for path in ("/metrics", "/livez", "/readyz"):
        assert client.post(path).status_code == 405
        assert "GET" in client.post(path).headers["allow"]
        assert client.head(path).status_code in (200, 503)
        assert client.head(path).text == ""


def scraped(text: str, metric: str, /, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == metric and labels.items() <= sample.labels.items():
                return sample.value
    return 0.0


def test_a_server_tells_of_its_calls_and_reloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "genret.requests")
    options: dict[str, Any] = {
        "metrics": MetricsConfig(port=0),
        "http": HttpConfig(port=0),
        "log": LogConfig(requests=True),
    }

    async def scenario() -> None:
        async with (
            running(FakeRetriever(), load=False, **options) as server,
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
        ):
            monitoring, http = server.server.listeners.monitoring, server.server.listeners.http
            assert monitoring is not None
            assert http is not None
            watched, api = f"http://{monitoring.address}", f"http://{http.address}"
            assert (await client.get(f"{watched}/readyz")).status_code == 503
            error, _ = await failure(server.retrieve())
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            await server.server.load()
            assert (await client.get(f"{watched}/readyz")).status_code == 200
            await server.retrieve("a secret query")
            await failure(server.retrieve(index="nope"))
            assert (await client.post(f"{api}/v1/retrieve", json={"query": "secret"})).status_code == 200
            await _reloads(server)
            text, counted = "", '{code="NOT_FOUND",method="Retrieve"} 1.0'
            async with asyncio.timeout(60):  # who is refused hears of it before it is counted
                while counted not in text or 'genret_requests_in_flight{method="Retrieve"} 0.0' not in text:
                    text = (await client.get(f"{watched}/metrics")).text
            assert (await client.get(f"{api}/metrics")).status_code == 200
        for code, count in (("OK", 2), ("NOT_FOUND", 1), ("UNAVAILABLE", 1)):
            assert scraped(text, "genret_requests_total", method="Retrieve", code=code) == count
        assert scraped(text, "genret_requests_in_flight", method="Retrieve") == 0
        assert scraped(text, "genret_results_total", method="auto", finish_reason="ok") == 2
        assert scraped(text, "genret_index_info", name="fake", version="v2") == 1
        for outcome in ("unchanged", "reloaded", "failed"):
            assert scraped(text, "genret_reloads_total", index="fake", outcome=outcome) == 1

    asyncio.run(scenario())
    lines = [r.__dict__ for r in caplog.records if r.name == "genret.requests"]
    assert {(r["method"], r["code"]) for r in lines} >= {("Retrieve", "OK"), ("Retrieve", "NOT_FOUND")}
    assert [r["version"] for r in lines if r["code"] == "OK" and r["method"] == "Retrieve"] == ["v1", "v1"]
    assert "secret" not in caplog.text
    assert "secret" not in str(lines)


async def _reloads(server: Any) -> None:
    """Reload in vain, then a new version, then one that cannot be opened."""
    reloader, table = server.server.reloader, server.opener.table
    await reloader.reload("fake")
    new = served(FakeRetriever())
    table["fake"] = dataclasses.replace(new, description=dataclasses.replace(new.description, version="v2"))
    await reloader.reload("fake")
    table["fake"] = IndexDirectoryError("broken")
    with pytest.raises(IndexDirectoryError):
        await reloader.reload("fake")


def test_a_draining_server_still_tells_how_it_stands() -> None:
    async def scenario() -> None:
        fake = FakeRetriever()
        async with (
            running(fake, metrics=MetricsConfig(port=0)) as server,
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
        ):
            monitoring = server.server.listeners.monitoring
            assert monitoring is not None
            watched = f"http://{monitoring.address}"
            fake.hold.clear()
            call = asyncio.ensure_future(server.retrieve())
            await until(fake.running.is_set)
            drain = asyncio.create_task(server.server.drain())
            await until(lambda: server.server.readiness.state is State.DRAINING)
            ready = await client.get(f"{watched}/readyz")
            text = (await client.get(f"{watched}/metrics")).text
            fake.hold.set()
            await call
            await drain
        assert (ready.status_code, ready.text) == (503, f"{State.DRAINING.value}\n")
        assert scraped(text, "genret_ready") == 0
        assert scraped(text, "genret_requests_in_flight", method="Retrieve") == 1

    asyncio.run(scenario())
