"""A server with a real retriever, a random Llama over a dozen titles, says what the library says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest
import schemathesis
from click.testing import Result
from hypothesis import settings

from genret.retrieval.errors import IndexMismatchError, IndexNotFoundError
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import Mention, RetrievalResult, RetrieveRequest
from genret.service.client import AsyncRetrievalClient, CallError
from genret.service.configuration.server_config import IndexSpec
from genret.service.gateway.http_app import OPENAPI_FILE
from genret.service.main import cli
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import ServedIndex
from genret.service.wire.json import message_from_json, message_to_dict
from genret.service.wire.replies import reply_from_proto
from genret.service.wire.requests import request_to_proto
from tests.checkpoints import make_checkpoint
from tests.commands import succeed
from tests.e2e.conftest import model_of
from tests.service.http_gateway import connected, serving_in_a_thread
from tests.service.openapi_cases import document, quiet
from tests.service.running_server import failure, opener_of, retriever_of, running, threaded
from tests.service.tiny_assets import MAX_POSITIONS, NUM_ENTITIES, make_index


def test_the_log_says_what_answers_for_an_index(
    tiny_index: Path, checkpoint: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genret.decoding.trie.title_trie._numba_is_installed", lambda: False)
    with caplog.at_level("INFO", logger="genret.service"):
        served = opener_of(model_of(checkpoint)).open(IndexSpec("tiny", tiny_index))
    retriever_of(served).close()
    said = (
        f"index 'tiny': version {served.description.version} from {tiny_index}; model checkpoint on cpu; "
        "the trie is walked by torch kernels"
    )
    warned = (
        "index 'tiny': the model was never weighed on this index, and counts little beside names and texts, "
        "as suits a small catalogue; hundreds of queries would weigh it: "
        f"genret tune {tiny_index} --model {checkpoint} --queries FILE"
    )
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert logged == [("INFO", said), ("WARNING", warned)]


def test_indexes_share_one_model_and_one_that_does_not_fit_is_refused(
    checkpoint: Path, tmp_path: Path
) -> None:
    opener = opener_of(model_of(checkpoint))
    with pytest.raises(IndexNotFoundError):  # the model is then loaded with the next one
        opener.open(IndexSpec("none", tmp_path / "none"))
    served = [opener.open(IndexSpec(n, make_index(tmp_path / n, checkpoint))) for n in ("a", "b", "c")]
    retrievers = [retriever_of(s) for s in served]
    assert len({id(r.model) for r in retrievers}) == 1
    assert len({id(r.tokenizer) for r in retrievers}) == 1
    assert [s.description.name for s in served] == ["a", "b", "c"]
    other = make_checkpoint(tmp_path / "other")  # its tokenizer lacks the last merge of all others
    document = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    document["model"]["merges"].pop()
    (other / "tokenizer.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(IndexMismatchError):
        opener.open(IndexSpec("d", make_index(tmp_path / "d", other)))
    for retriever in retrievers:
        (answer,) = retriever.retrieve_batch([RetrieveRequest("who wrote hamlet", k=3)])
        assert isinstance(answer, RetrievalResult)
        assert len(answer.candidates) == 3
        retriever.close()  # an index closes alone


@pytest.fixture
def retriever(tiny: ServedIndex) -> Retriever:
    return retriever_of(tiny)


async def test_an_index_is_described(tiny: ServedIndex, retriever: Retriever) -> None:
    described = tiny.description
    assert (described.name, described.model, described.device) == ("tiny", "checkpoint", "cpu")
    assert (described.num_entities, described.version) == (NUM_ENTITIES, retriever.index.version)
    async with running(indexes={"tiny": tiny}) as api, AsyncRetrievalClient(api.server.address) as client:
        (index,) = await client.list_indexes()
        assert (index.name, index.num_entities, index.is_default) == ("tiny", NUM_ENTITIES, True)
        assert index.max_title_tokens == retriever.index.max_row_tokens
        assert index.columns == (("kind", "string"),)
        assert abs(index.loaded_at - time.time()) < 600


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "beam"},
        {"method": "disc", "seed": 11},
        {"exact": True},
        {"exact": True, "exact_budget": 2, "beam_size": 1},
        {"length_penalty": -0.5, "aggregate": "max", "exact": True},
        {"aggregate": "sum"},
        {"explain": True},
        {"explain": True, "beam_size": 1, "exact": True},
        {"explain": True, "method": "disc", "seed": 3, "num_samples": 5, "num_draws": 2},
    ],
)
async def test_the_service_says_what_the_library_says(
    tiny: ServedIndex, retriever: Retriever, options: dict[str, Any]
) -> None:
    request = RetrieveRequest("who wrote hamlet", k=4, **options)
    (expected,) = retriever.retrieve_batch([request])
    assert isinstance(expected, RetrievalResult)
    async with running(indexes={"tiny": tiny}) as api:
        reply = reply_from_proto(
            request.query, await api.stub.Retrieve(request_to_proto(request), timeout=60)
        )
    result = reply.result
    assert replace(result, timings=expected.timings) == expected
    assert reply.index.digest == tiny.description.digest
    assert 0 < result.timings.prefill_ms + result.timings.decode_ms <= reply.total_ms
    assert min(result.num_nodes, result.kv.peak_bytes, result.kv.per_branch_bytes) > 0
    assert (result.explanation is not None) == ("explain" in options)
    if result.explanation is not None:
        assert any(node.candidate_rank == 1 for node in result.explanation.nodes)


@pytest.mark.parametrize(
    ("fields", "field", "said"),
    [
        ({"query": "word " * MAX_POSITIONS}, "query", "too long"),
        ({"prompt_template": "poem"}, "prompt_template", "plain"),
        ({"method": "RETRIEVAL_METHOD_DISC", "adaptive": True, "explain": True}, "explain", ", got adaptive"),
        ({"filter": "knd = 'city'"}, "filter", "unknown column 'knd', did you mean 'kind'? the index has: "),
        ({"filter": "x" * 20_000}, "filter", "at most 16,384 characters"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_of_its_field(
    tiny: ServedIndex, fields: dict[str, Any], field: str, said: str
) -> None:
    async with running(indexes={"tiny": tiny}) as api:
        error, details = await failure(api.retrieve(**{"query": "x", **fields}))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details["BadRequest"].field_violations
    assert violation.field == field
    assert said in violation.description


def ids(response: Any) -> set[str]:
    return {candidate.entity_id for candidate in response.candidates}


async def test_filters_reach_the_retriever(checkpoint: Path, tiny_index: Path) -> None:
    opener = opener_of(model_of(checkpoint), filter_cache_mib=3)
    served = opener.open(IndexSpec("tiny", tiny_index))
    async with running(indexes={"tiny": served}) as api:
        assert ids(await api.retrieve("x", filter="kind = 'city'")) == {"Q4", "Q5", "Q6"}
        allowed = pb.EntityIds(ids=["Q1", "Q5", "Q6", "nobody"])
        assert ids(await api.retrieve("x", allow_entity_ids=allowed)) == {"Q1", "Q5", "Q6"}
        both = {"filter": "kind = 'city'", "allow_entity_ids": allowed}
        assert ids(await api.retrieve("x", **both, deny_entity_ids=["Q6"])) == {"Q5"}
        nobody = await api.retrieve("x", allow_entity_ids=pb.EntityIds())
        assert nobody.finish_reason == pb.FINISH_REASON_NO_MATCH
    stats = retriever_of(served).filters.stats
    assert (stats.entries, stats.max_bytes) == (4, 3 * 2**20)
    retriever_of(served).close()


MENTIONS = [Mention("Lion", left="The ", right=" roared."), Mention("Paris"), Mention("metal", "a heavy ")]


async def test_links_are_those_of_the_library(tiny: ServedIndex, retriever: Retriever) -> None:
    async with running(indexes={"tiny": tiny}) as api, AsyncRetrievalClient(api.server.address) as client:
        for k in (1, 3):
            *replies, too_long = await client.link([*MENTIONS, Mention("word " * 5000)], k=k)
            for reply, expected in zip(replies, retriever.link(MENTIONS, k=k), strict=True):
                assert not isinstance(reply, CallError)
                found, wanted = reply.result.candidates, expected.candidates
                assert [(c.entity_id, c.title) for c in found] == [(c.entity_id, c.title) for c in wanted]
                assert len(found) == k
                assert [c.logprob for c in found] == pytest.approx([c.logprob for c in wanted], abs=1e-5)
            assert isinstance(too_long, CallError)
            assert too_long.field_violations[0][0] == "mention"


@pytest.fixture
def query(tiny: ServedIndex) -> Iterator[Callable[..., Result]]:
    """`genret query` of a server with the tiny index."""
    with threaded(indexes={"tiny": tiny}) as api:
        address = api.server.address
        yield lambda *words: succeed(cli, "query", *words, "--address", address)


def test_the_command_shows_the_tree_beside_lines_and_within_json(query: Callable[..., Result]) -> None:
    lines = query("metal", "-k", "2", "--explain")
    plain = query("metal", "-k", "2")
    assert lines.stdout == plain.stdout
    assert plain.stderr == ""
    assert lines.stderr.startswith("end of the prompt (")
    assert "#1, finished" in lines.stderr
    assert "Draws" in query("metal", "--method", "disc", "--seed", "3", "--explain").stderr
    told = query("metal", "-k", "2", "--explain", "--json")
    assert told.stderr == ""
    explanation = json.loads(told.stdout)["explanation"]
    assert explanation["nodes"][0]["parent"] is None
    assert not explanation["truncated"]
    none = query("metal", "--filter", "kind = 'nothing'", "--explain")
    assert "the model was not asked: the filter allows no entity" in none.stderr


DOCUMENT: dict[str, Any] = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
TITLE = {
    "type": "object",
    "properties": {"t": {"type": "string", "x-genret-index": "titles"}},
    "required": ["t"],
}


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
    {"query": "metal", "prompt_template": "long", "aggregation": "AGGREGATION_MAX", "length_penalty": 1},
    {"query": "metal", "method": "RETRIEVAL_METHOD_DISC", "seed": 6, "num_samples": 4, "min_mass": 1},
]


async def test_both_faces_answer_alike_and_replies_fit_the_document(tiny: ServedIndex) -> None:
    async with connected(indexes={"tiny": tiny}) as (api, _, client):
        batch = (await client.post("/v1/batchRetrieve", json={"requests": ASKED})).json()
        fits(batch, "BatchRetrieveResponse")
        for asked, result in zip(ASKED, batch["results"], strict=True):
            reply = (await client.post("/v1/retrieve", json=asked)).raise_for_status().json()
            fits(reply, "RetrieveResponse")
            request = message_from_json(json.dumps(asked).encode(), pb.RetrieveRequest())
            over_grpc = message_to_dict(await api.stub.Retrieve(request, timeout=60))
            assert without_times(reply) == without_times(over_grpc), asked
            assert ("explanation" in reply) == bool(asked.get("explain"))
            alone, together = reply["candidates"], result["response"]["candidates"]
            assert [one["entity_id"] for one in together] == [one["entity_id"] for one in alone], asked
            for name in ("probability", "logprob"):
                values = [one.get(name) for one in alone]
                assert [one.get(name) for one in together] == pytest.approx(values, rel=1e-4, abs=1e-4), asked
        body = {"query": "x", "schema_json": json.dumps(TITLE), "shortlist": 3}
        answer = (await client.post("/v1/answer", json=body)).raise_for_status().json()
        fits(answer, "AnswerResponse")
        assert answer["entities"][0]["title"] == json.loads(answer["json"])["t"]
        fits((await client.get("/v1/indexes")).json(), "ListIndexesResponse")


@pytest.fixture(scope="module")
def address(tiny: ServedIndex) -> Iterator[str]:
    with serving_in_a_thread(indexes={"tiny": tiny}, max_request_seconds=20) as found:
        yield found


asked_for_real = document(coverage=True)


@pytest.mark.slow
@asked_for_real.parametrize()
@settings(quiet, max_examples=40)
def test_a_real_retriever_answers_or_refuses_as_documented(case: schemathesis.Case, address: str) -> None:
    case.call_and_validate(base_url=address)
