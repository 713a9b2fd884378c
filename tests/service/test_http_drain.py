"""What clients of JSON over HTTP see of a server that drains."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest

from service.configuration.server_config import HttpConfig
from service.serving import readiness as quiet
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import Running, running, until

_QUERY = {"query": "hamlet"}


def url(api: Running) -> str:
    assert api.server.listeners.http is not None
    return f"http://{api.server.listeners.http.address}"


@asynchronous
async def test_replies_of_a_lame_duck_end_their_connection() -> None:
    async with running(FakeRetriever(), http=HttpConfig(port=0), lame_duck_seconds=600.0) as api:
        async with httpx.AsyncClient(base_url=url(api), timeout=60) as client:
            kept = await client.post("/v1/retrieve", json=_QUERY)
            assert "connection" not in kept.headers
            hurry = asyncio.Event()
            draining = asyncio.create_task(api.server.drain(hurry))
            await asyncio.sleep(0)
            for _ in range(2):
                reply = await client.post("/v1/retrieve", json=_QUERY)
                assert (reply.status_code, reply.headers["connection"]) == (200, "close")
        hurry.set()
        await draining


@asynchronous
async def test_clients_that_ask_on_are_answered_or_refused_or_find_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quiet, "_QUIET_S", quiet._MAX_S)  # time for clients that take theirs
    # Those who stop when they are refused always learn it; who knocks again at once may do so just as the
    # listener closes, and is reset. Nobody is left waiting.
    seen: Counter[int] = Counter()
    async with running(FakeRetriever(), http=HttpConfig(port=0)) as api:

        async def ask_on(gives_up: bool) -> None:
            async with httpx.AsyncClient(base_url=url(api), timeout=60) as client:
                code = 200
                while code == 200 or not gives_up:
                    try:
                        code = (await client.post("/v1/retrieve", json=_QUERY)).status_code
                        seen[code] += 1
                    except httpx.ConnectError:
                        return
                    except httpx.ReadError:
                        assert not gives_up
                        return

        asking = [asyncio.create_task(ask_on(bool(i % 2))) for i in range(10)]
        await until(lambda: seen[200] > 50)
        await api.server.drain()
        await asyncio.gather(*asking)
    assert set(seen) == {200, 503}
