"""Answers under compiled schemas go on while one client's slow schemas are compiled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from genret.service.configuration.server_config import IndexSpec, SchemaSpec
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving import models
from tests.e2e.conftest import opened
from tests.service.running_server import Running, failure, failure_code, retriever_of, running, until

KNOWN = json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]})
OTHER = json.dumps({"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]})
ATTEMPTS = 10


def slow(number: int) -> str:
    """A schema whose compilation takes as long as it may, or until its automaton is too large."""
    return json.dumps({"type": "string", "pattern": f"^(a|b)*a(a|b){{{300 + number}}}$"})


@asynccontextmanager
async def server(checkpoint: Path, index: Path, folder: Path, **options: Any) -> AsyncIterator[Running]:
    """Serve an index that knows one schema by name."""
    file = folder / "known.json"
    file.write_text(KNOWN, encoding="utf-8")
    schemas = (SchemaSpec("known", file),)
    with opened(checkpoint, IndexSpec("tiny", index), schemas=schemas, **options) as served:
        async with running(indexes=served) as up:
            yield up


async def answer(up: Running, **schema: str) -> None:
    reply = await up.stub.Answer(pb.AnswerRequest(query="which", **schema), timeout=60)
    assert isinstance(json.loads(reply.json)["a"], bool)


async def test_a_known_schema_waits_for_no_other_one(
    checkpoint: Path, tiny_index: Path, tmp_path: Path
) -> None:
    async with server(checkpoint, tiny_index, tmp_path) as up:
        compiler = up.server.engine.compiler
        for schema in ({"schema_json": KNOWN}, {"schema_name": "known"}):
            await answer(up, **schema)
            attack = [
                asyncio.ensure_future(up.stub.Answer(pb.AnswerRequest(query="which", schema_json=slow(n))))
                for n in range(20)
            ]
            await until(lambda: (compiler.num_running, compiler.num_waiting) == (1, 19))
            begun = compiler.num_compiled
            for _ in range(ATTEMPTS):
                await answer(up, **schema)
            assert compiler.num_compiled - begun < ATTEMPTS // 2  # they did not wait for one each
            assert compiler.num_waiting >= 15
            for call in attack:
                call.cancel()
            await asyncio.gather(*attack, return_exceptions=True)
            await until(lambda: not compiler.num_running and not compiler.num_waiting)
            assert compiler.num_compiled < 8  # what nobody waits for is not compiled


async def test_what_the_cache_does_not_keep_is_compiled_once_per_request_and_not_on_the_device(
    checkpoint: Path, tiny_index: Path, tmp_path: Path
) -> None:
    async with server(checkpoint, tiny_index, tmp_path, grammar_cache_mib=0) as up:
        stats = retriever_of(up.server.engine.indexes.resolve("")).answerer.engine.schemas.stats
        for number in range(2):
            reply = await up.stub.Answer(pb.AnswerRequest(query="which", schema_json=OTHER), timeout=60)
            assert reply.compile_ms > 0
            now = retriever_of(up.server.engine.indexes.resolve("")).answerer.engine.schemas.stats
            assert now.misses == stats.misses + number + 1
        named = await up.stub.Answer(pb.AnswerRequest(query="which", schema_name="known"), timeout=60)
        assert named.compile_ms == 0
        assert up.server.engine.compiler.num_compiled == 2


async def test_grammars_that_waiting_requests_hold_are_bounded(
    checkpoint: Path, tiny_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(checkpoint, tiny_index, tmp_path, grammar_cache_mib=0) as up:
        monkeypatch.setattr(models, "_UNCACHED_GRAMMAR_BYTES", 0)
        error, details = await failure(
            up.stub.Answer(pb.AnswerRequest(query="which", schema_json=OTHER), timeout=60)
        )
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details["ErrorInfo"].reason == "MEMORY_FULL"
        assert details["RetryInfo"].retry_delay.seconds == 5
        await answer(up, schema_name="known")  # compiled before


async def test_a_refused_schema_is_told_at_once_the_second_time(
    checkpoint: Path, tiny_index: Path, tmp_path: Path
) -> None:
    async with server(checkpoint, tiny_index, tmp_path) as up:
        for _ in range(2):
            wrong = pb.AnswerRequest(query="which", schema_json='{"type": 3}')
            refused = up.stub.Answer(wrong, timeout=60)
            assert await failure_code(refused) is grpc.StatusCode.INVALID_ARGUMENT
        assert up.server.engine.compiler.num_compiled == 1
