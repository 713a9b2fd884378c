"""`genret serve` as a process that is watched: JSON on stderr, metrics on a port, and no query anywhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from genret.service.call import REQUEST_ID_KEY
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from tests.service.tiny_assets import make_checkpoint, make_index

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
OPTIONS = ("--device", "cpu", "--port", "0", "--metrics-port", "0", "--log-format", "json", "--log-requests")
READY = re.compile(r"ready on (\S+): .*; metrics on (\S+)")


def lines(said: Path) -> list[dict[str, Any]]:
    """Return what was said; every line of it is an object."""
    return [json.loads(line) for line in said.read_text().splitlines()]


def wait_until_ready(process: subprocess.Popen[bytes], said: Path) -> tuple[str, str]:
    """Return where the server listens, and where it shows its metrics."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        for entry in lines(said) if said.read_text().endswith("\n") else []:
            if found := READY.match(entry["message"]):
                return found[1], found[2]
        time.sleep(0.02)
    raise AssertionError(said.read_text())


@pytest.mark.slow  # a process that loads a model
def test_a_watched_server_says_json_and_counts(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    index = make_index(tmp_path / "index", checkpoint)
    said = tmp_path / "stderr"
    command = [
        sys.executable,
        "-m",
        "genret.service.main",
        "serve",
        str(index),
        "--model",
        str(checkpoint),
        *OPTIONS,
    ]
    with said.open("w") as stderr:
        process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        address, watched = wait_until_ready(process, said)
        with grpc.insecure_channel(address) as channel:
            stub = pb_grpc.RetrievalServiceStub(channel)
            stub.Retrieve(pb.RetrieveRequest(query="secret"), metadata=((REQUEST_ID_KEY, "one"),), timeout=60)
            with pytest.raises(grpc.RpcError):
                stub.Retrieve(pb.RetrieveRequest(query="secret", k=5000), timeout=60)
            text = httpx.get(f"http://{watched}/metrics", timeout=60, trust_env=False).text
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    for line in (
        'genret_requests_total{code="OK",method="Retrieve"} 1.0',
        'genret_requests_total{code="INVALID_ARGUMENT",method="Retrieve"} 1.0',
        'genret_results_total{finish_reason="ok",method="auto"} 1.0',
        'genret_grammar_cache_hits_total{model="checkpoint"}',
        'genret_filter_cache_held_bytes{index="tiny"}',
        "genret_ready 1.0",
    ):
        assert line in text
    calls = [entry for entry in lines(said) if entry["logger"] == "genret.requests"]
    assert [(entry["method"], entry["code"]) for entry in calls] == [
        ("Retrieve", "OK"),
        ("Retrieve", "INVALID_ARGUMENT"),
    ]
    assert calls[0]["request_id"] == "one"
    assert lines(said)[-1]["message"] == "stopped"
    assert "secret" not in said.read_text()
