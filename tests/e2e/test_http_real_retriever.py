"""JSON over HTTP with a real retriever: what gRPC answers, in the form that the OpenAPI document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import settings

from genret.service.configuration.server_config import HttpConfig, IndexSpec, ModelSpec
from genret.service.gateway.http_app import OPENAPI_FILE
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.models import IndexOpener
from genret.service.serving.served import ServedIndex
from genret.service.wire.json import message_from_json, message_to_dict
from tests.service.asynchronous import asynchronous
from tests.service.http_gateway import serving_in_a_thread
from tests.service.openapi_cases import document, quiet
from tests.service.running_server import open_all, retriever_of, running
from tests.service.tiny_assets import make_checkpoint, make_index

DOCUMENT: dict[str, Any] = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
TITLE = {
    "type": "object",
    "properties": {"t": {"type": "string", "x-genret-index": "titles"}},
    "required": ["t"],
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServedIndex]]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = make_checkpoint(folder / "checkpoint")
    index = make_index(folder / "index", checkpoint)
    model = ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1)
    indexes = open_all(IndexOpener(model), IndexSpec("tiny", index))
    yield indexes
    retriever_of(indexes["tiny"]).close()


def without_times(reply: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if name not in ("timings", "kv_usage", "compile_ms")}


def fits(reply: dict[str, Any], name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema.validate(reply, schema, jsonschema.Draft202012Validator)


ASKED: list[dict[str, Any]] = [
    {"query": "who wrote hamlet", "k": 5},
    {"query": "who wrote hamlet", "k": 3, "exact": True, "filter": "kind = 'city'"},
    {"query": "who wrote hamlet", "method": "RETRIEVAL_METHOD_DISC", "seed": "12345678901234567"},
    {"query": "who wrote hamlet", "explain": True},
    {"query": "who wrote hamlet", "explain": True, "method": "RETRIEVAL_METHOD_DISC", "seed": 3},
    {"query": "nobody", "allow_entity_ids": {"ids": []}},
]


@asynchronous
async def test_both_faces_answer_alike_and_replies_fit_the_document(tiny: dict[str, ServedIndex]) -> None:
    async with running(indexes=tiny, http=HttpConfig(port=0)) as api:
        assert api.server.listeners.http is not None
        url = f"http://{api.server.listeners.http.address}"
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            for asked in ASKED:
                reply = (await client.post("/v1/retrieve", json=asked)).raise_for_status().json()
                fits(reply, "RetrieveResponse")
                request = message_from_json(json.dumps(asked).encode(), pb.RetrieveRequest())
                over_grpc = message_to_dict(await api.stub.Retrieve(request, timeout=60))
                assert without_times(reply) == without_times(over_grpc), asked
                assert ("explanation" in reply) == bool(asked.get("explain"))
            body = {"query": "x", "schema_json": json.dumps(TITLE), "shortlist": 3}
            answer = (await client.post("/v1/answer", json=body)).raise_for_status().json()
            fits(answer, "AnswerResponse")
            assert answer["entities"][0]["title"] == json.loads(answer["json"])["t"]
            batch = (await client.post("/v1/batchRetrieve", json={"requests": ASKED})).json()
            fits(batch, "BatchRetrieveResponse")
            assert all("response" in result for result in batch["results"])
            fits((await client.get("/v1/indexes")).json(), "ListIndexesResponse")


@pytest.fixture(scope="module")
def address(tiny: dict[str, ServedIndex]) -> Iterator[str]:
    with serving_in_a_thread(indexes=tiny, max_request_seconds=20) as found:
        yield found


asked_for_real = document(coverage=True)


@pytest.mark.slow
@asked_for_real.parametrize()
@settings(quiet, max_examples=40)
def test_a_real_retriever_answers_or_refuses_as_documented(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address)
