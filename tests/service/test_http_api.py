"""The HTTP face over fake retrievers: answers, refusals, streams, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from genret.service.configuration.server_config import HttpConfig
from genret.service.gateway import endpoints
from genret.service.wire.json import message_from_json
from tests.service.fake_retriever import FakeRetriever, version
from tests.service.http_gateway import client_in_a_thread, connected, http_client, raw_connection
from tests.service.secured_server import tokens_in

SECRET = "s3cret-" + "x" * 40
ADMIN = "adm1n-" + "y" * 40


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_in_a_thread(FakeRetriever()) as found:
        yield found


def detail(reply: httpx.Response, name: str) -> Any:
    details = reply.json()["error"]["details"]
    (found,) = (d for d in details if d["@type"] == f"type.googleapis.com/google.rpc.{name}")
    return found


def field_of(reply: httpx.Response) -> str:
    """The field that a refusal blames."""
    (violation,) = detail(reply, "BadRequest")["field_violations"]
    return str(violation["field"])


def code_of(reply: httpx.Response) -> tuple[int, str]:
    error = reply.json()["error"]
    assert error["code"] == reply.status_code
    assert reply.headers["content-type"] == "application/json"
    return reply.status_code, error["status"]


def test_a_query_is_answered(client: httpx.Client) -> None:
    reply = client.post("/v1/retrieve", json={"query": "hamlet", "k": 2})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"
    assert re.fullmatch("[0-9a-f]{32}", reply.headers["x-request-id"])
    assert "server" not in reply.headers
    answer = reply.json()
    assert [c["entity_id"] for c in answer["candidates"]] == ["Q0", "Q1"]
    assert answer["candidates"][0]["metadata"]["year"] == {"int_value": "1600"}
    assert answer["index"] == {"name": "fake", "version": "v1", "digest": "d1"}
    assert answer["kv_usage"]["peak_bytes"] == "1000"


async def test_indexes_are_listed_and_found_by_their_names() -> None:
    async with http_client(FakeRetriever(), FakeRetriever()) as client:
        listed = (await client.get("/v1/indexes")).json()["indexes"]
        found = (await client.get("/v1/indexes/fake1")).json()["index"]
        lost = await client.get("/v1/indexes/a%2Fb")
        assert (await client.head("/v1/indexes")).status_code == 200
    assert [(i["name"], i["is_default"]) for i in listed] == [("fake", True), ("fake1", False)]
    assert (found["name"], found["num_rows"]) == ("fake1", "30")
    assert code_of(lost) == (404, "NOT_FOUND")
    assert detail(lost, "ResourceInfo")["resource_name"] == "a/b"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_bodies_that_are_not_declared_as_json_are_refused(
    client: httpx.Client, headers: dict[str, str]
) -> None:
    reply = client.post("/v1/retrieve", content=b'{"query": "x"}', headers=headers)
    assert code_of(reply) == (415, "INVALID_ARGUMENT")


async def test_bodies_above_the_limit_are_refused_however_they_are_sent() -> None:
    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 1000

    headers = {"content-type": "application/json"}
    async with http_client(max_request_bytes=20_000) as client:
        announced = await client.post("/v1/retrieve", content=b" " * 30_000, headers=headers)
        chunked = await client.post("/v1/retrieve", content=chunks(), headers=headers)
        body = json.dumps({"query": "x"}).encode().ljust(20_000)
        fits = await client.post("/v1/retrieve", content=body, headers=headers)
    for reply in (announced, chunked):
        assert code_of(reply) == (413, "INVALID_ARGUMENT")
        assert reply.json()["error"]["message"] == "the body is larger than 20000 bytes"
        assert reply.headers["x-request-id"]
    assert fits.status_code == 200


def test_what_no_route_takes_is_refused_in_the_same_form(client: httpx.Client) -> None:
    assert code_of(client.get("/v2/retrieve")) == (404, "NOT_FOUND")
    foreign = {"type": "invalid_request_error", "param": None, "code": None}
    for lost, told in (
        ("/chat/completions", ", did you mean '/v1/chat/completions'?"),
        ("/v1/v2/rerank", ", did you mean '/v2/rerank'?"),
        (
            "/v1/embeddings",
            "; of the APIs of OpenAI, Cohere and Jina there are POST /v1/rerank, POST /v2/rer",
        ),
        ("/v2/embed", "; of the APIs of OpenAI"),
    ):
        error = client.post(lost).json()["error"]
        assert error.pop("message").startswith(f"there is nothing at {lost}{told}")
        assert error == foreign
    assert client.get("/v1/rerank").json()["message"] == "/v1/rerank takes POST, got GET"
    assert code_of(client.get("/..%2f..%2fetc/passwd")) == (404, "NOT_FOUND")
    wrong = client.get("/v1/retrieve")
    assert code_of(wrong) == (405, "UNIMPLEMENTED")
    assert wrong.headers["allow"] == "POST"
    assert code_of(client.request("TRACE", "/v1/indexes")) == (405, "UNIMPLEMENTED")


def test_a_deadline_that_is_no_number_is_refused(client: httpx.Client) -> None:
    for sent in ("", "soon", "0", "-1", "nan", "inf", "1_0", "1e999", "0x10", "٣"):
        headers = {"x-request-timeout-seconds": sent.encode()}
        reply = client.post("/v1/retrieve", json={"query": "x"}, headers=headers)
        assert code_of(reply) == (400, "INVALID_ARGUMENT"), sent
        assert field_of(reply) == "x-request-timeout-seconds"


async def test_odd_request_ids_are_replaced_and_bugs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeRetriever(bugs={"boom": RuntimeError("secret internals")})
    async with http_client(fake) as client:
        reply = await client.post("/v1/retrieve", json={"query": "boom"})
        other = await client.get("/v1/indexes", headers={"x-request-id": "bad id\x80".encode("latin-1")})
    assert "secret" not in reply.text
    assert "secret internals" in caplog.text
    assert re.fullmatch("[0-9a-f]{32}", other.headers["x-request-id"])


def with_tokens(folder: Path) -> Path:
    return tokens_in(folder, f"read {SECRET}", f"admin {ADMIN}")


async def test_tokens_are_asked_for_where_the_server_has_some(tmp_path: Path) -> None:
    def bearer(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    async with http_client(token_file=with_tokens(tmp_path)) as client:
        for path in ("/v1/indexes", "/v1/indexes/fake", "/metrics"):
            refused = await client.get(path)
            assert code_of(refused) == (401, "UNAUTHENTICATED"), path
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert (await client.get(path, headers=bearer("wrong" * 10))).status_code == 401
            assert (await client.get(path, headers=bearer(SECRET))).status_code == 200
        bad = await client.post("/v1/retrieve", content=b"not even JSON")
        assert bad.status_code == 401, "who may not call learns nothing of what is wrong"
        twice = [("authorization", f"Bearer {SECRET}"), ("authorization", "Bearer x")]
        assert (await client.get("/v1/indexes", headers=twice)).status_code == 401
        for path in ("/livez", "/readyz", "/openapi.json", "/"):
            assert (await client.get(path)).status_code == 200, path


def test_the_page_may_fetch_nothing_from_elsewhere_and_is_sent_once(client: httpx.Client) -> None:
    page = client.get("/")
    again = client.get("/", headers={"if-none-match": page.headers["etag"]})
    script = client.get("/explorer.js")
    document = client.get("/openapi.json")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert (again.status_code, again.content) == (304, b"")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert document.json()["openapi"] == "3.1.0"


async def test_the_page_can_be_left_out() -> None:
    async with http_client(http=HttpConfig(port=0, explorer=False)) as client:
        assert code_of(await client.get("/")) == (404, "NOT_FOUND")


async def test_indexes_are_reloaded_by_those_who_may(tmp_path: Path) -> None:
    admin = {"authorization": f"Bearer {ADMIN}"}
    async with http_client(FakeRetriever(), FakeRetriever(), token_file=with_tokens(tmp_path)) as client:
        refused = await client.post("/v1/indexes/fake1:reload", headers={"authorization": f"Bearer {SECRET}"})
        assert code_of(refused) == (403, "PERMISSION_DENIED")
        done = await client.post("/v1/indexes/fake1:reload", headers=admin)
        forced = await client.post("/v1/indexes/fake1:reload", headers=admin, json={"force": True})
        both = await client.post("/v1/indexes/fake1:reload", headers=admin, json={"name": "fake"})
        lost = await client.post("/v1/indexes/nope:reload", headers=admin)
        error = (await client.get("/v1/indexes/fake1:reload", headers=admin)).json()["error"]
        assert error["message"] == "/v1/indexes/fake1:reload takes POST, got GET"
    assert (done.json()["index"]["name"], done.json()["reloaded"]) == ("fake1", False)
    assert forced.json()["reloaded"] is True
    assert code_of(both) == (400, "INVALID_ARGUMENT")
    assert code_of(lost) == (404, "NOT_FOUND")


async def test_a_reload_may_take_longer_than_a_request() -> None:
    async with connected(max_request_seconds=0.05) as (api, _, client):
        api.opener.table["fake"] = version(2)
        api.opener.hold.clear()
        waiting = asyncio.create_task(client.post("/v1/indexes/fake:reload"))
        headers = {"x-request-timeout-seconds": "0.2"}
        hurried = await client.post("/v1/indexes/fake:reload", headers=headers)
        assert code_of(hurried) == (504, "DEADLINE_EXCEEDED")
        assert not waiting.done()
        api.opener.hold.set()
        assert (await waiting).status_code == 200


def test_a_slash_too_many_is_not_redirected_to_where_the_host_header_says(client: httpx.Client) -> None:
    for verb, path in (("POST", "/v1/retrieve/"), ("GET", "/livez/"), ("GET", "/openapi.json/")):
        reply = client.request(verb, path, headers={"host": "elsewhere"}, content=b"{}")
        assert code_of(reply) == (404, "NOT_FOUND")
        assert "location" not in reply.headers
        assert reply.headers["x-request-id"]


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


def test_each_line_is_answered_and_those_that_fail_fail_alone(client: httpx.Client) -> None:
    body = lines_of(ask("a", "hamlet"), ask("b", " "), ask("c", "x", index="other")) + b"\n  \n"
    body += lines_of(ask("d", "y"))[:-1]
    reply = client.post("/v1/retrieveStream", content=body, headers=HEADERS)
    empty = client.post("/v1/retrieveStream", content=b"", headers=HEADERS)
    answers = by_id(read(reply))
    assert answers["a"]["response"]["candidates"][0]["title"] == "title of hamlet"
    assert answers["b"]["error"]["code"] == 3
    assert answers["c"]["error"]["code"] == 5
    assert answers["d"]["response"]["candidates"], "the last line needs no end"
    assert read(empty) == []
    assert len(reply.headers["x-request-id"]) == 32


async def test_answers_come_while_queries_are_still_sent() -> None:
    head = (
        b"POST /v1/retrieveStream HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n"
        b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    )
    first, second = lines_of(ask("first", "a")), lines_of(ask("second", "b"))
    async with connected() as (_, server, _), raw_connection(server.port) as (reader, writer):
        writer.write(head + chunk(first[:7]) + chunk(first[7:]))
        await asyncio.wait_for(reader.readuntil(b'"id":"first"'), timeout=60)
        writer.write(chunk(second) + chunk(b""))
        assert b'"id":"second"' in await asyncio.wait_for(reader.read(-1), timeout=60)


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


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


def test_what_fails_before_the_first_answer_has_a_status_of_its_own(client: httpx.Client) -> None:
    bad = client.post("/v1/retrieveStream", content=b"nonsense\n", headers=HEADERS)
    wrong = client.post("/v1/retrieveStream", json={})
    assert (bad.status_code, bad.json()["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert (wrong.status_code, wrong.json()["error"]["status"]) == (415, "INVALID_ARGUMENT")


def test_a_long_line_is_read_off_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noting(body: bytes, message: Any) -> Any:
        threads.append(threading.current_thread().name)
        return message_from_json(body, message)

    monkeypatch.setattr(endpoints, "message_from_json", noting)
    ids = [str(i) for i in range(50_000)]
    long = ask("long", "x", allow_entity_ids={"ids": ids})
    body = lines_of(ask("short", "y"), long)
    reply = client.post("/v1/retrieveStream", content=body, headers=HEADERS)
    assert set(by_id(read(reply))) == {"short", "long"}
    assert threads[0] == "test-server", "the thread of the event loop"
    assert threads[1] != threads[0]


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

    lines = endpoints._Lines(Request({"type": "http", "headers": []}, receive), 1000)
    tasks = [asyncio.create_task(lines.read_until_client_gone()), asyncio.create_task(take_turns())]
    assert [line async for line in lines] == []
    for task in tasks:
        task.cancel()
    assert turns > 300
