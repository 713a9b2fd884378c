"""vLLM itself in processes of its own, beside our own decoder; `make test-vllm` has its environment."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from genret import RetrievalResult, Retriever, RetrieveRequest
from genret.retrieval.defaults import small_model_dir
from genret.retrieval.engines.vllm_engine import PROCESSOR
from genret.retrieval.index.reader import Index
from genret.service.client import RetrievalClient
from genret.service.errors import CallError
from tests.sample_index import build_sample_index
from tests.service.server_process import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

REJECT = 0  # <pad>: no title has it
PORT = 18_631
QUERIES = ["german city where oktoberfest is held", "king of the jungle", "author of faust", "red planet"]
ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
SETTINGS = ["--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "128", "--enforce-eager"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sample_index(tmp_path_factory.mktemp("index") / "sample", with_queries=True)


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tap")


@contextmanager
def vllm_server(index: Path, tap: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A running vLLM with our processor, in a group of processes of its own."""
    setup = {"genret": {"indexes": {"sample": str(index)}, "reject_token": REJECT, "tap": str(tap)}}
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(small_model_dir())),
        *("--port", str(port), "--host", "127.0.0.1", "--logprobs-mode", "processed_logprobs", *SETTINGS),
        *("--logits-processors", PROCESSOR, "--additional-config", json.dumps(setup)),
    ]
    server = subprocess.Popen(command, env={**os.environ, **ENVIRONMENT}, start_new_session=True)
    try:
        while True:
            assert server.poll() is None, "the server ended before it was ready"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(1)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait()


@pytest.fixture(scope="module")
def address(index: Path, tap: Path) -> Iterator[str]:
    with vllm_server(index, tap, PORT):
        yield f"http://127.0.0.1:{PORT}/v1"


@pytest.fixture(scope="module")
def here(index: Path) -> Retriever:
    return Retriever.open(index, small_model_dir(), dtype="float32")


def complete(address: str, prompt: list[int], **more: Any) -> list[dict[str, Any]]:
    body = {"model": str(small_model_dir()), "prompt": prompt, "max_tokens": 40, **more}
    asked = urllib.request.Request(
        f"{address}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    found: list[dict[str, Any]] = json.load(urllib.request.urlopen(asked))["choices"]
    return found


def facts(result: RetrievalResult) -> list[Any]:
    return [one.entity_id for one in result.candidates]


@pytest.mark.parametrize(
    "options", [{"method": "beam"}, {"method": "beam", "exact": True}, {"method": "disc", "seed": 5}, {}]
)
def test_a_server_answers_as_our_own_decoder(
    address: str, here: Retriever, index: Path, tap: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    monkeypatch.setenv("GENRET_TAP", str(tap))
    with Retriever.open(index, small_model_dir(), engine=address) as there:
        for ours, theirs in zip(
            there.retrieve(QUERIES, k=5, **options), here.retrieve(QUERIES, k=5, **options), strict=True
        ):
            assert facts(ours) == facts(theirs)
            assert ours.certified == theirs.certified
            for one, two in zip(ours.candidates, theirs.candidates, strict=True):
                assert one.logprob == pytest.approx(two.logprob, abs=1e-3)


def test_draws_of_disc_say_the_probability_of_their_title(address: str, here: Retriever, index: Path) -> None:
    """The engine asked by a client of its own API: accepted draws are titles, exactly scored."""
    opened = Index.open(index)
    prompt = here.prompt_template(None).encode(here.tokenizer, QUERIES[0])
    draws = complete(
        address,
        prompt,
        n=64,
        temperature=1,
        logprobs=1,
        seed=11,
        return_token_ids=True,
        stop_token_ids=[opened.end_token_id, REJECT],
        vllm_xargs={"genret": "sample", "genret_mode": "disc"},
    )
    accepted = [draw for draw in draws if draw["token_ids"][-1] == opened.end_token_id]
    assert accepted
    assert all(draw["token_ids"][-1] in (opened.end_token_id, REJECT) for draw in draws)
    rows = {tuple(opened.row_token_ids(row)): row for row in range(opened.num_rows)}
    for draw in accepted:
        row = rows[tuple(draw["token_ids"])]  # a title
        title = opened.entity(opened.entities_of(row)[0]).title
        (score,) = here.score(QUERIES[0], [title]).scores
        if opened.surface(row, opened.entities_of(row)[0]) == title:
            assert sum(draw["logprobs"]["token_logprobs"]) == pytest.approx(score.logprob, abs=1e-3)


def test_greedy_text_is_a_title_that_the_filter_allows(address: str, here: Retriever, index: Path) -> None:
    opened = Index.open(index)
    asked = {"genret": "sample", "genret_filter": "kind = 'city'"}
    for query in QUERIES:
        prompt = here.prompt_template(None).encode(here.tokenizer, query)
        (choice,) = complete(
            address,
            prompt,
            temperature=0,
            stop_token_ids=[opened.end_token_id],
            return_token_ids=True,
            vllm_xargs=asked,
        )
        rows = {tuple(opened.row_token_ids(row)): row for row in range(opened.num_rows)}
        row = rows[tuple(choice["token_ids"])]
        assert {opened.entity(e).metadata["kind"] for e in opened.entities_of(row)} & {"city"}


NUM_CLIENTS, CALLS = 32, 4


def test_clients_of_our_server_while_vllm_is_killed_and_comes_back(
    index: Path, tap: Path, here: Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 clients at once, some of which give up: right answers, then UNAVAILABLE, then answers again."""
    monkeypatch.setenv("GENRET_TAP", str(tap))
    expected = {query: here.retrieve(query, k=5, method="beam")[0].candidates for query in QUERIES}
    engine, model = f"http://127.0.0.1:{PORT + 1}/v1", str(small_model_dir())
    with ExitStack() as first:
        vllm = first.enter_context(vllm_server(index, tap, PORT + 1))
        ours = ServerProcess(str(index), "--model", model, "--engine", engine, "--max-queue-size", "256")
        with ours, RetrievalClient(ours.address()) as client, ThreadPoolExecutor(NUM_CLIENTS) as threads:

            def ask(number: int) -> str:
                """Ask, with a deadline that is too short now and then; return how it ended."""
                query, is_short = QUERIES[number % len(QUERIES)], number % 8 == 7
                try:
                    request = RetrieveRequest(query, k=5, method="beam")
                    found = client.retrieve(request, timeout_s=0.05 if is_short else 240).result
                except CallError as error:
                    return error.code
                assert [one.entity_id for one in found.candidates] == [
                    one.entity_id for one in expected[query]
                ]
                return "OK"

            ended = Counter(threads.map(ask, range(NUM_CLIENTS * CALLS)))
            assert ended["OK"] >= NUM_CLIENTS * CALLS * 7 // 8
            assert set(ended) <= {"OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
            os.killpg(vllm.pid, signal.SIGKILL)
            assert set(threads.map(ask, range(4))) == {"UNAVAILABLE"}
            vllm.wait()
            with vllm_server(index, tap, PORT + 1):
                assert set(threads.map(ask, range(4))) == {"OK"}
    assert list(tap.iterdir()) == []  # what was left for calls that were given up as well


def test_wrong_arguments_are_status_400(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        complete(address, [5], vllm_xargs={"genret": "sample", "genret_mode": "disc"}, temperature=0.3)
    assert caught.value.code == 400
    assert "disc needs temperature 1" in caught.value.read().decode()


def test_an_engine_of_this_process(index: Path, here: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    options = {"max_model_len": 512, "max_num_seqs": 128, "enforce_eager": True}
    with Retriever.open(
        index, small_model_dir(), engine="vllm", dtype="float32", engine_options=options
    ) as there:
        ours, theirs = (one.retrieve(QUERIES, k=5, method="beam") for one in (there, here))
        assert [facts(one) for one in ours] == [facts(one) for one in theirs]
        schema = {"type": "object", "properties": {"title": {"type": "string", "x-genret-index": "titles"}}}
        answers = [one.answer(QUERIES[0], {**schema, "required": ["title"]}).text for one in (there, here)]
        assert answers[0] == answers[1]
