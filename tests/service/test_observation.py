"""The observing interceptor: every kind of method, every way to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from service.call import REQUEST_ID_KEY, current_scope
from service.configuration.server_config import LogConfig
from service.pb.genret.v1 import retrieval_service_pb2 as pb
from service.rpc import call_of, host_of
from service.security.authority import PRINCIPAL, Principal
from service.security.bearer_tokens import Scope
from tests.service.observed_server import SERVICE, Observed, observed
from tests.service.running_server import overtaken, until

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
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
    call = running.call(*queries, **options)
    try:
        if running.kind.endswith("unary"):
            await call
        else:
            async for _ in call:
                pass
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return str((await call.code()).name)


async def nothing(context: Any) -> None:
    pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generator", [True, False])
def test_a_call_that_is_answered_counts_as_ok(kind: str, generator: bool) -> None:
    async def scenario() -> None:
        async with observed(behaviour(kind, nothing, generator), kind) as running:
            assert await finish(running, "a", "b") == "OK"
            await until(lambda: running.codes() == {("Retrieve", "OK"): 1})
            assert running.in_flight() == 0
            (family,) = running.metrics.request_seconds.collect()
            assert next(s.value for s in family.samples if s.name.endswith("_count")) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_counts_under_its_code(kind: str) -> None:
    async def abort(context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")

    async def scenario() -> None:
        async with observed(behaviour(kind, abort), kind) as running:
            assert await finish(running) == "RESOURCE_EXHAUSTED"
            await until(lambda: running.codes() == {("Retrieve", "RESOURCE_EXHAUSTED"): 1})
            assert running.in_flight() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_method_caught_is_internal_and_told_by_its_id(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(context: Any) -> None:
        raise KeyError("a secret")

    async def scenario() -> None:
        async with observed(behaviour(kind, break_down), kind) as running:
            call = running.call(metadata=((REQUEST_ID_KEY, "my-id"),))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await (call if kind.endswith("unary") else _drained(call))
            assert raised.value.code() is grpc.StatusCode.INTERNAL
            assert raised.value.details() == "internal error; request id my-id"
            await until(lambda: running.codes() == {("Retrieve", "INTERNAL"): 1})
            assert running.in_flight() == 0

    asyncio.run(scenario())
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "my-id" in record.getMessage()
    assert record.exc_info is not None


async def _drained(call: Any) -> None:
    async for _ in call:
        pass


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("generator", [True, False])
def test_a_client_that_leaves_counts_as_cancelled(kind: str, generator: bool) -> None:
    async def scenario() -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def hang(context: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with observed(behaviour(kind, hang, generator), kind) as running:
            task = asyncio.create_task(finish(running))
            await asyncio.wait_for(started.wait(), 60)
            assert running.in_flight() == 1
            task.cancel()
            await asyncio.wait_for(ended.wait(), 60)
            await until(lambda: running.codes() == {("Retrieve", "CANCELLED"): 1})
            assert running.in_flight() == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_waited_to_its_deadline_counts_as_that(kind: str) -> None:
    hanging = asyncio.Event()

    async def hang(context: Any) -> None:
        hanging.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with observed(behaviour(kind, hang), kind) as running:
            code = await overtaken(lambda seconds: finish(running, timeout=seconds), hanging.is_set)
            assert code == "DEADLINE_EXCEEDED"
            await until(lambda: running.codes() == {("Retrieve", "DEADLINE_EXCEEDED"): 1})
            assert running.in_flight() == 0

    asyncio.run(scenario())


def test_methods_that_are_not_there_share_one_label() -> None:
    async def scenario() -> None:
        async with observed(behaviour("unary_unary", nothing)) as running:
            for name in (f"/{SERVICE}/Nothing", "/x.Y/Z", "/genret.v1.RetrievalService/retrieve"):
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await running.channel.unary_unary(name)(b"")
                assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
            await until(lambda: running.codes() == {("unknown", "UNIMPLEMENTED"): 3})

    asyncio.run(scenario())


def test_bytes_that_are_no_message_count_as_invalid() -> None:
    async def scenario() -> None:
        async with observed(behaviour("unary_unary", nothing)) as running:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await running.channel.unary_unary(f"/{SERVICE}/Retrieve")(b"\xff\xff\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await until(lambda: running.codes() == {("Retrieve", "INVALID_ARGUMENT"): 1})

    asyncio.run(scenario())


def test_interceptor_and_method_know_a_call_by_one_id() -> None:
    seen: list[tuple[str, str]] = []

    async def note(context: Any) -> None:
        scope = current_scope()
        assert scope is not None
        seen.append((scope.request_id, call_of(context, 1.0).request_id))

    async def scenario() -> None:
        async with observed(behaviour("unary_unary", note)) as running:
            await asyncio.gather(
                finish(running, metadata=((REQUEST_ID_KEY, "abc"),)),
                finish(running),
                finish(running, metadata=((REQUEST_ID_KEY, "not sane"),)),
            )

    asyncio.run(scenario())
    assert all(ours == theirs for ours, theirs in seen)
    ids = {ours for ours, _ in seen}
    assert len(ids) == 3
    assert "abc" in ids
    assert "not sane" not in ids


@pytest.mark.parametrize("queries", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_line_names_the_call_and_queries_only_where_asked(
    kind: str, queries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "genret.requests")

    async def scenario() -> None:
        log = LogConfig(requests=True, queries=queries)
        async with observed(behaviour(kind, nothing), kind, log) as running:
            await finish(running, "to be\nor not", metadata=((REQUEST_ID_KEY, "abc"),))
            await until(lambda: any(r.name == "genret.requests" for r in caplog.records))

    asyncio.run(scenario())
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


class _Knowing(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Knows everybody."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        PRINCIPAL.set(Principal(Scope.READ, "0123abcd"))
        return await continuation(details)


class _Broken(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Fails before there is a handler."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        raise KeyError("a secret")


@pytest.mark.parametrize("kind", KINDS)
def test_an_interceptor_that_breaks_is_internal_too(kind: str) -> None:
    async def scenario() -> None:
        async with observed(behaviour(kind, nothing), kind, behind=[_Broken()]) as running:
            assert await finish(running) == "INTERNAL"
            await until(lambda: running.codes() == {("Retrieve", "INTERNAL"): 1})
            assert running.in_flight() == 0

    asyncio.run(scenario())


def test_a_request_line_names_who_called_by_fingerprint(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "genret.requests")

    async def scenario() -> None:
        log = LogConfig(requests=True)
        async with observed(behaviour("unary_unary", nothing), log=log, behind=[_Knowing()]) as running:
            await finish(running)

    asyncio.run(scenario())
    (record,) = [r for r in caplog.records if r.name == "genret.requests"]
    assert record.__dict__["principal"] == "0123abcd"


def test_calls_at_once_are_kept_apart(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ids = [f"call-{i}" for i in range(20)]
    all_here = asyncio.Event()
    here: list[str] = []

    async def meet(context: Any) -> None:
        scope = current_scope()
        assert scope is not None
        here.append(scope.request_id)
        if len(here) == len(ids):
            all_here.set()
        await all_here.wait()
        assert current_scope() is scope
        if scope.request_id.endswith("7"):
            await context.abort(grpc.StatusCode.NOT_FOUND, "no")

    async def scenario() -> None:
        async with observed(behaviour("unary_unary", meet), log=LogConfig(requests=True)) as running:
            codes = await asyncio.gather(*(finish(running, metadata=((REQUEST_ID_KEY, i),)) for i in ids))
            assert codes.count("NOT_FOUND") == 2
            await until(lambda: sum(running.codes().values()) == len(ids))
            assert running.codes() == {("Retrieve", "OK"): 18, ("Retrieve", "NOT_FOUND"): 2}
            assert running.in_flight() == 0

    asyncio.run(scenario())
    logged = {
        r.__dict__["request_id"]: r.__dict__["code"] for r in caplog.records if r.name == "genret.requests"
    }
    assert logged == {i: "NOT_FOUND" if i.endswith("7") else "OK" for i in ids}


def test_nothing_is_logged_unless_asked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with observed(behaviour("unary_unary", nothing)) as running:
            await finish(running, "a secret query")

    asyncio.run(scenario())
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
