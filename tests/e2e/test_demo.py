"""`genret demo` from outside: it answers, and it leaves nothing running when it is stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genret.retrieval.defaults import small_model_dir
from genret.retrieval.errors import GenretError, ModelError
from genret.service.commands import demo as demo_room
from tests.service.fake_retriever import wait_until
from tests.service.server_process import GENRET


@pytest.fixture(autouse=True)
def shipped_model() -> None:
    try:
        small_model_dir()
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [*GENRET, "demo", "--dir", str(tmp_path / "kept"), "-k", "2", "big cat"]
    pipe, environment = subprocess.PIPE, {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)
    yield process
    process.kill()
    process.communicate()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def address_of_server(process: subprocess.Popen[str]) -> int:
    for line in process.stderr:
        if " ready on " in line:
            return int(line.split(" ready on ", 1)[1].split(": ", 1)[0].rsplit(":", 1)[1])
    raise AssertionError("the demo's server never became ready")


def test_the_demo_answers_and_stops_its_server(demo: subprocess.Popen[str]) -> None:
    port = address_of_server(demo)
    out, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0
    assert re.search(r"^big cat +$", out, re.M)
    assert re.search(r"^16 samples by DISC: \w.* \d+%; in the catalogue: \d+%$", out, re.M)
    (document,) = re.findall(r'^\{\n  "title": .*\n.*\n\}$', out, re.M)
    assert json.loads(document)["source"] == "sample catalogue"
    assert re.search(r"^│ /title │ \w.* │ \w+\.\S+ +│ sample.index │$", out, re.M)
    assert not listens(port)


def test_a_demo_that_is_terminated_takes_its_server_along(demo: subprocess.Popen[str]) -> None:
    port = address_of_server(demo)
    demo.send_signal(signal.SIGTERM)
    demo.communicate(timeout=60)  # returns only when nobody holds the pipes any more
    assert demo.returncode == 130
    wait_until(lambda: not listens(port))


def test_a_server_that_hangs_or_ends_before_it_is_ready_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for code in ("import time; time.sleep(60)", ""):
        monkeypatch.setattr(demo_room, "_command", lambda *_, code=code: [sys.executable, "-c", code])
        monkeypatch.setattr(demo_room, "_READY_TIMEOUT_S", 0.5 if code else 60)
        told = pytest.raises(GenretError, match=r"^the server was not ready after \d+\.\d s; its own words")
        with told, demo_room._server(Path("an.index")):
            raise AssertionError("it was never ready")
