"""A server whose engine is behind a socket answers as a whole one; and what is told when the engine ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message import Message

from genret.decoding.errors import PromptTooLongError
from genret.retrieval.errors import IndexMismatchError, SourceError
from genret.service.call import current_scope
from genret.service.configuration.server_config import HttpConfig, MetricsConfig, QueueLimits
from genret.service.errors import ServiceError
from genret.service.pb.genret.v1 import index_service_pb2 as index_pb
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving import engine_process
from tests.service.fake_retriever import FakeRetriever, served
from tests.service.running_server import LocalWorker, Running, failure, failure_code, running, until

Ask = Callable[[Running], Awaitable[Any]]
_MENTIONS = [pb.Mention(mention="a"), pb.Mention(mention=" ")]


def retriever() -> FakeRetriever:
    errors = {"long": PromptTooLongError("the prompt has 9 tokens"), "other": IndexMismatchError("not mine")}
    return FakeRetriever(errors=errors, bugs={"bug": RuntimeError("a bug")})


async def stream(api: Running) -> list[pb.RetrieveStreamResponse]:
    queries = [
        pb.RetrieveStreamRequest(id=f"{n}", request=pb.RetrieveRequest(query=f"q{n}")) for n in range(99)
    ]
    queries += [pb.RetrieveStreamRequest(id="long", request=pb.RetrieveRequest(query="long"))]
    answers = [answer async for answer in api.stub.RetrieveStream(iter(queries))]
    return sorted(answers, key=lambda answer: answer.id)


CALLS: dict[str, Ask] = {
    "a query": lambda api: api.retrieve("hamlet", k=2),
    "a wrong field": lambda api: api.retrieve("hamlet", k=9999),
    "an unknown index": lambda api: api.retrieve("hamlet", index="nope"),
    "an error of the retriever": lambda api: api.retrieve("long"),
    "a mismatch": lambda api: api.retrieve("other"),
    "a bug": lambda api: api.stub.Retrieve(
        pb.RetrieveRequest(query="bug"), metadata=(("x-request-id", "my-id"),)
    ),
    "an unknown priority": lambda api: api.stub.Retrieve(
        pb.RetrieveRequest(query="a"), metadata=(("x-request-priority", "high"),)
    ),
    "a batch": lambda api: api.batch(pb.RetrieveRequest(query="a"), pb.RetrieveRequest(query="long")),
    "mentions": lambda api: api.stub.Link(pb.LinkRequest(mentions=_MENTIONS)),
    "scores": lambda api: api.stub.Score(pb.ScoreRequest(query="a", titles=["b", "c"])),
    "a JSON answer": lambda api: api.stub.Answer(pb.AnswerRequest(query="a", schema_json="{}")),
    "a wrong schema": lambda api: api.stub.Answer(pb.AnswerRequest(query="a", schema_json="{")),
    "completions": lambda api: api.stub.Complete(pb.CompleteRequest(prefix="ham", k=2)),
    "a stream": stream,
    "the indexes": lambda api: api.indexes.ListIndexes(index_pb.ListIndexesRequest()),
    "one index": lambda api: api.indexes.GetIndex(index_pb.GetIndexRequest(name="fake")),
    "a reload": lambda api: api.indexes.ReloadIndex(index_pb.ReloadIndexRequest(name="fake")),
}


def without_times(message: Any) -> Any:
    """Clear what differs from run to run, in a message and all that are in it."""
    for field, value in list(message.ListFields()):
        if field.name.endswith(("_ms", "_seconds", "_time")) or field.name == "timings":
            message.ClearField(field.name)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                without_times(inner)
    return message


async def told(ask: Ask, two_processes: bool) -> str:
    """What a call is told, as text: its reply, or its status with details."""
    async with running(retriever(), two_processes=two_processes) as api:
        try:
            reply = await ask(api)
        except grpc.aio.AioRpcError as error:
            details = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
            return f"{error.code()} {error.details()} {details}"
    return "\n".join(str(without_times(one)) for one in ([reply] if isinstance(reply, Message) else reply))


@pytest.mark.parametrize("name", CALLS)
async def test_every_call_is_told_the_same_by_one_process_and_by_two(name: str) -> None:
    assert await told(CALLS[name], two_processes=True) == await told(CALLS[name], two_processes=False)


async def test_who_leaves_or_comes_too_late_stops_what_the_engine_does() -> None:
    fake = FakeRetriever(held=True)
    async with running(fake, two_processes=True) as api:
        call = api.retrieve("a")
        await until(fake.running.is_set)
        call.cancel()
        late = await failure(api.retrieve("late", timeout=0.2))
        assert late[0].code() is grpc.StatusCode.DEADLINE_EXCEEDED
        engine = api.server.engine._worker.engine
        fake.hold.set()
        await until(lambda: not any(lane.admission.num_requests for lane in engine.lanes.all()))
        assert fake.stopped_by


async def test_an_engine_that_ends_is_told_and_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakeRetriever(held=True), FakeRetriever()
    monkeypatch.setattr(engine_process, "_FIRST_PAUSE_S", 0.1)
    async with running(first, two_processes=True) as api:
        config = api.server._config
        started: list[LocalWorker] = []

        def again() -> LocalWorker:
            api.opener.table["fake"] = served(second)
            started.append(LocalWorker(config, api.opener))
            return started[-1]

        monkeypatch.setattr(engine_process, "Worker", again)
        calls = [api.retrieve("a"), api.batch(pb.RetrieveRequest(query="b"))]
        await until(first.running.is_set)
        api.server.engine._worker.kill()
        for call in calls:
            error, details = await failure(call)
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert details["RetryInfo"].retry_delay.seconds == 2
        assert api.server.readiness.state.name == "WARMING"
        assert await failure_code(api.retrieve("meanwhile")) is grpc.StatusCode.UNAVAILABLE
        await until(lambda: api.server.readiness.state.name == "READY")
        assert (await api.retrieve("again")).candidates[0].title == "title of again"
        assert len(started) == 1
        assert b"\ngenret_engine_restarts_total 1.0\n" in api.server.metrics.render()[0]
        first.hold.set()


async def test_an_engine_that_is_silent_for_too_long_is_ended_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in {"_FIRST_PAUSE_S": 0.1, "_PULSE_S": 0.05, "_SILENCE_S": 0.3}.items():
        monkeypatch.setattr(engine_process, name, seconds)
    async with running(FakeRetriever(), two_processes=True) as api:
        first, config = api.server.engine._worker, api.server._config
        await asyncio.sleep(0.6)
        assert api.server.engine._worker is first, "it answers"
        monkeypatch.setattr(engine_process, "Worker", lambda: LocalWorker(config, api.opener))
        monkeypatch.setattr(first._frames, "send", lambda *frame: None)
        await until(lambda: api.server.engine._worker is not first)
        await until(lambda: api.server.readiness.state.name == "READY")
        assert (await api.retrieve("again")).candidates


async def test_a_client_without_room_is_refused_without_the_engine() -> None:
    fake = FakeRetriever(held=True)
    queue = QueueLimits(max_requests=2)
    async with running(fake, two_processes=True, queue=queue, metrics=MetricsConfig(port=0)) as api:
        answers = api.server.engine._worker.engine.answers
        asked: list[str] = []
        answer = answers.answer

        async def counted(method: Any, message: Any, call: Any) -> Any:
            asked.append(message.query)
            return await answer(method, message, call)

        answers.answer = counted
        held = [asyncio.ensure_future(api.retrieve(f"held {n}")) for n in range(2)]
        await until(lambda: len(asked) == 2 and fake.running.is_set())
        codes = []
        for number in range(20):
            error, details = await failure(api.retrieve(f"more {number}"))
            codes.append((error.code(), details["ErrorInfo"].reason, "RetryInfo" in details))
        assert set(codes) == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", True)}
        assert len(asked) < 10, "most were refused where they came in"
        for query, options in (("less", {}), ("more 1", {"k": 3})):
            await failure(api.retrieve(query, **options))
            assert asked[-1] == query, "there might have been room for it"
        async with httpx.AsyncClient() as http:
            text = (await http.get(f"http://{api.server.monitoring.address}/metrics")).text
        assert 'genret_rejected_total{reason="queue_full"} 22.0' in text
        assert text.count("# TYPE genret_rejected_total ") == 1
        assert "\nprocess_resident_memory_bytes " in text
        assert "\npython_gc_collections_total" in text
        fake.hold.set()
        await asyncio.gather(*held)
        assert (await api.retrieve("room again")).candidates
        assert asked[-1] == "room again"


async def test_what_an_engine_noted_of_a_call_is_in_its_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeRetriever(), two_processes=True, http=HttpConfig(port=0)) as api:
        scopes: list[Any] = []
        answer = api.server.engine.answer

        async def seen(*arguments: Any) -> Any:
            try:
                return await answer(*arguments)
            finally:
                scopes.append(current_scope())

        api.server.engine.answer = seen
        await api.retrieve("three short words")
        (scope,) = scopes
        assert (scope.prompt_tokens, scope.num_answers) == (3, 1)
        assert scope.begun <= scope.answered


@pytest.mark.parametrize(
    ("error", "expected"),
    [(SourceError("a.tsv: line 3"), "a.tsv: line 3"), (ValueError("odd"), "ValueError: odd")],
)
async def test_an_engine_that_cannot_open_an_index_says_why(error: Exception, expected: str) -> None:
    async with running(FakeRetriever(), load=False, two_processes=True) as api:
        api.opener.table["fake"] = error
        with pytest.raises(ServiceError if isinstance(error, SourceError) else RuntimeError) as raised:
            await api.server.load()
        assert str(raised.value) == expected
        assert f"{type(error).__name__}: " in raised.value.__notes__[0], "where it was raised, for --debug"


async def test_an_engine_that_dies_while_it_opens_is_told() -> None:
    async with running(FakeRetriever(), load=False, two_processes=True) as api:
        api.opener.hold.clear()
        loading = asyncio.create_task(api.server.load())
        await until(lambda: bool(api.opener.opened))
        api.server.engine._worker.kill()
        with pytest.raises(ServiceError, match="while it opened its indexes"):
            await loading
