"""Who leaves frees what was taken: a real model, calls that end in every place a request passes.

A client cancels, hangs up or lets its deadline pass while its request waits in the queue, while the model is
at the prompts or at some step, while the answer is converted, and while it is on its way out. Each time
nothing is left: no place in the queue, no user of the index, no keys and values, no call in flight; and the
model has not begun another pass.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias
from weakref import WeakSet

import grpc
import httpx
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from genret.decoding.model.hf_session import TreeSession
from genret.index_builder.build_options import VectorBuildOptions
from genret.retrieval.ranking.ranker import Ranker
from genret.retrieval.vectors.embedder import VectorMethod
from genret.service import rpc as observation
from genret.service.configuration.server_config import IndexSpec
from genret.service.gateway import endpoints as handlers
from genret.service.gateway.endpoints import ENDPOINTS, NDJSON_TYPE
from genret.service.methods import Answers, Query
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving.served import ServedIndex
from tests.e2e.conftest import opened
from tests.service.fuzzed_server import held_for_requests, statuses
from tests.service.http_gateway import connected
from tests.service.running_server import Running, retriever_of, until
from tests.service.tiny_assets import make_index
from tests.service.turned_clock import TurnedClock

_BEAM = pb.RETRIEVAL_METHOD_BEAM
BEAM = pb.RetrieveRequest(query="which city", k=3, method=_BEAM, beam_size=4)
# Every entity is scored; a decoder runs beside it for the explanation.
AUTO = pb.RetrieveRequest(query="which city", k=3, explain=True)
# Vectors propose some entities; of shortlist these alone are scored, auto decodes first.
SHORTLIST = pb.RetrieveRequest(
    query="which city", k=3, method=pb.RETRIEVAL_METHOD_SHORTLIST, shortlist_size=3
)
AUTO_WITH_VECTORS = pb.RetrieveRequest(query="which city", k=3, shortlist_size=3)
DISC = pb.RetrieveRequest(query="which city", method=pb.RETRIEVAL_METHOD_DISC, seed=1, num_samples=8)
TITLES = (
    '{"type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "string", "x-genret-index": "tiny"}}'
)
MENTIONS = [pb.Mention(mention=mention) for mention in ("Nile", "Iron")]
# What is asked, and how many requests it makes.
FORMS: dict[str, tuple[str, Message, int]] = {
    "beam": ("Retrieve", BEAM, 1),
    "exact": ("Retrieve", pb.RetrieveRequest(query="which", k=12, method=_BEAM, beam_size=2, exact=True), 1),
    "disc": ("Retrieve", DISC, 1),
    "auto": ("Retrieve", AUTO, 1),
    "score": ("Score", pb.ScoreRequest(query="which", titles=["Paris", "Nile", "nothing known"]), 1),
    "answer": ("Answer", pb.AnswerRequest(query="which", schema_json=TITLES), 1),
    "stream": ("RetrieveStream", pb.RetrieveStreamRequest(id="a", request=BEAM), 1),
    "batch": ("BatchRetrieve", pb.BatchRetrieveRequest(requests=[BEAM, BEAM, DISC]), 3),
    "link": ("Link", pb.LinkRequest(mentions=MENTIONS, options=pb.RetrieveRequest(method=_BEAM)), 2),
}
HAS_FAISS = find_spec("faiss") is not None
PROPOSED = {"shortlist": SHORTLIST, "auto with vectors": AUTO_WITH_VECTORS} if HAS_FAISS else {}
FORMS |= {form: ("Retrieve", message, 1) for form, message in PROPOSED.items()}
UNARY = [form for form in FORMS if form != "stream"]
Served: TypeAlias = "AbstractAsyncContextManager[Api]"
Transport = Literal["grpc", "http"]
TRANSPORTS: tuple[Transport, ...] = ("grpc", "http")
DEADLINE_S = 30.0
CODE_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[ServedIndex]:
    wish = VectorBuildOptions(VectorMethod("encoder", str(checkpoint))) if HAS_FAISS else None
    index = make_index(tmp_path_factory.mktemp("tiny"), checkpoint, wish)
    with opened(checkpoint, IndexSpec("tiny", index)) as served:
        yield served["tiny"]


class HeldModel:
    """Counts the passes of a model since the last `watch`, and stops before one of them.

    `reached` is set when the model stands before that pass.
    """

    def __init__(self, served: ServedIndex) -> None:
        self._module: Any = retriever_of(served).model.pretrained  # type: ignore[attr-defined]
        self.passes = 0
        self.reached = threading.Event()
        self._stop_at: int | None = None
        self._go = threading.Event()

    def watch(self, stop_at: int | None = None) -> None:
        """Count from 0, and hold the model at one pass: the first is that of the prompts."""
        self.passes = 0
        self._stop_at = stop_at
        self.reached.clear()
        self._go.clear()

    def release(self) -> None:
        self._stop_at = None
        self._go.set()

    @contextmanager
    def attached(self) -> Iterator[HeldModel]:
        handle = self._module.register_forward_pre_hook(self._begin)
        try:
            yield self
        finally:
            self.release()
            handle.remove()

    def _begin(self, module: Any, arguments: Any) -> None:
        number, self.passes = self.passes, self.passes + 1
        if number == self._stop_at:
            self.reached.set()
            if not self._go.wait(60):
                raise TimeoutError("nobody let the model go on")


def watch_sessions(monkeypatch: pytest.MonkeyPatch) -> WeakSet[TreeSession]:
    """Return the sessions that are alive of those opened from now on: each holds keys and values."""
    alive: WeakSet[TreeSession] = WeakSet()
    begin = TreeSession.__init__

    def note(session: TreeSession, *arguments: Any, **options: Any) -> None:
        begin(session, *arguments, **options)
        alive.add(session)

    monkeypatch.setattr(TreeSession, "__init__", note)
    return alive


@dataclass(frozen=True)
class Api:
    """The server, both kinds of clients, and the model."""

    running: Running
    http: httpx.AsyncClient
    model: HeldModel
    sessions: WeakSet[TreeSession]

    def ask(self, transport: Transport, form: str, deadline_s: float | None = None) -> asyncio.Task[Any]:
        """Start a call; cancelling the task is what a client does that leaves."""
        method, message, _ = FORMS[form]
        ask = self._over_grpc if transport == "grpc" else self._over_http
        return asyncio.create_task(ask(method, message, deadline_s))

    async def _over_grpc(self, method: str, message: Message, deadline_s: float | None) -> str:
        start = getattr(self.running.stub, method)
        timeout = deadline_s or 60
        try:
            if method == "RetrieveStream":
                answers = [answer async for answer in start(iter([message]), timeout=timeout)]
            else:
                answers = [await start(message, timeout=timeout)]
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        # Items of a call end by themselves at its deadline, a moment before it or after.
        failed: set[str] = {CODE_NAMES[status.code] for answer in answers for status in statuses(answer)}
        return ", ".join(sorted(failed)) or "OK"

    async def _over_http(self, method: str, message: Message, deadline_s: float | None) -> str:
        (endpoint,) = (e for e in ENDPOINTS if e.method == method)
        content = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
        headers = {"content-type": NDJSON_TYPE if endpoint.row.is_stream else "application/json"}
        if deadline_s is not None:
            headers["x-request-timeout-seconds"] = str(deadline_s)
        response = await self.http.post(endpoint.path, content=content, headers=headers)
        return "OK" if response.status_code == 200 else str(response.json()["error"]["status"])

    def held(self) -> list[str]:
        """What is held for requests, in words."""
        alive = len(self.sessions)
        return held_for_requests(self.running.server) + ([f"{alive} sessions"] if alive else [])

    def running_calls(self) -> float:
        metrics = self.running.server.metrics
        return sum(s.value for family in metrics.in_flight.collect() for s in family.samples)

    def users(self) -> int:
        return self.running.server.engine.indexes._users.total()

    def ended(self, name: str, stage: str) -> float:
        """Requests that ended early at a stage, `name` says how."""
        counter = getattr(self.running.server.metrics, name)
        return float(counter.labels(stage)._value.get())

    async def check_free(self) -> None:
        """Nothing is held, and the next query is answered."""
        await until(lambda: not self.held())
        assert (await self.running.retrieve(k=1)).candidates
        await until(lambda: not self.held())


@pytest.fixture
def served(tiny: ServedIndex, monkeypatch: pytest.MonkeyPatch) -> Served:
    """A server with a model that waits where it is told to."""
    return serving(tiny, watch_sessions(monkeypatch))


@asynccontextmanager
async def serving(tiny: ServedIndex, sessions: WeakSet[TreeSession]) -> AsyncIterator[Api]:
    async with connected(indexes={"tiny": tiny}, timeout=600) as (api, _, client):
        with HeldModel(tiny).attached() as model:
            yield Api(api, client, model, sessions)


async def gone(call: asyncio.Task[Any]) -> None:
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()


Leave = Callable[[asyncio.Task[Any]], Awaitable[None]]


@pytest.fixture
def late(clock: TurnedClock) -> Leave:
    """Stay, as long as the server takes for the rest of the deadline."""

    async def stay(call: asyncio.Task[Any]) -> None:
        clock.forward(DEADLINE_S)
        assert await call == "DEADLINE_EXCEEDED"

    return stay


async def leave_the_queue(
    api: Api, transport: Transport, form: str, leave: Leave, deadline_s: float | None = None
) -> None:
    """End a call whose requests wait behind another one."""
    lane = api.running.server.engine.lanes.of("cpu")
    api.model.watch(stop_at=0)
    ahead = asyncio.ensure_future(api.running.retrieve("ahead"))
    await until(api.model.reached.is_set)
    call = api.ask(transport, form, deadline_s)
    number = FORMS[form][2]
    await until(lambda: lane.num_waiting == number)
    await leave(call)
    # All of it while the device is still at the other one.
    await until(lambda: not lane.num_waiting)
    await until(lambda: (lane.admission.num_requests, api.users(), api.running_calls()) == (1, 1, 1))
    api.model.release()
    assert (await ahead).candidates
    await api.check_free()


async def leave_the_model(
    api: Api, transport: Transport, form: str, at: int, leave: Leave, deadline_s: float | None = None
) -> int:
    """End a call while the model is at its pass number `at`; 0 is that of the prompts.

    Returns the number of its requests that were running: of a batch some may have ended, or not begun.
    """
    api.model.watch(stop_at=at)
    call = api.ask(transport, form, deadline_s)
    await until(api.model.reached.is_set)
    lane = api.running.server.engine.lanes.of("cpu")
    running = lane.admission.num_requests - lane.num_waiting
    assert running >= 1 if form == "batch" else running == FORMS[form][2]
    await leave(call)
    # Who left is known at once; the device is free at the next step.
    await until(lambda: not api.running_calls() and not api.users())
    assert lane.admission.num_requests == running
    api.model.release()
    await until(lambda: not api.held())
    assert api.model.passes == at + 1
    await api.check_free()
    return running


async def passes_of(api: Api, transport: Transport, form: str) -> int:
    """Let a call run to its end and return how often the model ran for it."""
    api.model.watch()
    assert await api.ask(transport, form) == "OK"
    await until(lambda: not api.held())
    return api.model.passes


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_leaves_the_queue(served: Served, transport: Transport) -> None:
    async with served as api:
        for form, (_, _, number) in FORMS.items():
            before = api.ended("cancelled", "queue")
            await leave_the_queue(api, transport, form, gone)
            assert api.ended("cancelled", "queue") == before + number


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_leaves_the_model_at_the_prompts_and_at_steps(
    served: Served, transport: Transport
) -> None:
    async with served as api:
        for form in FORMS:
            number = await passes_of(api, transport, form)
            assert number >= {"score": 1, "shortlist": 2}.get(form, 3)
            # Behind the last pass of a model nobody is asked any more.
            for at in sorted(at for at in {0, 1, 2, number - 2} if 0 <= at < max(number - 1, 1)):
                before = api.ended("cancelled", "running")
                running = await leave_the_model(api, transport, form, at, gone)
                assert api.ended("cancelled", "running") == before + running


@pytest.mark.parametrize(
    ("transport", "form", "at"),
    [
        *(("grpc", form, at) for form, at in (("beam", 0), ("beam", 2), ("disc", 1), ("auto", 1))),
        *(("grpc", form, 1) for form in ("stream", "batch", "link")),
        *(("grpc", "score", 0), ("grpc", "answer", 2), ("http", "beam", 1)),
    ],
)
async def test_the_deadline_passes_in_the_model(
    served: Served, form: str, transport: Transport, at: int, late: Leave
) -> None:
    async with served as api:
        before = api.ended("deadline_exceeded", "running")
        await leave_the_model(api, transport, form, at, late, DEADLINE_S)
        assert api.ended("deadline_exceeded", "running") == before + FORMS[form][2]


@pytest.mark.parametrize(
    ("transport", "form"), [("grpc", "beam"), ("grpc", "answer"), ("http", "disc"), ("http", "score")]
)
async def test_the_deadline_passes_in_the_queue(
    served: Served, form: str, transport: Transport, late: Leave
) -> None:
    async with served as api:
        before = api.ended("deadline_exceeded", "queue")
        await leave_the_queue(api, transport, form, late, DEADLINE_S)
        assert api.ended("deadline_exceeded", "queue") == before + 1


@pytest.mark.skipif(not PROPOSED, reason="needs the extra vectors")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_leaves_while_vectors_are_asked(
    served: Served, transport: Transport, late: Leave, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served as api:
        ask = Ranker.ask
        asked, go = threading.Event(), threading.Event()

        def held(*arguments: Any) -> Any:
            asked.set()
            assert go.wait(60)
            return ask(*arguments)

        monkeypatch.setattr(Ranker, "ask", held)
        for form in PROPOSED:
            for leave, deadline_s in ((gone, None), (late, DEADLINE_S)):
                asked.clear()
                go.clear()
                api.model.watch()
                call = api.ask(transport, form, deadline_s)
                await until(asked.is_set)
                await leave(call)
                await until(lambda: not api.running_calls() and not api.users())
                go.set()
                await until(lambda: not api.held())
                assert api.model.passes == 0
                await api.check_free()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_client_leaves_while_its_answer_is_converted(
    served: Served, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served as api:
        calls: list[asyncio.Task[Any]] = []
        converted = 0

        def leaving(convert: Callable[..., Any]) -> Callable[..., Any]:
            def run(*arguments: Any) -> Any:
                nonlocal converted
                converted += 1
                for call in calls:
                    call.cancel()
                return convert(*arguments)

            return run

        ask = Answers._ask

        async def asked(methods: Answers, query: Query, *arguments: Any) -> Any:
            return await ask(methods, replace(query, write=leaving(query.write)), *arguments)

        monkeypatch.setattr(Answers, "_ask", asked)
        for form, (_, _, number) in FORMS.items():
            converted = 0
            calls.append(api.ask(transport, form))
            await asyncio.gather(*calls, return_exceptions=True)
            assert calls.pop().cancelled()
            await until(lambda: not api.held())
            assert 0 < converted <= number
            await api.check_free()


@pytest.mark.parametrize(
    ("transport", "module", "name"),
    [("grpc", observation, "_answered"), ("http", handlers, "write_message")],
    ids=TRANSPORTS,
)
async def test_a_client_leaves_while_its_answer_is_on_its_way_out(
    served: Served, transport: Transport, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The method has returned; the server learns of it before the answer is written."""
    async with served as api:
        calls: list[asyncio.Task[Any]] = []
        write = getattr(module, name)

        async def leaving(*arguments: Any) -> Any:
            written = await write(*arguments)
            if calls:
                await gone(calls.pop())
                if transport == "grpc":
                    await asyncio.Event().wait()  # until the server cancels the call
            return written

        monkeypatch.setattr(module, name, leaving)
        for form in UNARY:
            call = api.ask(transport, form)
            calls.append(call)
            await asyncio.gather(call, return_exceptions=True)
            assert call.cancelled()
            assert not calls
            await api.check_free()
