"""Filters over the wire: real retriever, real server, the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from genret.service.configuration.server_config import IndexSpec, ModelSpec
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.models import IndexOpener
from genret.service.serving.served import ServedIndex
from tests.service.running_server import failure, retriever_of, running, unpack
from tests.service.tiny_assets import make_checkpoint, make_index


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedIndex]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = make_checkpoint(folder / "checkpoint")
    model = ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1)
    opener = IndexOpener(model, filter_cache_bytes=12_345)
    served = opener.open(IndexSpec("tiny", make_index(folder / "index", checkpoint)))
    yield served
    retriever_of(served).close()


def ids(response: Any) -> set[str]:
    return {candidate.entity_id for candidate in response.candidates}


def test_filters_reach_the_retriever(tiny: ServedIndex) -> None:
    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            assert ids(await api.retrieve("x", filter="kind = 'city'")) == {"Q4", "Q5", "Q6"}
            allowed = pb.EntityIds(ids=["Q1", "Q5", "Q6", "nobody"])
            assert ids(await api.retrieve("x", allow_entity_ids=allowed)) == {"Q1", "Q5", "Q6"}
            reply = await api.retrieve(
                "x", filter="kind = 'city'", allow_entity_ids=allowed, deny_entity_ids=["Q6"]
            )
            assert ids(reply) == {"Q5"}
            nobody = await api.retrieve("x", allow_entity_ids=pb.EntityIds())
            assert nobody.finish_reason == pb.FINISH_REASON_NO_MATCH

    asyncio.run(scenario())
    retriever = retriever_of(tiny)
    stats = retriever.filters.stats
    assert stats.num_filters == 4
    assert stats.max_bytes == 12_345


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        ("knd = 'city'", "unknown column 'knd', did you mean 'kind'? the index has: entity_id, kind, title"),
        ("kind >= 3", "column 'kind' is string, got a number: 3"),
        ("kind = 'x", "this string is not closed"),
        ("(" * 10_000, "nested more than"),
        ("x" * 20_000, "at most 16,384 characters"),
    ],
)
def test_bad_predicates_are_invalid_arguments(tiny: ServedIndex, predicate: str, text: str) -> None:
    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            error, details = await failure(api.retrieve("x", filter=predicate))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            (violation,) = details["BadRequest"].field_violations
            assert violation.field == "filter"
            assert text in violation.description

    asyncio.run(scenario())


def test_a_bad_predicate_in_a_batch_fails_alone(tiny: ServedIndex) -> None:
    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            reply = await api.batch(
                pb.RetrieveRequest(query="x", filter="kind = 'river'"),
                pb.RetrieveRequest(query="x", filter="year = 3"),
                pb.RetrieveRequest(query="x", deny_entity_ids=["Q1"] * 100_001),
                pb.RetrieveRequest(query="x", k=12),
            )
            river, bad, long, everything = reply.results
            assert ids(river.response) == {"Q7", "Q8"}
            assert bad.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert unpack(bad.error)["BadRequest"].field_violations[0].field == "filter"
            assert unpack(long.error)["BadRequest"].field_violations[0].field == "deny_entity_ids"
            assert len(ids(everything.response)) == 12

    asyncio.run(scenario())


def test_mixed_filters_share_a_batch_and_agree_with_themselves_alone(tiny: ServedIndex) -> None:
    disc = pb.RETRIEVAL_METHOD_DISC
    requests = [
        pb.RetrieveRequest(query="a", filter="kind = 'city'"),
        pb.RetrieveRequest(query="b"),
        pb.RetrieveRequest(query="c", filter="kind = 'work'", method=disc, seed=1),
        pb.RetrieveRequest(query="d", deny_entity_ids=["Q1"], method=disc, seed=2),
        pb.RetrieveRequest(query="e", filter="kind = 'poem'"),
    ]

    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            together = (await api.batch(*requests)).results
            for request, result in zip(requests, together, strict=True):
                alone = await api.stub.Retrieve(request, timeout=60)
                got = {c.entity_id: c.probability for c in result.response.candidates}
                assert list(got) == [c.entity_id for c in alone.candidates]
                assert got == pytest.approx({c.entity_id: c.probability for c in alone.candidates}, rel=1e-4)
                assert result.response.mass == pytest.approx(alone.mass, rel=1e-4)

    asyncio.run(scenario())


def test_the_command_sends_filters_and_lists(
    tiny: ServedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from genret.service.main import cli

    (tmp_path / "allow.txt").write_text("Q4\nQ5\nQ1\n", encoding="utf-8")
    (tmp_path / "deny.txt").write_text("Q5\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    async def scenario() -> tuple[Any, Any, Any]:
        async with running(indexes={"tiny": tiny}) as api:

            def query(*arguments: str) -> Any:
                return CliRunner().invoke(
                    cli, ["query", "x", "y", "--address", api.server.address, *arguments]
                )

            return (
                await asyncio.to_thread(
                    query,
                    "--filter",
                    "kind = 'city'",
                    "--allow-ids",
                    "allow.txt",
                    "--deny-ids",
                    "deny.txt",
                ),
                await asyncio.to_thread(query, "--filter", "year = 3"),
                await asyncio.to_thread(query, "--filter", "kind ="),
            )

    found, unknown, malformed = asyncio.run(scenario())
    assert [line.split("\t")[:3] for line in found.stdout.splitlines()] == [
        ["x", "1", "Q4"],
        ["y", "1", "Q4"],
    ]
    assert unknown.exit_code == 1
    assert "filter: at character 1: unknown column 'year'" in unknown.stderr
    assert malformed.exit_code == 2
    assert "--filter: at character 7: expected a value, got the end" in malformed.stderr
    missing = CliRunner().invoke(cli, ["query", "x", "--allow-ids", "nowhere.txt"])
    assert missing.exit_code == 1
    assert "nowhere.txt: cannot be read: No such file or directory" in missing.stderr
