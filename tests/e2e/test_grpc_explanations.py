"""Explanations over the wire and on the command line: the library's, from a server with a real model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.commands.query import query_command
from genret.service.configuration.server_config import IndexSpec, ModelSpec
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.models import IndexOpener
from genret.service.serving.served import ServedIndex
from genret.service.wire.replies import reply_from_proto
from genret.service.wire.requests import request_to_proto
from tests.service.running_server import Running, failure, retriever_of, running
from tests.service.tiny_assets import make_checkpoint, make_index

DISC = {"method": "disc", "seed": 3, "num_samples": 5, "num_draws": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedIndex]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    checkpoint = make_checkpoint(folder / "checkpoint")
    index = make_index(folder / "index", checkpoint)
    model = ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1)
    served = IndexOpener(model).open(IndexSpec("tiny", index))
    yield served
    retriever_of(served).close()


def query(server: Running, *arguments: str) -> Result:
    address = server.server.address
    return CliRunner().invoke(query_command, ["metal", "--address", address, *arguments])


@pytest.mark.parametrize("options", [{"k": 3}, {"k": 2, "beam_size": 1, "exact": True}, DISC])
def test_the_service_explains_as_the_library_does(tiny: ServedIndex, options: dict[str, Any]) -> None:
    request = RetrieveRequest("metal", explain=True, **options)
    (here,) = retriever_of(tiny).retrieve_batch([request])
    assert isinstance(here, RetrievalResult)

    async def body() -> None:
        async with running(indexes={"tiny": tiny}) as server:
            reply = reply_from_proto("metal", await server.stub.Retrieve(request_to_proto(request)))
            assert reply.result.explanation == here.explanation
            assert reply.result.candidates == here.candidates
            plain = await server.retrieve("metal")
            assert not plain.HasField("explanation")

    asyncio.run(body())
    assert here.explanation is not None
    assert any(node.candidate_rank == 1 for node in here.explanation.nodes)


def test_what_cannot_be_explained_is_an_invalid_argument(tiny: ServedIndex) -> None:
    async def body() -> None:
        async with running(indexes={"tiny": tiny}) as server:
            asked = server.retrieve("metal", method=pb.RETRIEVAL_METHOD_DISC, adaptive=True, explain=True)
            error, details = await failure(asked)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            (violation,) = details["BadRequest"].field_violations
            assert violation.field == "explain"
            assert violation.description.endswith("; got adaptive")

    asyncio.run(body())


def test_the_command_shows_the_tree_beside_the_lines_and_within_the_json(tiny: ServedIndex) -> None:
    async def body() -> None:
        async with running(indexes={"tiny": tiny}) as server:
            lines = await asyncio.to_thread(query, server, "-k", "2", "--explain")
            plain = await asyncio.to_thread(query, server, "-k", "2")
            assert (lines.exit_code, plain.exit_code) == (0, 0), lines.output
            assert lines.stdout == plain.stdout
            assert plain.stderr == ""
            assert lines.stderr.startswith("end of the prompt (")
            assert "#1, finished" in lines.stderr
            drawn = await asyncio.to_thread(query, server, "--method", "disc", "--seed", "3", "--explain")
            assert "Draws" in drawn.stderr
            told = await asyncio.to_thread(query, server, "-k", "2", "--explain", "--json")
            assert told.stderr == ""
            explanation = json.loads(told.stdout)["explanation"]
            assert explanation["nodes"][0]["parent"] is None
            assert not explanation["truncated"]

    asyncio.run(body())


def test_a_filter_that_allows_nothing_is_said(tiny: ServedIndex) -> None:
    async def body() -> None:
        async with running(indexes={"tiny": tiny}) as server:
            none = await asyncio.to_thread(query, server, "--filter", "kind = 'nothing'", "--explain")
            assert none.exit_code == 0
            assert "the model was not asked: the filter allows no entity" in none.stderr

    asyncio.run(body())


def test_the_command_refuses_what_cannot_be_explained_before_a_server_is_asked() -> None:
    arguments = ["x", "--method", "disc", "--beam-size", "2", "--explain", "--address", "127.0.0.1:1"]
    refused = CliRunner().invoke(query_command, arguments)
    assert refused.exit_code == 2
    assert "--explain: cannot be combined with adaptive or a beam_size above 1" in refused.stderr
