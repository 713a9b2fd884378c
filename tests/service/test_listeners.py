"""A server's listeners live and drain together: gRPC, JSON over HTTP, and the port of those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest

from service.configuration.server_config import HttpConfig, MetricsConfig
from service.errors import BindError
from service.serving.server import Server
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever, served, version
from tests.service.running_server import Running, TableOpener, make_config, running, until

EVERYTHING: dict[str, Any] = {"http": HttpConfig(port=0), "metrics": MetricsConfig(port=0)}


@asynccontextmanager
async def clients(api: Running) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    listeners = api.server.listeners
    assert listeners.http is not None
    assert listeners.monitoring is not None
    urls = [f"http://{server.address}" for server in (listeners.http, listeners.monitoring)]
    async with (
        httpx.AsyncClient(base_url=urls[0], timeout=60) as http,
        httpx.AsyncClient(base_url=urls[1], timeout=60) as watch,
    ):
        yield http, watch


async def ask(http: httpx.AsyncClient, query: str = "hamlet") -> httpx.Response:
    return await http.post("/v1/retrieve", json={"query": query})


@asynchronous
async def test_all_listeners_serve_the_same_indexes() -> None:
    async with running(FakeRetriever(), **EVERYTHING) as api, clients(api) as (http, watch):
        over_grpc = await api.retrieve()
        over_http = (await ask(http)).raise_for_status().json()
        assert over_http["candidates"][0]["title"] == over_grpc.candidates[0].title
        api.opener.table["fake"] = version(2)
        reloaded = (await http.post("/v1/indexes/fake:reload")).raise_for_status().json()
        assert (reloaded["index"]["version"], reloaded["reloaded"]) == ("v2", True)
        assert (await api.retrieve()).index.version == "v2"
        for client in (http, watch):
            assert (await client.get("/readyz")).status_code == 200
            text = (await client.get("/metrics")).raise_for_status().text
            assert 'genret_index_info{device="cpu"' in text
            assert 'version="v2"' in text


@asynchronous
async def test_all_listeners_say_that_the_server_warms_up() -> None:
    async with running(FakeRetriever(), load=False, **EVERYTHING) as api, clients(api) as (http, watch):
        for client in (http, watch):
            assert (await client.get("/livez")).status_code == 200
            assert (await client.get("/readyz")).status_code == 503
        assert (await ask(http)).status_code == 503


@asynchronous
async def test_draining_answers_what_is_in_flight_on_every_listener_and_watching_ends_last() -> None:
    fake = FakeRetriever()
    async with running(fake, **EVERYTHING) as api, clients(api) as (http, watch):
        fake.hold.clear()
        over_grpc, over_http = asyncio.ensure_future(api.retrieve()), asyncio.ensure_future(ask(http))
        await until(lambda: api.server.lanes.of("cpu").admission.num_requests == 2)
        draining = asyncio.ensure_future(api.server.drain())
        async with asyncio.timeout(60):
            while (await watch.get("/readyz")).status_code != 503:
                await asyncio.sleep(0.002)
        assert (await watch.get("/metrics")).status_code == 200
        fake.hold.set()
        assert (await over_grpc).candidates
        assert (await over_http).status_code == 200
        await draining
        for client in (http, watch):
            with pytest.raises(httpx.TransportError):
                await client.get("/livez")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.retrieve()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@asynchronous
async def test_hurry_cancels_what_is_in_flight_on_every_listener() -> None:
    fake = FakeRetriever()
    async with running(fake, drain_seconds=600, **EVERYTHING) as api, clients(api) as (http, _):
        fake.hold.clear()
        over_grpc, over_http = asyncio.ensure_future(api.retrieve()), asyncio.ensure_future(ask(http))
        await until(lambda: api.server.lanes.of("cpu").admission.num_requests == 2)
        hurry = asyncio.Event()
        draining = asyncio.ensure_future(api.server.drain(hurry))
        hurry.set()
        await asyncio.wait_for(draining, 60)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await over_grpc
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert (await over_http).status_code == 503


@pytest.mark.parametrize("setting", ["http", "metrics"])
def test_a_port_in_use_stops_the_start_and_leaves_nothing_behind(setting: str) -> None:
    async def scenario() -> None:
        async with running(FakeRetriever(), **EVERYTHING) as api:
            first = api.server.listeners.http
            assert first is not None
            taken = {"http": HttpConfig(port=first.port), "metrics": MetricsConfig(port=first.port)}
            second = Server(
                make_config(**{**EVERYTHING, setting: taken[setting]}),
                TableOpener({"fake": served(FakeRetriever())}),
            )
            with pytest.raises(BindError, match=rf"cannot listen on 127\.0\.0\.1:{first.port}"):
                await second.start()
            await second.drain()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", second.port)

    asyncio.run(scenario())
