"""A server as a process whose settings come from one file: indexes, models, listeners, tokens, logs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from genret.service.client import RetrievalClient
from tests.service.tiny_assets import make_checkpoint, make_index

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
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
READY = re.compile(rf"ready on (\S+): {'; '.join(SERVED)}; HTTP on (\S+); metrics on ([^\s\"]+)")


class Heard:
    """What a process writes to stderr, read by a thread of its own until its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._process = process
        self._more = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                with self._more:
                    self.lines.append(line)
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, found: Callable[[str], Any]) -> Any:
        """Return what is found in the first line in which anything is."""
        with self._more:
            self._more.wait_for(lambda: self._ended or any(map(found, self.lines)), 120)
            first = next(filter(None, map(found, self.lines)), None)
            assert first, self.lines
            return first

    def close(self) -> None:
        """Wait for the end."""
        self._thread.join(10)


@dataclass
class Running:
    """A server, where it listens, and what it has said."""

    grpc: str
    http: str
    metrics: str
    heard: Heard


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("configured")
    for name in ("one", "two"):
        make_index(folder / f"{name}-index", make_checkpoint(folder / name))
    (folder / "server.toml").write_text(SETTINGS, encoding="utf-8")
    tokens = folder / "tokens"
    tokens.write_text(f"read {TOKEN}\n", encoding="utf-8")
    tokens.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, "-m", "genret", "serve", "--config", str(folder / "server.toml")],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder / "one",  # not where the file lies
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    heard = Heard(process)
    try:
        ready = heard.wait_for(READY.search)
        yield Running(ready[1], ready[2], ready[3], heard)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()  # nothing is left of it, unless something went wrong
        process.wait()
        heard.close()


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


def test_who_watches_needs_no_token(server: Running) -> None:
    assert ask(f"http://{server.metrics}/readyz")[0] == 200
    assert "genret_" in ask(f"http://{server.metrics}/metrics")[1]


def test_calls_are_logged_as_the_file_says(server: Running) -> None:
    with RetrievalClient(server.grpc, token=TOKEN) as client:
        client.list_indexes()
    record = server.heard.wait_for(lambda line: line.startswith("{") and "ListIndexes" in line and line)
    assert json.loads(record)
    assert "metal" not in "".join(server.heard.lines), "no text of a query is logged unless asked for"
