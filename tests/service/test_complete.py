"""Prefixes are completed over both faces, beside the devices; only the order of a model waits for one."""

from __future__ import annotations

import asyncio
import math

import grpc
import pytest

from genret.retrieval.complete_types import CompleteResult, Completion, MatchedSpan
from genret.service.client import AsyncRetrievalClient, CallError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.service.fake_retriever import FakeRetriever
from tests.service.http_gateway import connected


def client_of(api: object) -> AsyncRetrievalClient:
    return AsyncRetrievalClient(api.server.address)  # type: ignore[attr-defined]


async def test_completions_are_the_same_over_both_faces_while_the_device_is_busy() -> None:
    fake = FakeRetriever()
    fake.hold.clear()
    async with connected(fake) as (api, _, http), client_of(api) as client:
        asked = asyncio.ensure_future(api.retrieve())
        await asyncio.to_thread(fake.running.wait, 60)
        reply = await client.complete("Pa", 2)
        body = (await http.post("/v1/complete", json={"prefix": "Pa", "k": 2})).json()
        fake.hold.set()
        await asked
    expected = tuple(
        Completion(f"Q{n}", f"Pa {n}", f"Pa {n}", (MatchedSpan(0, 1),), n, 0.5) for n in range(2)
    )
    assert reply.result.completions == expected
    assert reply.index.name == body["index"]["name"] == "fake"
    spans = [{"begin": 0, "end": 1}]
    facts = {"entity_id": "Q1", "title": "Pa 1", "form": "Pa 1", "spans": spans, "errors": 1, "weight": 0.5}
    assert body["completions"][1] == facts
    assert reply.to_dict()["completions"][1] == {"rank": 2, **facts, "logprob": None}


async def test_the_model_orders_what_weight_has_found() -> None:
    async with connected(FakeRetriever()) as (api, _, http), client_of(api) as client:
        reply = await client.complete("Pa", 3, options={"order": "model"})
        asked = {"prefix": "Pa", "k": 3, "order": "COMPLETION_ORDER_MODEL"}
        body = (await http.post("/v1/complete", json=asked)).json()
    # The fake likes short titles, and says that Q1 and Q2 own every name.
    best = [("Q1", -4 + math.log(0.75)), ("Q2", -4 + math.log(0.25))]
    assert [(one.entity_id, one.logprob) for one in reply.result.completions[:2]] == best
    assert [one["entity_id"] for one in body["completions"]] == ["Q1", "Q2", "Q0"]
    assert isinstance(reply.result, CompleteResult)
    assert reply.result.completions[2].logprob is None


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prefix": "a" * 201}, "prefix: must have at most 200 characters, got 201"),
        ({"prefix": "a", "k": 101}, "k: must be in [1, 100], got 101"),
        ({"prefix": "a", "filter": "("}, "filter: at character"),
        ({"prefix": "a", "index": "none"}, "no index"),
    ],
)
async def test_what_cannot_be_completed_is_told(fields: dict[str, object], told: str) -> None:
    async with connected(FakeRetriever()) as (api, _, http):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await api.stub.Complete(pb.CompleteRequest(**fields), timeout=60)
        over_http = await http.post("/v1/complete", json=fields)
    assert told in refused.value.details()
    assert told in over_http.text
    assert over_http.status_code in (400, 404)


async def test_too_many_prefixes_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.service.methods._MAX_COMPLETING", 0)
    async with connected(FakeRetriever()) as (api, _, _), client_of(api) as client:
        with pytest.raises(CallError) as refused:
            await client.complete("Pa")
    assert refused.value.is_overload
    assert refused.value.retry_after_s == pytest.approx(0.1)
