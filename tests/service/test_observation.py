"""Observed calls: every kind of method, every way to end, its counts, its log line and its trace."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from genret.retrieval.errors import MissingExtraError
from genret.retrieval.score_types import ScoreRequest
from genret.retrieval.types import RetrieveRequest
from genret.service.call import REQUEST_ID_KEY, CallScope, current_scope
from genret.service.configuration.server_config import LogConfig, TracingConfig
from genret.service.observability import tracing
from genret.service.observability.metrics import CallMetrics, Metrics
from genret.service.observability.observations import CallObserver, QueueObservations
from genret.service.observability.tracing import Tracing
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.rpc import ObservationInterceptor, call_of, host_of
from genret.service.serving.connections import OpenCalls
from tests.service.fake_retriever import fake_result, fake_scores
from tests.service.running_server import failure_code, overtaken, until

SERVICE = "genret.v1.RetrievalService"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


@dataclass
class Observed:
    """A channel to the server, and what it counted."""

    channel: Any
    metrics: Metrics
    kind: str

    def call(self, *queries: str, timeout: float = 60, **options: Any) -> Any:
        """Start a call of Retrieve with one message, or a stream of them."""
        multicallable = getattr(self.channel, self.kind)(
            f"/{SERVICE}/Retrieve",
            request_serializer=pb.RetrieveRequest.SerializeToString,
            response_deserializer=pb.RetrieveResponse.FromString,
        )
        messages = [pb.RetrieveRequest(query=query) for query in queries or ("hamlet",)]
        request = messages[0] if self.kind.startswith("unary") else iter(messages)
        return multicallable(request, timeout=timeout, **options)

    def codes(self) -> dict[tuple[str, str], float]:
        return {
            (sample.labels["method"], sample.labels["code"]): sample.value
            for family in self.metrics.requests.collect()
            for sample in family.samples
        }

    async def counted(self, code: str) -> None:
        """Wait until one call is counted, and check that it was counted so, and has ended."""
        await until(lambda: self.codes() == {("Retrieve", code): 1})
        assert self.in_flight() == 0

    def in_flight(self) -> float:
        return sum(s.value for family in self.metrics.in_flight.collect() for s in family.samples)


@asynccontextmanager
async def observed(
    behaviour: Callable[..., Any],
    kind: str = "unary_unary",
    log: LogConfig | None = None,
    tracing: Tracing | None = None,
    behind: Sequence[Any] = (),
) -> AsyncIterator[Observed]:
    """Serve Retrieve by `behaviour`, of any kind, with interceptors `behind` the observing one."""
    metrics = Metrics()
    observer = CallObserver(metrics, log or LogConfig(), tracing)
    interceptors = [ObservationInterceptor(observer, OpenCalls()), *behind]
    server = grpc.aio.server(interceptors=interceptors)
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(
        behaviour,
        request_deserializer=pb.RetrieveRequest.FromString,
        response_serializer=pb.RetrieveResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Retrieve": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Observed(channel, metrics, kind)
    finally:
        await server.stop(0)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


REPLY = pb.RetrieveResponse(index=pb.IndexRef(name="plays", version="v7"))
Before = Callable[[Any], Awaitable[None]]


def behaviour(kind: str, before: Before, generator: bool = True) -> Callable[..., Any]:
    """Return a handler that runs `before`, then answers once for every request."""

    async def unary(request: Any, context: Any) -> Any:
        if kind.startswith("stream"):
            async for _ in request:
                pass
        await before(context)
        return REPLY

    async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
        if kind.startswith("unary"):
            yield REPLY
        else:
            async for _ in request:
                yield REPLY
        await before(context)

    async def write(request: Any, context: Any) -> None:
        async for response in generate(request, context):
            await context.write(response)

    if kind.endswith("unary"):
        return unary
    return generate if generator else write


async def finish(running: Observed, *queries: str, **options: Any) -> str:
    """Run a call to its end; return the name of its status."""
    return await ended(running.call(*queries, **options), running.kind)


async def ended(call: Any, kind: str) -> str:
    try:
        if kind.endswith("unary"):
            await call
        else:
            async for _ in call:
                pass
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return str((await call.code()).name)


async def nothing(context: Any) -> None:
    pass


@pytest.mark.parametrize("generator", [True, False])
async def test_a_call_that_is_answered_counts_as_ok(kind: str, generator: bool) -> None:
    async with observed(behaviour(kind, nothing, generator), kind) as running:
        assert await finish(running, "a", "b") == "OK"
        await running.counted("OK")
        (family,) = running.metrics.request_seconds.collect()
        assert next(s.value for s in family.samples if s.name.endswith("_count")) == 1


async def abort(context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")


class Behind(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Does something before there is a handler."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        self.act()
        return await continuation(details)


def break_down() -> None:
    raise KeyError("a secret")


@pytest.mark.parametrize(
    ("before", "behind", "code"),
    [(abort, [], "RESOURCE_EXHAUSTED"), (nothing, [Behind(break_down)], "INTERNAL")],
)
async def test_a_call_that_fails_counts_under_its_code(
    kind: str, before: Before, behind: list[Any], code: str
) -> None:
    async with observed(behaviour(kind, before), kind, behind=behind) as running:
        assert await finish(running) == code
        await running.counted(code)


async def test_what_no_method_caught_is_internal_and_told_by_its_id(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def dies(context: Any) -> None:
        break_down()

    async with observed(behaviour(kind, dies), kind) as running:
        call = running.call(metadata=((REQUEST_ID_KEY, "my-id"),))
        assert await ended(call, kind) == "INTERNAL"
        assert await call.details() == "internal error; request id my-id"
        await running.counted("INTERNAL")
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "my-id" in record.getMessage()
    assert record.exc_info is not None


@pytest.mark.parametrize("generator", [True, False])
async def test_a_client_that_leaves_counts_as_cancelled(kind: str, generator: bool) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang(context: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with observed(behaviour(kind, hang, generator), kind) as running:
        task = asyncio.create_task(finish(running))
        await asyncio.wait_for(started.wait(), 60)
        assert running.in_flight() == 1
        task.cancel()
        await asyncio.wait_for(stopped.wait(), 60)
        await running.counted("CANCELLED")


async def test_a_client_that_waited_to_its_deadline_counts_as_that(kind: str) -> None:
    hanging = asyncio.Event()

    async def hang(context: Any) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with observed(behaviour(kind, hang), kind) as running:
        code = await overtaken(lambda seconds: finish(running, timeout=seconds), hanging.is_set)
        assert code == "DEADLINE_EXCEEDED"
        await running.counted("DEADLINE_EXCEEDED")


async def test_methods_that_are_not_there_share_one_label_and_bytes_that_are_no_message_are_invalid() -> None:
    async with observed(behaviour("unary_unary", nothing)) as running:
        for name in (f"/{SERVICE}/Nothing", "/x.Y/Z", "/genret.v1.RetrievalService/retrieve"):
            unknown = running.channel.unary_unary(name)(b"")
            assert await failure_code(unknown) is grpc.StatusCode.UNIMPLEMENTED
        garbage = running.channel.unary_unary(f"/{SERVICE}/Retrieve")(b"\xff\xff\xff")
        assert await failure_code(garbage) is grpc.StatusCode.INVALID_ARGUMENT
        counted = {("unknown", "UNIMPLEMENTED"): 3, ("Retrieve", "INVALID_ARGUMENT"): 1}
        await until(lambda: running.codes() == counted)


async def test_interceptor_and_method_know_a_call_by_one_id() -> None:
    seen: list[tuple[str, str]] = []

    async def note(context: Any) -> None:
        scope = current_scope()
        seen.append((scope.request_id, call_of(context, 1.0).request_id))

    async with observed(behaviour("unary_unary", note)) as running:
        await asyncio.gather(
            finish(running, metadata=((REQUEST_ID_KEY, "abc"),)),
            finish(running),
            finish(running, metadata=((REQUEST_ID_KEY, "not sane"),)),
            finish(running, metadata=((REQUEST_ID_KEY, "x" * 200),)),
        )
    assert all(ours == theirs for ours, theirs in seen)
    ids = {ours for ours, _ in seen}
    assert len(ids) == 4
    assert ids & {"abc", "not sane", "x" * 200} == {"abc"}


@pytest.mark.parametrize("queries", [False, True])
async def test_a_request_line_names_the_call_and_queries_only_where_asked(
    kind: str, queries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "genret.requests")
    log = LogConfig(requests=True, queries=queries)
    async with observed(behaviour(kind, nothing), kind, log) as running:
        await finish(running, "to be\nor not", metadata=((REQUEST_ID_KEY, "abc"),))
        await until(lambda: any(r.name == "genret.requests" for r in caplog.records))
    (record,) = [r for r in caplog.records if r.name == "genret.requests"]
    fields = record.__dict__
    assert (fields["request_id"], fields["method"], fields["code"]) == ("abc", "Retrieve", "OK")
    assert fields["peer"] == "127.0.0.1"
    assert 0 <= fields["seconds"] < 60
    if kind.endswith("unary"):
        assert (fields["index"], fields["version"]) == ("plays", "v7")
    if queries:
        assert fields["queries"] == ["to be\\nor not"]
    else:
        assert "to be" not in str(fields)


async def test_calls_at_once_are_kept_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ids = [f"call-{i}" for i in range(20)]
    all_here = asyncio.Event()
    here: list[str] = []

    async def meet(context: Any) -> None:
        scope = current_scope()
        here.append(scope.request_id)
        if len(here) == len(ids):
            all_here.set()
        await all_here.wait()
        assert current_scope() is scope
        if scope.request_id.endswith("7"):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no")

    async with observed(behaviour("unary_unary", meet), log=LogConfig(requests=True)) as running:
        codes = await asyncio.gather(*(finish(running, metadata=((REQUEST_ID_KEY, i),)) for i in ids))
        assert codes.count("NOT_FOUND") == 2
        await until(lambda: sum(running.codes().values()) == len(ids))
        assert running.codes() == {("Retrieve", "OK"): 18, ("Retrieve", "NOT_FOUND"): 2}
        assert running.in_flight() == 0
    lines = [r.__dict__ for r in caplog.records if r.name == "genret.requests"]
    logged = {line["request_id"]: line["code"] for line in lines}
    assert logged == {i: "NOT_FOUND" if i.endswith("7") else "OK" for i in ids}


async def test_nothing_is_logged_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with observed(behaviour("unary_unary", nothing)) as running:
        await finish(running, "a secret query")
    assert not [r for r in caplog.records if r.name.startswith(("genret", "service"))]


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[fe80::1%25eth0]:5000", "fe80::1%eth0"),
        ("unix:/run/genret.sock", "unix"),
        ("unix:", "unix"),
        ("", ""),
    ],
)
def test_a_peer_is_named_without_its_port(peer: str, host: str) -> None:
    assert host_of(peer) == host


TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


def call(
    exporter: InMemorySpanExporter, behaviour: Any, metadata: Sequence[Any] = (), ratio: float = 1.0
) -> dict[str, ReadableSpan]:
    """Serve one call with `behaviour`; return the spans by name."""

    async def scenario() -> None:
        config = TracingConfig(endpoint="http://127.0.0.1:4317", sample_ratio=ratio)
        traced = tracing.start(config, "1.2.3", SimpleSpanProcessor(exporter))
        async with observed(behaviour, tracing=traced) as running:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await running.call("a secret query", metadata=(*metadata, (REQUEST_ID_KEY, "abc")))
        await traced.stop()

    asyncio.run(scenario())
    spans = exporter.get_finished_spans()
    assert "secret" not in " ".join(span.to_json() for span in spans)
    return {span.name: span for span in spans}


def answered(asked: RetrieveRequest | ScoreRequest) -> None:
    """Stand in for the device's queue, which tells its observer of answers in the task of the call."""
    result = fake_scores(asked) if isinstance(asked, ScoreRequest) else fake_result(asked)
    QueueObservations(Metrics(), "cpu").answered(asked, result, queued_s=0.5, seconds=1.0)


async def answer(request: Any, context: Any) -> Any:
    answered(RetrieveRequest(request.query, k=3, method="beam"))
    await asyncio.sleep(0.01)
    return REPLY


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_call_has_a_span_with_its_stages(exporter: InMemorySpanExporter) -> None:
    spans = call(exporter, answer)
    server = spans.pop("genret.v1.RetrievalService/Retrieve")
    assert server.kind is SpanKind.SERVER
    assert server.parent is None
    assert server.status.status_code is StatusCode.UNSET
    assert attributes(server) == {
        "rpc.system.name": "grpc",
        "rpc.method": "genret.v1.RetrievalService/Retrieve",
        "rpc.response.status_code": "OK",
        "client.address": "127.0.0.1",
        "genret.request_id": "abc",
        "genret.index": "plays",
        "genret.version": "v7",
    }
    assert server.resource.attributes["service.name"] == "genret"
    assert server.resource.attributes["genret.service.version"] == "1.2.3"
    assert set(spans) == {"queue", "prefill", "decode", "convert"}
    for span in spans.values():
        assert span.parent.span_id == server.context.span_id
    order = [spans[name] for name in ("queue", "prefill", "decode", "convert")]
    times = [(span.start_time or 0, span.end_time or 0) for span in order]
    assert [round((end - begin) / 1e6) for begin, end in times[:3]] == [500, 1, 2]
    assert times[0][1] == pytest.approx(times[1][0], abs=1000)
    assert times[3][1] - times[3][0] >= 9e6
    assert abs(times[3][1] - time.time_ns()) < 60e9, "times are of this day, not of the machine's start"
    asked = {"genret.method": "beam", "genret.k": 3}
    done = {"genret.steps": 4, "genret.tokens": 11, "genret.candidates": 2}
    assert attributes(spans["decode"]) == asked | done


@pytest.mark.parametrize(
    ("asked", "milliseconds", "told"),
    [
        (
            RetrieveRequest("a secret query", k=3, method="auto"),
            {"queue": 500, "prefill": 1, "decode": 2, "shortlist": 3, "score": 4},
            {"shortlist": {"genret.entities": 2}, "score": {"genret.titles": 3}},
        ),
        (
            ScoreRequest("a secret query", ("one", "two")),
            {"queue": 500, "prefill": 1, "score": 4},
            {"score": {"genret.method": "score", "genret.tokens": 17, "genret.titles": 2}},
        ),
    ],
    ids=["a shortlist", "given titles"],
)
def test_scored_titles_have_stages_of_their_own(
    exporter: InMemorySpanExporter,
    asked: RetrieveRequest | ScoreRequest,
    milliseconds: dict[str, int],
    told: dict[str, dict[str, Any]],
) -> None:
    async def scored(request: Any, context: Any) -> Any:
        answered(asked)
        return pb.RetrieveResponse()

    spans = call(exporter, scored)
    assert spans.keys() - milliseconds.keys() <= {f"{SERVICE}/Retrieve", "convert"}
    times = [(spans[name].start_time or 0, spans[name].end_time or 0) for name in milliseconds]
    assert [round((end - begin) / 1e6) for begin, end in times] == [*milliseconds.values()]
    assert all(end == pytest.approx(begin, abs=1000) for (_, end), (begin, _) in itertools.pairwise(times))
    assert {name: attributes(spans[name]) for name in told} == told


def test_every_item_of_a_batch_has_its_stages(exporter: InMemorySpanExporter) -> None:
    async def answer_twice(request: Any, context: Any) -> Any:
        await asyncio.gather(answer(request, context), answer(request, context))
        return pb.RetrieveResponse()

    call(exporter, answer_twice)
    names = sorted(span.name for span in exporter.get_finished_spans())
    assert names == sorted(["queue", "prefill", "decode"] * 2 + ["genret.v1.RetrievalService/Retrieve"])


@pytest.mark.parametrize(
    ("header", "is_parent"), [(f"00-{TRACE}-{PARENT}-01", True), ("00-zz-\x20-xx", False)]
)
def test_the_client_s_trace_goes_on_and_one_that_is_none_is_ignored(
    exporter: InMemorySpanExporter, header: str, is_parent: bool
) -> None:
    server = call(exporter, answer, [("traceparent", header)])[f"{SERVICE}/Retrieve"]
    assert (server.parent is not None) is is_parent
    if server.parent is not None:
        ids = (f"{server.context.trace_id:032x}", f"{server.parent.span_id:016x}")
        assert ids == (TRACE, PARENT)


@pytest.mark.parametrize(
    ("flags", "ratio", "kept"), [("01", 0.0, True), ("00", 1.0, False), (None, 0.0, False), (None, 1.0, True)]
)
def test_who_began_the_trace_decides_whether_it_is_kept(
    exporter: InMemorySpanExporter, flags: str | None, ratio: float, kept: bool
) -> None:
    metadata = [] if flags is None else [("traceparent", f"00-{TRACE}-{PARENT}-{flags}")]
    assert bool(call(exporter, answer, metadata, ratio)) is kept


@pytest.mark.parametrize(("code", "is_server_error"), [("INVALID_ARGUMENT", False), ("UNAVAILABLE", True)])
def test_a_span_is_in_error_where_the_server_is_to_blame(
    exporter: InMemorySpanExporter, code: str, is_server_error: bool
) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode[code], "no")

    (span,) = call(exporter, refuse).values()
    assert attributes(span)["rpc.response.status_code"] == attributes(span)["error.type"] == code
    assert (span.status.status_code is StatusCode.ERROR) is is_server_error


def test_a_collector_that_is_down_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"

        async def scenario() -> set[str]:
            traced = tracing.start(TracingConfig(endpoint=endpoint), "1.2.3")
            async with observed(answer, tracing=traced) as running:
                codes = {await finish(running) for _ in range(20)}
            await asyncio.wait_for(traced.stop(timeout_s=0.5), 60)
            return codes

        assert asyncio.run(scenario()) == {"OK"}


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"generative-retrieval\[otel\]") as raised:
        tracing.start(TracingConfig(endpoint="http://127.0.0.1:4317"), "1.2.3")
    assert raised.value.extra == "otel"


def test_nothing_of_opentelemetry_is_imported_before_it_is_asked_for() -> None:
    lines = (
        "import sys, genret.service.rpc",
        "from genret.service.configuration.server_config import TracingConfig",
        "from genret.service.observability.tracing import start",
        "assert start(TracingConfig(), '1.2.3') is None",
        "print([name for name in sys.modules if name.startswith('opentelemetry')])",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_call_holds_no_large_queries_for_its_line() -> None:
    scope = CallScope("id", "RetrieveStream")
    observer = CallObserver(CallMetrics(), LogConfig(requests=True, queries=True))
    for _ in range(20):
        observer.note_queries(scope, ["x" * 1_000_000])
    assert scope.num_queries == 20
    assert [len(query) for query in scope.queries] == [203] * 10
