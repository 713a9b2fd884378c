"""RetrieveStream over HTTP: lines in, lines out, and what ends a stream."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from service.gateway import streams
from service.wire.json import message_from_json
from tests.service.asynchronous import asynchronous
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import gateway, http_client, listening, raw_connection
from tests.service.running_server import until

HEADERS = {"content-type": "application/x-ndjson"}


def lines_of(*messages: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def ask(name: str, query: str, **options: Any) -> dict[str, Any]:
    return {"id": name, "request": {"query": query, **options}}


def read(reply: httpx.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.text.splitlines()]


def by_id(answers: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {answer["id"]: answer for answer in answers}


@asynchronous
async def test_each_line_is_answered_and_those_that_fail_fail_alone() -> None:
    body = lines_of(ask("a", "hamlet"), ask("b", " "), ask("c", "x", index="other")) + b"\n  \n"
    async with http_client() as client:
        reply = await client.post(
            "/v1/retrieveStream", content=body + lines_of(ask("d", "y"))[:-1], headers=HEADERS
        )
        empty = await client.post("/v1/retrieveStream", content=b"", headers=HEADERS)
    answers = by_id(read(reply))
    assert answers["a"]["response"]["candidates"][0]["title"] == "title of hamlet"
    assert answers["b"]["error"]["code"] == 3
    assert answers["c"]["error"]["code"] == 5
    assert answers["d"]["response"]["candidates"], "the last line needs no end"
    assert read(empty) == []
    assert len(reply.headers["x-request-id"]) == 32


@asynchronous
async def test_answers_come_while_queries_are_still_sent() -> None:
    head = (
        b"POST /v1/retrieveStream HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    first, second = lines_of(ask("first", "a")), lines_of(ask("second", "b"))
    async with (
        gateway(FakeRetriever()) as face,
        listening(face.app) as server,
        raw_connection(server.port) as (reader, writer),
    ):
        writer.write(head + chunk(first[:7]) + chunk(first[7:]))
        await asyncio.wait_for(reader.readuntil(b'"id":"first"'), timeout=20)
        writer.write(chunk(second) + chunk(b""))
        assert b'"id":"second"' in await asyncio.wait_for(reader.read(-1), timeout=20)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


@asynchronous
async def test_a_line_that_is_no_query_ends_the_stream_behind_the_answers() -> None:
    for bad, says in (
        (b"nonsense\n", "line 2: the body is not JSON"),
        (b'{"request": {"k": "1"}}\n', "request.k: must be an integer, got a string (line 2)"),
        (b'{"id": "' + b"x" * 40_000 + b'"}\n', "line 2 is longer than 30000 bytes"),
    ):
        body = lines_of(ask("a", "hamlet")) + bad + lines_of(ask("c", "x"))
        async with http_client(max_request_bytes=30_000) as client:
            first, last = read(await client.post("/v1/retrieveStream", content=body, headers=HEADERS))
        assert first["id"] == "a"
        assert "id" not in last
        assert last["error"]["code"] == 400
        assert says in last["error"]["message"]


@asynchronous
async def test_what_fails_before_the_first_answer_has_a_status_of_its_own() -> None:
    async with http_client() as client:
        bad = await client.post("/v1/retrieveStream", content=b"nonsense\n", headers=HEADERS)
        wrong = await client.post("/v1/retrieveStream", json={})
    assert (bad.status_code, bad.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (415, "INVALID_ARGUMENT")


@asynchronous
async def test_a_client_that_leaves_takes_its_queries_along() -> None:
    fake = FakeRetriever()
    fake.hold.clear()
    body = lines_of(*(ask(str(i), f"q{i}") for i in range(100)))
    async with gateway(fake) as face, listening(face.app) as server:
        async with httpx.AsyncClient(
            base_url=f"http://{server.address}", timeout=60, trust_env=False
        ) as client:
            sending = asyncio.create_task(client.post("/v1/retrieveStream", content=body, headers=HEADERS))
            await until(fake.running.is_set)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await until(lambda: face.batcher.num_waiting == 0 and bool(fake.stopped_by))
        await until(lambda: len(face.methods.streams) == 0)


@asynchronous
async def test_a_stream_that_the_server_stops_says_so() -> None:
    fake = FakeRetriever()
    fake.hold.clear()
    async with (
        gateway(fake) as face,
        listening(face.app) as server,
        httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60, trust_env=False) as client,
    ):
        body = lines_of(ask("a", "x"))
        asking = asyncio.create_task(client.post("/v1/retrieveStream", content=body, headers=HEADERS))
        await until(fake.running.is_set)
        await server.stop(0.05)
        reply = await asking
    assert reply.status_code == 503
    assert reply.json()["error"]["status"] == "UNAVAILABLE"


@asynchronous
async def test_a_long_line_is_read_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noting(body: bytes, message: Any) -> Any:
        threads.append(threading.current_thread().name)
        return message_from_json(body, message)

    monkeypatch.setattr(streams, "message_from_json", noting)
    ids = [str(i) for i in range(50_000)]
    long = ask("long", "x", allow_entity_ids={"ids": ids})
    async with http_client() as client:
        reply = await client.post(
            "/v1/retrieveStream", content=lines_of(ask("short", "y"), long), headers=HEADERS
        )
    assert set(by_id(read(reply))) == {"short", "long"}
    assert threads[0] == threading.main_thread().name
    assert threads[1] != threads[0]


@asynchronous
async def test_blank_lines_leave_turns_to_others() -> None:
    turns = 0
    body = [{"type": "http.request", "body": b"\n" * 100_000, "more_body": False}]

    async def receive() -> Any:
        return body.pop() if body else await asyncio.Event().wait()

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    lines = streams._Lines(Request({"type": "http", "headers": []}, receive), 1000)
    tasks = [asyncio.create_task(lines.read_until_client_gone()), asyncio.create_task(take_turns())]
    assert [line async for line in lines] == []
    for task in tasks:
        task.cancel()
    assert turns > 300
