"""`Answer` over gRPC: a random Llama over a dozen titles, every method, every refusal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest

from genret.service.configuration.server_config import IndexSpec, SchemaSpec
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import ServedIndex
from tests.checkpoints import make_index as make_other_index
from tests.e2e.conftest import opened
from tests.service.running_server import Running, failure, running

TITLE = {"type": "string", "x-genret-index": "titles"}
SCHEMA = {
    "type": "object",
    "properties": {"title": TITLE, "kind": {"enum": ["work", "city"]}},
    "required": ["title", "kind"],
}


@pytest.fixture(scope="module")
def tables(
    tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, tiny_index: Path
) -> Iterator[dict[str, ServedIndex]]:
    folder = tmp_path_factory.mktemp("answers")
    schema = folder / "entity.json"
    schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
    films = make_other_index(folder / "films", checkpoint, "title\tentity_id\nAlien\tF1\nVertigo\tF2\n")
    specs = (IndexSpec("tiny", tiny_index), IndexSpec("films", films))
    with opened(checkpoint, *specs, schemas=(SchemaSpec("entity", schema),)) as served:
        yield served


@pytest.fixture
def server(tables: dict[str, ServedIndex]) -> AbstractAsyncContextManager[Running]:
    return running(indexes=tables)


def request(schema: Any = SCHEMA, **fields: Any) -> pb.AnswerRequest:
    if "schema_name" not in fields:
        fields["schema_json"] = schema if isinstance(schema, str) else json.dumps(schema)
    return pb.AnswerRequest(**{"query": "who wrote hamlet", **fields})


async def test_an_answer_is_greedy_by_default_and_a_named_schema_is_that_of_its_file(server: Any) -> None:
    async with server as up:
        plain = await up.stub.Answer(request(), timeout=60)
        greedy = await up.stub.Answer(request(method=pb.ANSWER_METHOD_GREEDY), timeout=60)
        named = await up.stub.Answer(request(schema_name="entity"), timeout=60)
        assert plain.method == pb.ANSWER_METHOD_GREEDY
        assert plain.json == greedy.json == named.json
        assert plain.schema_digest == named.schema_digest


async def test_titles_are_those_of_the_index_that_is_asked(server: Any) -> None:
    async with server as up:
        for name, there in (("", False), ("tiny", False), ("films", True)):
            for fields in ({"schema": SCHEMA}, {"schema_name": "entity"}):
                reply = await up.stub.Answer(request(**fields, index=name), timeout=60)
                (found,) = reply.entities
                assert (found.title in ("Alien", "Vertigo")) == there
                assert found.index == reply.index.name == (name or "tiny")
        both = {"properties": {"a": TITLE, "b": {**TITLE, "x-genret-index": "films"}}, "required": ["a", "b"]}
        reply = await up.stub.Answer(request({"type": "object", **both}), timeout=60)
        assert [found.index for found in reply.entities] == ["tiny", "films"]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"schema_name": "other"}, "schema_name", "no schema named 'other'; known: entity"),
        ({"schema": {"properties": {"a": {"type": "strin"}}}}, "schema_json", "#/properties/a/type: type:"),
        ({"schema": '{"type": '}, "schema_json", "#: the schema is not JSON"),
        (
            {"schema": {**TITLE, "x-genret-index": "nope"}},
            "schema_json",
            "there is no index 'nope'; there are: 'titles', for the one that is asked, and 'tiny'",
        ),
        ({"schema": {**TITLE, "x-genret-filter": "kind ="}}, "schema_json", "filter: at character 7"),
        ({"max_tokens": 3}, "max_tokens", "the shortest answer to this schema takes"),
        ({"prompt_template": "none"}, "prompt_template", "unknown template 'none'"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else None,
)
async def test_what_is_wrong_with_a_request_is_said_of_its_field(
    server: Any, fields: dict[str, Any], field: str, words: str
) -> None:
    async with server as up:
        error, details = await failure(up.stub.Answer(request(**fields), timeout=60))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        (violation,) = details["BadRequest"].field_violations
        assert violation.field == field
        assert words in violation.description


async def test_answers_and_titles_are_served_beside_one_another(server: Any) -> None:
    async with server as up:
        batch = up.batch(*(pb.RetrieveRequest(query=f"query {n}", k=2) for n in range(5)))
        answers = [up.stub.Answer(request(query=f"query {n}"), timeout=60) for n in range(5)]
        wrong = failure(up.stub.Answer(request({"type": 3}), timeout=60))
        titles, *written = await asyncio.gather(batch, *answers)
        assert [len(result.response.candidates) for result in titles.results] == [2] * 5
        for reply in written:
            jsonschema.validate(json.loads(reply.json), SCHEMA)
        error, _ = await wrong
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
