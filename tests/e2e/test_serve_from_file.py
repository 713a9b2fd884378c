"""A server as a process whose settings come from one file: indexes, models, listeners, tokens, logs."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from genret.retrieval.types import RetrieveRequest
from genret.service.client import RetrievalClient
from genret.service.errors import CallError
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


def ask(url: str, body: dict[str, Any] | None = None, **headers: str) -> tuple[int, str]:
    """Return the status and the text of a reply over HTTP."""
    method = "GET" if body is None else "POST"
    reply = httpx.request(method, url, json=body, headers=headers, timeout=60, trust_env=False)
    return reply.status_code, reply.text


def test_indexes_models_listeners_tokens_and_logs_are_those_of_the_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_index(tmp_path / f"{name}-index", make_checkpoint(tmp_path / name))
    (tmp_path / "server.toml").write_text(SETTINGS, encoding="utf-8")
    tokens_in(tmp_path, f"read {TOKEN}")
    # The folder is not where the file lies.
    with ServerProcess("--config", str(tmp_path / "server.toml"), cwd=tmp_path / "one") as process:
        ready = READY.search(process.said("ready on "))
        assert ready, process.lines
        grpc_address, http, metrics = ready.groups()
        with RetrievalClient(grpc_address, token=TOKEN) as client:
            models = {index.name: index.model for index in client.list_indexes()}
            assert models == {"first": "one", "other": "two"}
            client.retrieve(RetrieveRequest("metal"), request_id="one")
            with pytest.raises(CallError, match="nope"):
                client.retrieve(RetrieveRequest("metal"), "nope", request_id="one")
        asked = f"http://{http}/v1/retrieve", {"query": "metal", "index": "other"}
        assert ask(*asked)[0] == 401
        status, text = ask(*asked, authorization=f"Bearer {TOKEN}")
        assert (status, json.loads(text)["index"]["name"]) == (200, "other")
        assert ask(f"http://{metrics}/readyz")[0] == 200, "who watches needs no token"
        for counted in (
            'genret_requests_total{code="NOT_FOUND",method="Retrieve"} 1.0',
            'genret_grammar_cache_hits_total{model="one"}',
            'genret_filter_cache_held_bytes{index="first"}',
        ):  # who is refused hears of it before it is counted
            wait_until(lambda counted=counted: counted in ask(f"http://{metrics}/metrics")[1])  # type: ignore[misc]
        process.send(signal.SIGTERM)
        assert process.exit_code() == 0
        said = [json.loads(line) for line in process.lines]
    called = [(one["logger"], one["method"], one["code"]) for one in said if one.get("request_id") == "one"]
    assert called == [("genret.requests", "Retrieve", code) for code in ("OK", "NOT_FOUND")]
    assert said[-1]["message"] == "stopped"
    assert "metal" not in str(said), "no text of a query is logged unless asked for"
