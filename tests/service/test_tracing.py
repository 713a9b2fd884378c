"""Traces: a span for every call, its stages below it, and never a query."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from retrieval.errors import MissingExtraError
from retrieval.score_types import ScoreRequest
from retrieval.types import RetrieveRequest
from service.call import REQUEST_ID_KEY
from service.configuration.server_config import TracingConfig
from service.observability import tracing
from service.observability.metrics import Metrics
from service.observability.observations import QueueObservations
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from tests.service.fake_retriever import fake_result, fake_scores
from tests.service.observed_server import observed

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


def started(exporter: InMemorySpanExporter, ratio: float = 1.0) -> tracing.Tracing:
    config = TracingConfig(endpoint="http://127.0.0.1:4317", sample_ratio=ratio)
    found = tracing.start(config, "1.2.3", SimpleSpanProcessor(exporter))
    assert found is not None
    return found


def call(
    exporter: InMemorySpanExporter,
    behaviour: Any,
    metadata: Sequence[tuple[str, str]] = (),
    ratio: float = 1.0,
) -> dict[str, ReadableSpan]:
    """Serve one call with `behaviour`; return the spans by name."""

    async def scenario() -> None:
        traced = started(exporter, ratio)
        async with observed(behaviour, tracing=traced) as running:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await running.call("a secret query", metadata=(*metadata, (REQUEST_ID_KEY, "abc")))
        await traced.stop()

    asyncio.run(scenario())
    spans = exporter.get_finished_spans()
    assert "secret" not in " ".join(span.to_json() for span in spans)
    return {span.name: span for span in spans}


async def answer(request: Any, context: Any) -> Any:
    """Stand in for the batcher, which tells its lane's observer of answers in the task of the call."""
    asked = RetrieveRequest(request.query, k=3, method="beam")
    QueueObservations(Metrics(), "cpu").answered(asked, fake_result(asked), queued_s=0.5, seconds=1.0)
    await asyncio.sleep(0.01)
    return pb.RetrieveResponse(index=pb.IndexRef(name="plays", version="v7"))


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
    assert server.resource.attributes["service.version"] == "1.2.3"
    assert set(spans) == {"queue", "prefill", "decode", "convert"}
    assert server.context is not None
    for span in spans.values():
        assert span.parent is not None
        assert span.parent.span_id == server.context.span_id
    order = [spans[name] for name in ("queue", "prefill", "decode", "convert")]
    times = [(span.start_time or 0, span.end_time or 0) for span in order]
    assert [round((end - begin) / 1e6) for begin, end in times[:3]] == [500, 1, 2]
    assert times[0][1] == pytest.approx(times[1][0], abs=1000)
    assert times[3][1] - times[3][0] >= 9e6
    assert abs(times[3][1] - time.time_ns()) < 60e9, "times are of this day, not of the machine's start"
    assert attributes(spans["decode"]) == {
        "genret.method": "beam",
        "genret.k": 3,
        "genret.steps": 4,
        "genret.tokens": 11,
        "genret.candidates": 2,
    }


def test_a_scored_shortlist_has_stages_of_its_own(exporter: InMemorySpanExporter) -> None:
    async def scored(request: Any, context: Any) -> Any:
        asked = RetrieveRequest(request.query, k=3, method="auto")
        QueueObservations(Metrics(), "cpu").answered(asked, fake_result(asked), queued_s=0.5, seconds=1.0)
        return pb.RetrieveResponse()

    spans = call(exporter, scored)
    order = [spans[name] for name in ("queue", "prefill", "decode", "shortlist", "score")]
    times = [(span.start_time or 0, span.end_time or 0) for span in order]
    assert [round((end - begin) / 1e6) for begin, end in times] == [500, 1, 2, 3, 4]
    assert all(end == pytest.approx(begin, abs=1000) for (_, end), (begin, _) in itertools.pairwise(times))
    assert attributes(spans["decode"])["genret.method"] == "auto"
    assert attributes(spans["shortlist"]) == {"genret.entities": 2}
    assert attributes(spans["score"]) == {"genret.titles": 3}


def test_given_titles_have_a_stage_of_their_scoring(exporter: InMemorySpanExporter) -> None:
    async def scored(request: Any, context: Any) -> Any:
        asked = ScoreRequest(request.query, ("one", "two"))
        QueueObservations(Metrics(), "cpu").answered(asked, fake_scores(asked), queued_s=0.5, seconds=1.0)
        return pb.RetrieveResponse()

    spans = call(exporter, scored)
    assert set(spans) >= {"queue", "prefill", "score"}
    assert "decode" not in spans
    assert attributes(spans["score"]) == {
        "genret.method": "score",
        "genret.tokens": 17,
        "genret.titles": 2,
    }


def test_every_item_of_a_batch_has_its_stages(exporter: InMemorySpanExporter) -> None:
    async def answer_twice(request: Any, context: Any) -> Any:
        await asyncio.gather(answer(request, context), answer(request, context))
        return pb.RetrieveResponse()

    call(exporter, answer_twice)
    names = sorted(span.name for span in exporter.get_finished_spans())
    assert names == sorted(["queue", "prefill", "decode"] * 2 + ["genret.v1.RetrievalService/Retrieve"])


def test_the_client_s_trace_goes_on(exporter: InMemorySpanExporter) -> None:
    spans = call(exporter, answer, [("traceparent", f"00-{TRACE}-{PARENT}-01")])
    server = spans["genret.v1.RetrievalService/Retrieve"]
    assert server.context is not None
    assert server.parent is not None
    assert (f"{server.context.trace_id:032x}", f"{server.parent.span_id:016x}") == (TRACE, PARENT)


@pytest.mark.parametrize(
    ("flags", "ratio", "kept"), [("01", 0.0, True), ("00", 1.0, False), (None, 0.0, False), (None, 1.0, True)]
)
def test_who_began_the_trace_decides_whether_it_is_kept(
    exporter: InMemorySpanExporter, flags: str | None, ratio: float, kept: bool
) -> None:
    metadata = [] if flags is None else [("traceparent", f"00-{TRACE}-{PARENT}-{flags}")]
    assert bool(call(exporter, answer, metadata, ratio)) is kept


@pytest.mark.parametrize(
    ("code", "is_server_error"),
    [(grpc.StatusCode.INVALID_ARGUMENT, False), (grpc.StatusCode.UNAVAILABLE, True)],
)
def test_a_span_is_in_error_where_the_server_is_to_blame(
    exporter: InMemorySpanExporter, code: grpc.StatusCode, is_server_error: bool
) -> None:
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(code, "no")

    (span,) = call(exporter, refuse).values()
    assert attributes(span)["rpc.response.status_code"] == attributes(span)["error.type"] == code.name
    assert (span.status.status_code is StatusCode.ERROR) is is_server_error


def test_a_parent_that_is_none_is_ignored(exporter: InMemorySpanExporter) -> None:
    spans = call(exporter, answer, [("traceparent", "00-zz-\x20-xx")])
    assert spans["genret.v1.RetrievalService/Retrieve"].parent is None


def test_a_collector_that_is_down_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"

        async def scenario() -> str:
            traced = tracing.start(TracingConfig(endpoint=endpoint), "1.2.3")
            async with observed(answer, tracing=traced) as running:
                for _ in range(20):
                    await running.call()
                code = (await _ended(running.call())).name
            assert traced is not None
            await asyncio.wait_for(traced.stop(timeout_s=0.5), 60)
            return code

        assert asyncio.run(scenario()) == "OK"


async def _ended(running: Any) -> Any:
    await running
    return await running.code()


def test_without_an_endpoint_there_is_no_tracing() -> None:
    assert tracing.start(TracingConfig(), "1.2.3") is None


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Absent(), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=r"generative-retrieval\[otel\]") as raised:
        tracing.start(TracingConfig(endpoint="http://127.0.0.1:4317"), "1.2.3")
    assert raised.value.extra == "otel"


class _Absent:
    """An import finder that knows no OpenTelemetry."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_nothing_of_opentelemetry_is_imported_before_it_is_asked_for() -> None:
    lines = (
        "import sys, service.rpc",
        "from service.configuration.server_config import TracingConfig",
        "from service.observability.tracing import start",
        "start(TracingConfig(), '1.2.3')",
        "print([name for name in sys.modules if name.startswith('opentelemetry')])",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
