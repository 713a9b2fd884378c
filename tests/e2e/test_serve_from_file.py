"""A server as a process whose settings come from one file: indexes, models, listeners, tokens, logs."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from genret.service.call import REQUEST_ID_KEY
from genret.service.client import RetrievalClient
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from tests.service.fake_retriever import wait_until
from tests.service.secured_server import tokens_in
from tests.service.server_process import ServerProcess
from tests.service.tiny_assets import make_checkpoint, make_index

pytestmark = pytest.mark.slow
TOKEN = "a-token-that-is-long-enough"
SETTINGS = """
[server]
port = 0
[http]
port = 0
[metrics]
port = 0
[auth]
token_file = "tokens"
[log]
format = "json"
requests = true
[batch]
max_size = 4
[models.default]
checkpoint = "one"
device = "cpu"
[models.second]
checkpoint = "two"
device = "cpu"
dtype = "float64"
[indexes.first]
path = "one-index/tiny"
[indexes.other]
path = "two-index/tiny"
model = "second"
"""
SERVED = (
    *(rf"index '{name}' \(12 entities, \d+ rows\)" for name in ("first", "other")),
    *(f"model {name} on cpu" for name in ("one", "two")),
)
READY = re.compile(rf"ready on (\S+): {'; '.join(SERVED)}; HTTP on (\S+); metrics on ([^\s\"]+)\"")


@dataclass
class Running:
    """A server and where it listens."""

    grpc: str
    http: str
    metrics: str
    process: ServerProcess

    def lines(self) -> list[dict[str, Any]]:
        """Return what was said; every line of it is an object."""
        return [json.loads(line) for line in self.process.lines]

    def calls(self, request_id: str) -> list[dict[str, Any]]:
        return [entry for entry in self.lines() if entry.get("request_id") == request_id]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("configured")
    for name in ("one", "two"):
        make_index(folder / f"{name}-index", make_checkpoint(folder / name))
    (folder / "server.toml").write_text(SETTINGS, encoding="utf-8")
    tokens_in(folder, f"read {TOKEN}")
    # The folder is not where the file lies.
    with ServerProcess("--config", str(folder / "server.toml"), cwd=folder / "one") as process:
        ready = READY.search(process.said("ready on "))
        assert ready, process.lines
        running = Running(ready[1], ready[2], ready[3], process)
        yield running
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0
        assert running.lines()[-1]["message"] == "stopped"
        assert "metal" not in "".join(process.lines), "no text of a query is logged unless asked for"


def ask(url: str, body: dict[str, Any] | None = None, token: str | None = None) -> tuple[int, str]:
    """Return the status and the text of a reply over HTTP."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_each_index_is_answered_by_its_own_model(server: Running) -> None:
    with RetrievalClient(server.grpc, token=TOKEN) as client:
        found = {index.name: index for index in client.list_indexes()}
    assert {name: index.model for name, index in found.items()} == {"first": "one", "other": "two"}
    for name in found:
        status, text = ask(f"http://{server.http}/v1/retrieve", {"query": "metal", "index": name}, TOKEN)
        assert status == 200, text
        assert json.loads(text)["index"]["name"] == name


def test_the_token_file_beside_the_settings_holds(server: Running) -> None:
    assert ask(f"http://{server.http}/v1/retrieve", {"query": "metal"})[0] == 401


def test_calls_are_logged_and_counted_as_the_file_says(server: Running) -> None:
    metadata = (("authorization", f"Bearer {TOKEN}"), (REQUEST_ID_KEY, "one"))
    with grpc.insecure_channel(server.grpc) as channel:
        stub = pb_grpc.RetrievalServiceStub(channel)
        stub.Retrieve(pb.RetrieveRequest(query="metal"), metadata=metadata, timeout=60)
        with pytest.raises(grpc.RpcError):
            stub.Retrieve(pb.RetrieveRequest(query="metal", k=5000), metadata=metadata, timeout=60)
    wait_until(lambda: len(server.calls("one")) == 2)
    called = [(entry["logger"], entry["method"], entry["code"]) for entry in server.calls("one")]
    assert called == [("genret.requests", "Retrieve", code) for code in ("OK", "INVALID_ARGUMENT")]
    assert ask(f"http://{server.metrics}/readyz")[0] == 200, "who watches needs no token"
    counted = ask(f"http://{server.metrics}/metrics")[1]
    for line in (
        'genret_requests_total{code="OK",method="Retrieve"} ',
        'genret_requests_total{code="INVALID_ARGUMENT",method="Retrieve"} 1.0',
        'genret_results_total{finish_reason="ok",method="auto"} ',
        'genret_grammar_cache_hits_total{model="one"}',
        'genret_filter_cache_held_bytes{index="first"}',
        "genret_ready 1.0",
    ):
        assert line in counted
