"""Links and streams of a real retriever say what the library says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.client import AsyncRetrievalClient, CallError
from genret.service.configuration.server_config import IndexSpec, ModelSpec
from genret.service.serving.models import IndexOpener
from genret.service.serving.served import ServedIndex
from tests.service.asynchronous import asynchronous
from tests.service.running_server import retriever_of, running
from tests.service.tiny_assets import NUM_ENTITIES, make_checkpoint, make_index

MENTIONS = [Mention("Lion", left="The ", right=" roared."), Mention("Paris"), Mention("metal", "a heavy ")]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedIndex]:
    folder = tmp_path_factory.mktemp("tiny")
    checkpoint = make_checkpoint(folder / "checkpoint")
    index = make_index(folder / "index", checkpoint)
    model = ModelSpec(checkpoint=str(checkpoint), device="cpu", dtype="float32", num_threads=1)
    served = IndexOpener(model).open(IndexSpec("tiny", index))
    yield served
    retriever_of(served).close()


@asynchronous
async def test_links_are_those_of_the_library(tiny: ServedIndex) -> None:
    retriever = retriever_of(tiny)
    async with running(indexes={"tiny": tiny}) as api, AsyncRetrievalClient(api.server.address) as client:
        for k in (1, 3):
            replies = await client.link([*MENTIONS, Mention("word " * 5000)], k=k)
            for reply, expected in zip(replies[:-1], retriever.link(MENTIONS, k=k), strict=True):
                assert not isinstance(reply, CallError)
                found = [(c.entity_id, c.title) for c in reply.result.candidates]
                assert found == [(c.entity_id, c.title) for c in expected.candidates]
                assert len(found) == k
                for ours, theirs in zip(reply.result.candidates, expected.candidates, strict=True):
                    assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
            too_long = replies[-1]
            assert isinstance(too_long, CallError)
            assert too_long.field_violations[0][0] == "mention"


@asynchronous
async def test_a_stream_gives_what_single_calls_give(tiny: ServedIndex) -> None:
    async with running(indexes={"tiny": tiny}) as api, AsyncRetrievalClient(api.server.address) as client:
        requests = [RetrieveRequest(f"query {i}", k=2 + i % 3) for i in range(20)]
        async for request, reply in client.retrieve_stream(requests):
            alone = await client.retrieve(request)
            assert not isinstance(reply, CallError)
            assert [c.entity_id for c in reply.result.candidates] == [
                c.entity_id for c in alone.result.candidates
            ]


@asynchronous
async def test_an_index_is_described(tiny: ServedIndex) -> None:
    async with running(indexes={"tiny": tiny}) as api, AsyncRetrievalClient(api.server.address) as client:
        (index,) = await client.list_indexes()
        assert (index.name, index.num_entities, index.is_default) == ("tiny", NUM_ENTITIES, True)
        assert index.max_title_tokens == retriever_of(tiny).index.max_row_tokens
        assert index.columns == (("kind", "string"),)
        assert index.loaded_at is not None
        assert abs(index.loaded_at - time.time()) < 600
