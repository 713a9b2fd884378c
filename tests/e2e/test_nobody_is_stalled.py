"""What one client asks does not hold up another: small calls end while a far larger one runs.

The order of ends is looked at, not times: so it holds on slow machines as well. The client of the small calls
has a token of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genret.retrieval.defaults import small_model_dir
from genret.service.configuration.server_config import IndexSpec, QueueLimits
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import ServedIndex
from tests.e2e.conftest import opened
from tests.sample_index import build_sample_index
from tests.service.running_server import Running, running, until
from tests.service.secured_server import tokens_in

_BEAM = pb.RETRIEVAL_METHOD_BEAM
SMALL = pb.RetrieveRequest(query="famous gas", k=1, method=_BEAM)
TOKENS = {"large": "large-client-of-this-test", "small": "small-client-of-this-test"}
WIDE = pb.RetrieveRequest(query="which", k=1000, beam_size=1000, method=_BEAM)
PROOF = pb.RetrieveRequest(
    query="which one", k=1000, beam_size=1000, method=_BEAM, exact=True, exact_budget=10**6
)
LARGE: dict[str, Callable[[Any, Any], Any]] = {
    "a wide beam": lambda stub, options: stub.Retrieve(WIDE, **options),
    "a proof of everything": lambda stub, options: stub.Retrieve(PROOF, **options),
    "a batch of wide beams": lambda stub, options: stub.BatchRetrieve(
        pb.BatchRetrieveRequest(requests=[WIDE] * 4), **options
    ),
    "thousands of titles to score": lambda stub, options: stub.Score(
        pb.ScoreRequest(query="which", titles=[f"{n} {'qwertz ' * 8}" for n in range(600)]), **options
    ),
    "a batch of single queries": lambda stub, options: stub.BatchRetrieve(
        pb.BatchRetrieveRequest(
            requests=[pb.RetrieveRequest(query=f"gas {n}", k=5, method=_BEAM) for n in range(256)]
        ),
        **options,
    ),
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedIndex]:
    out = build_sample_index(tmp_path_factory.mktemp("sample") / "sample.index")
    with opened(small_model_dir(), IndexSpec("sample", out)) as served:
        yield served["sample"]


@asynccontextmanager
async def serving(sample: ServedIndex, folder: Path) -> AsyncIterator[Running]:
    tokens = tokens_in(folder, *(f"read {token}" for token in TOKENS.values()))
    patient = QueueLimits(max_wait_seconds=600.0)
    async with running(indexes={"sample": sample}, token_file=tokens, queue=patient) as api:
        yield api


def options_of(client: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {TOKENS[client]}"),), "timeout": 600}


@pytest.mark.parametrize("large", LARGE)
async def test_small_calls_end_while_a_large_one_of_another_client_runs(
    sample: ServedIndex, large: str, tmp_path: Path
) -> None:
    async with serving(sample, tmp_path) as api:
        await api.stub.Retrieve(SMALL, **options_of("small"))
        lane = api.server.engine.lanes.of("cpu")
        attack = asyncio.ensure_future(LARGE[large](api.stub, options_of("large")))
        await until(lambda: bool(lane._running))
        for _ in range(5):
            answer = await api.stub.Retrieve(SMALL, **options_of("small"))
            assert answer.candidates
            assert not attack.done()
        reply = await attack
        assert reply.ByteSize()


async def test_equal_clients_have_equal_parts_whatever_calls_they_use(
    sample: ServedIndex, tmp_path: Path
) -> None:
    """Four streams that are never empty, and single calls: of the device's time, at most 1.5 : 1."""
    async with serving(sample, tmp_path) as api:
        stopped = asyncio.Event()

        async def queries(name: str) -> AsyncIterator[pb.RetrieveStreamRequest]:
            number = 0
            while not stopped.is_set():
                number += 1
                asked = pb.RetrieveRequest(query=f"{name} {number}", k=5, method=_BEAM)
                yield pb.RetrieveStreamRequest(id=f"{number}", request=asked)

        async def stream(name: str) -> int:
            number = 0
            async for _ in api.stub.RetrieveStream(queries(name), **options_of("large")):
                number += 1
            return number

        streams = [asyncio.ensure_future(stream(name)) for name in "abcd"]
        lane = api.server.engine.lanes.of("cpu")
        await until(lambda: lane.num_waiting >= 64)

        async def singles() -> None:
            while not stopped.is_set():
                await api.stub.Retrieve(SMALL, **options_of("small"))

        small = [asyncio.ensure_future(singles()) for _ in range(40)]
        await until(lambda: len(lane._shares._busy) == 2)
        parts = [client for _, client in sorted(lane._shares._busy.items())]
        begun = [part.had for part in parts]
        # Many groups long: each is half a second or more, and what runs is charged before it ends.
        await until(lambda: sum(part.had for part in parts) - sum(begun) > 15.0, 600)
        first, second = (part.had - had for part, had in zip(parts, begun, strict=True))
        stopped.set()
        for task in streams:
            task.cancel()  # megabytes of queries are on their way
        await asyncio.gather(*streams, return_exceptions=True)
        await asyncio.gather(*small)
        assert max(first, second) <= 1.5 * min(first, second)
