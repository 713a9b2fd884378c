"""The server with a real retriever: a random Llama over a dozen titles, real tokens, real decoding."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from genret.retrieval.errors import IndexMismatchError, IndexNotFoundError
from genret.retrieval.retriever import Retriever
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.configuration.server_config import IndexSpec, ModelSpec, QueueLimits
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.models import IndexOpener
from genret.service.serving.served import ServedIndex
from genret.service.wire.replies import reply_from_proto
from genret.service.wire.requests import request_to_proto
from tests.service.running_server import failure, retriever_of, running
from tests.service.tiny_assets import MAX_POSITIONS, NUM_ENTITIES, make_checkpoint, make_index


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedIndex]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = make_checkpoint(folder / "checkpoint")
    index = make_index(folder / "index", checkpoint)
    model = ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1)
    served = IndexOpener(model).open(IndexSpec("tiny", index))
    yield served
    retriever_of(served).close()


def test_the_log_says_what_answers_for_an_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    index = make_index(tmp_path / "index", checkpoint)
    monkeypatch.setattr("genret.decoding.trie.title_trie._numba_is_installed", lambda: False)
    with caplog.at_level("INFO", logger="genret.service"):
        served = IndexOpener(ModelSpec(checkpoint=str(checkpoint), device="cpu")).open(
            IndexSpec("tiny", index)
        )
    retriever_of(served).close()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "INFO",
            f"index 'tiny': version {served.description.version} from {index}; model checkpoint on cpu; "
            "the trie is walked by torch kernels",
        ),
        (
            "WARNING",
            "index 'tiny': the model was never weighed on it, and counts little; weigh it with: "
            f"genret tune {index} --model {checkpoint}",
        ),
    ]


def test_indexes_share_one_model_and_one_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    opener = IndexOpener(ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1))
    with pytest.raises(IndexNotFoundError):  # the model is then loaded with the next one
        opener.open(IndexSpec("none", tmp_path / "none"))
    served = [opener.open(IndexSpec(n, make_index(tmp_path / n, checkpoint))) for n in ("a", "b", "c")]
    retrievers = [retriever_of(s) for s in served]
    assert len({id(r.model) for r in retrievers}) == 1
    assert len({id(r.tokenizer) for r in retrievers}) == 1
    assert [s.description.name for s in served] == ["a", "b", "c"]

    other = make_checkpoint(tmp_path / "other")
    file = other / "tokenizer.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    document["model"]["merges"] = document["model"]["merges"][:-1]
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(IndexMismatchError):
        opener.open(IndexSpec("d", make_index(tmp_path / "d", other)))

    for retriever in retrievers:
        request = RetrieveRequest("who wrote hamlet", k=3)
        (answer,) = retriever.retrieve_batch([request])
        assert isinstance(answer, RetrievalResult)
        assert len(answer.candidates) == 3
        retriever.close()  # an index closes alone


@pytest.fixture
def retriever(tiny: ServedIndex) -> Retriever:
    return retriever_of(tiny)


def test_the_description_is_the_indexs_own(tiny: ServedIndex, retriever: Retriever) -> None:
    described = tiny.description
    assert (described.name, described.model, described.device) == ("tiny", "checkpoint", "cpu")
    assert described.num_entities == NUM_ENTITIES
    assert described.version == retriever.index.version


@pytest.mark.parametrize("method", ["beam", "disc"])
def test_the_service_says_what_the_library_says(tiny: ServedIndex, retriever: Retriever, method: str) -> None:
    request = RetrieveRequest("who wrote hamlet", k=4, method=method, seed=11)
    (expected,) = retriever.retrieve(request.query, k=4, method=method, seed=11)

    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            message = await api.stub.Retrieve(request_to_proto(request), timeout=60)
            reply = reply_from_proto(request.query, message)
            assert reply.result.candidates == expected.candidates
            assert (reply.result.mass, reply.result.seed) == (expected.mass, expected.seed)
            assert reply.result.certified == expected.certified
            assert reply.index.digest == tiny.description.digest
            assert 0 < reply.result.timings.prefill_ms + reply.result.timings.decode_ms <= reply.total_ms

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"exact": True},
        {"exact": True, "exact_budget": 2, "beam_size": 1},
        {"length_penalty": 1.0},
        {"length_penalty": -0.5, "aggregate": "max", "exact": True},
        {"aggregate": "sum"},
        {"aggregate": "max"},
    ],
)
def test_scores_and_proofs_of_the_service_are_those_of_the_library(
    tiny: ServedIndex, retriever: Retriever, options: dict[str, Any]
) -> None:
    (expected,) = retriever.retrieve("who wrote hamlet", k=4, **options)

    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            request = RetrieveRequest("who wrote hamlet", k=4, **options)
            message = await api.stub.Retrieve(request_to_proto(request), timeout=60)
            result = reply_from_proto(request.query, message).result
            assert replace(result, timings=expected.timings) == expected
            assert result.num_nodes > 0
            assert result.kv.peak_bytes > 0
            assert result.kv.per_branch_bytes > 0

    asyncio.run(scenario())


def test_requests_of_all_kinds_share_a_batch_and_agree_with_themselves_alone(tiny: ServedIndex) -> None:
    requests = [
        pb.RetrieveRequest(query="city of light", k=3),
        pb.RetrieveRequest(query="river in egypt", k=1, method=pb.RETRIEVAL_METHOD_BEAM, beam_size=2),
        pb.RetrieveRequest(query="metal", method=pb.RETRIEVAL_METHOD_DISC, seed=1, num_samples=4),
        pb.RetrieveRequest(query="metal", method=pb.RETRIEVAL_METHOD_DISC, seed=2, temperature=2.0),
        pb.RetrieveRequest(query="woman who found radium", k=1000),
        pb.RetrieveRequest(query="x", method=pb.RETRIEVAL_METHOD_DISC, seed=3, top_m=5, num_draws=2),
        pb.RetrieveRequest(query="x", method=pb.RETRIEVAL_METHOD_DISC, seed=4, adaptive=True, num_samples=4),
        pb.RetrieveRequest(query="x", method=pb.RETRIEVAL_METHOD_DISC, seed=5, beam_size=3, num_samples=4),
        pb.RetrieveRequest(query="x", method=pb.RETRIEVAL_METHOD_DISC, seed=6, min_mass=1, num_samples=4),
        pb.RetrieveRequest(query="x", exact=True, beam_size=2),
        pb.RetrieveRequest(query="metal", length_penalty=1.0),
        pb.RetrieveRequest(query="metal", prompt_template="long", aggregation=pb.AGGREGATION_MAX),
    ]

    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            together = (await api.batch(*requests)).results
            for request, result in zip(requests, together, strict=True):
                alone = await api.stub.Retrieve(request, timeout=60)
                got = {c.entity_id: c.probability for c in result.response.candidates}
                assert list(got) == [c.entity_id for c in alone.candidates]
                # Shares of samples are equal, those of what was scored up to rounding.
                is_sampled = request.method == pb.RETRIEVAL_METHOD_DISC
                expected = {c.entity_id: c.probability for c in alone.candidates}
                assert got == (expected if is_sampled else pytest.approx(expected, rel=1e-4))
                assert [c.logprob for c in result.response.candidates] == pytest.approx(
                    [c.logprob for c in alone.candidates], abs=1e-4
                )
            assert len(together[4].response.candidates) == NUM_ENTITIES, "never filler, never twice"
            withheld = together[8].response
            assert (withheld.finish_reason, withheld.abstained) == (pb.FINISH_REASON_NO_MATCH, True)
            assert 0 < withheld.mass_lower_bound <= withheld.mass_upper_bound <= 1
            assert withheld.num_nodes > 0
            assert [r.response.abstained for r in together[:8]] == [False] * 8
            assert together[9].response.certified
            assert together[11].response.kv_usage.shared_prefix_bytes > 0

    asyncio.run(scenario())


def test_many_clients_at_once_all_get_their_own_answer(tiny: ServedIndex, retriever: Retriever) -> None:
    queries = [f"query number {i}" for i in range(48)]
    expected = [r.candidates for r in retriever.retrieve(queries, k=2)]

    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            replies = await asyncio.gather(*(api.retrieve(query, k=2) for query in queries))
            for reply, candidates in zip(replies, expected, strict=True):
                assert [c.entity_id for c in reply.candidates] == [c.entity_id for c in candidates]

    asyncio.run(scenario())


def test_a_query_longer_than_the_context_is_refused(tiny: ServedIndex) -> None:
    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            for words in (MAX_POSITIONS, 100_000):
                error, details = await failure(api.retrieve("word " * words))
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert details["BadRequest"].field_violations[0].field == "query"
                assert "too long" in error.details()

    asyncio.run(scenario())


def test_an_unknown_template_is_refused(tiny: ServedIndex) -> None:
    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}) as api:
            error, details = await failure(api.retrieve("x", prompt_template="poem"))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "plain" in details["BadRequest"].field_violations[0].description
            assert details["BadRequest"].field_violations[0].field == "prompt_template"
            requests = [pb.RetrieveRequest(query="x", prompt_template="poem")]
            (item,) = (await api.stub.BatchRetrieve(pb.BatchRetrieveRequest(requests=requests))).results
            assert item.error.message.startswith("prompt_template: unknown template 'poem'")

    asyncio.run(scenario())


def test_cancelling_stops_a_real_search(tiny: ServedIndex) -> None:
    async def scenario() -> None:
        async with running(indexes={"tiny": tiny}, queue=QueueLimits(max_wait_seconds=600)) as api:
            calls = [
                api.retrieve("x", method=pb.RETRIEVAL_METHOD_DISC, num_samples=256, num_draws=16)
                for _ in range(8)
            ]
            await asyncio.sleep(0.05)
            for call in calls:
                call.cancel()
            reply = await api.retrieve("after", k=1)
            assert reply.candidates

    asyncio.run(scenario())
