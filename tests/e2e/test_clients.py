"""Both clients against a server: answers, errors, streams, TLS, tokens, and what they cannot use."""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc

from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError, DecodingError
from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.errors import GenretError, IndexChecksumError, InputError, ModelError
from genret.retrieval.types import Mention, RetrieveRequest
from genret.service.client import LIVENESS, CallError, Reply, RetrievalClient
from genret.service.configuration.server_config import QueueLimits
from genret.service.errors import MESSAGE_TOO_LARGE, NotReadyError, OverloadedError, UnknownIndexError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.pb.genret.v1 import retrieval_service_pb2_grpc as pb_grpc
from genret.service.security.bearer_tokens import Scope, line_of, new_token
from genret.service.serving.readiness import State
from tests.service.certificates import Authority
from tests.service.either_client import KINDS, Either, either_client, error_of
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import overtaken, running, until
from tests.service.secured_server import tokens_in


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The synchronous and the asynchronous client: whatever one does, the other does too."""
    return str(request.param)


async def test_every_method_is_there(kind: str) -> None:
    async with (
        running(FakeRetriever(), FakeRetriever()) as api,
        either_client(kind, api.server.address) as client,
    ):
        reply = await client.retrieve(RetrieveRequest("hamlet", k=2))
        assert reply.result.candidates[0].title == "title of hamlet"
        assert (reply.result.query, reply.index.name) == ("hamlet", "fake")
        assert (await client.retrieve(RetrieveRequest("x"), "fake1")).index.name == "fake1"
        good, bad = await client.retrieve_batch([RetrieveRequest("a"), RetrieveRequest("word " * 200)])
        assert good.result.query == "a"
        assert (bad.code, bad.field_violations[0][0]) == ("INVALID_ARGUMENT", "query")
        answer = await client.answer(AnswerRequest("hamlet", schema="{}"))
        assert answer.result.text == '{"title": "Hamlet"}'
        scores = await client.score("hamlet", ["Hamlet", "w " * 21], index="fake1", timeout_s=60)
        assert [(s.logprob, s.entity_ids) for s in scores.result.scores] == [(-6.0, ("Q1", "Q2")), (None, ())]
        assert (scores.result.query, scores.index.name) == ("hamlet", "fake1")
        assert (await client.score(Mention("Lion", "The "), ["x"])).result.query == "Lion"
        with pytest.raises(InputError, match=r"titles\[1\]: must not be empty"):
            await client.score("hamlet", ["Hamlet", ""])
        (linked, blank) = await client.link([Mention("Lion", "The "), Mention(" ")], k=2, index="fake1")
        assert linked.result.candidates[0].title == "title of The [Lion]"
        assert (len(linked.result.candidates), linked.result.query, linked.index.name) == (2, "Lion", "fake1")
        assert blank.field_violations == (("mention", "must not be empty"),)
        first, second = await client.list_indexes()
        assert [(i.name, i.is_default) for i in (first, second)] == [("fake", True), ("fake1", False)]
        assert await client.get_index("fake1") == second
        assert await client.get_index() == first
        assert [await client.health(), await client.health(LIVENESS)] == ["SERVING", "SERVING"]
        assert await client.health("nobody") == "SERVICE_UNKNOWN"
        await client.wait_until_ready(60)


async def test_an_index_is_reloaded(kind: str) -> None:
    async with running(FakeRetriever()) as api, either_client(kind, api.server.address) as client:
        assert not (await client.reload_index()).reloaded
        again = await client.reload_index("fake", force=True)
        assert (again.reloaded, again.previous_version, again.index.name) == (True, "v1", "fake")
        api.opener.table["fake"] = IndexError("gone")
        assert (await error_of(client.reload_index(force=True))).code == "INTERNAL"
        assert (await error_of(client.reload_index("nowhere"))).code == "NOT_FOUND"


async def test_errors_say_everything_the_server_said(kind: str) -> None:
    fake = FakeRetriever(bugs={"bug": ValueError("secret")})
    limits = QueueLimits(max_requests=1)
    async with running(fake, queue=limits) as api, either_client(kind, api.server.address) as client:
        refused = await error_of(client.retrieve(RetrieveRequest("word " * 200), request_id="mine/1"))
        assert (refused.code, refused.request_id) == ("INVALID_ARGUMENT", "mine/1")
        ((field, what),) = refused.field_violations
        assert (field, "200 tokens" in what) == ("query", True)
        for name, bad, told in (
            ("retrieve", "x", "request: must be a RetrieveRequest, got str; write RetrieveRequest('x')"),
            ("answer", "x", "an AnswerRequest, got str; write AnswerRequest('x', schema)"),
            ("retrieve_batch", "x", "must be a RetrieveRequest or a list of them, got str; write Retr"),
            ("retrieve_batch", ["x"], "requests[0]: must be a RetrieveRequest, got str; write Retr"),
            ("link", ["x"], "mentions[0]: must be a Mention, got str; write Mention('x')"),
        ):
            with pytest.raises(InputError, match=re.escape(told)):
                await getattr(client, name)(bad)
        with pytest.raises(InputError, match="request_id"):
            await client.retrieve(RetrieveRequest("x"), request_id="no blanks")
        bug, again = [await error_of(client.retrieve(RetrieveRequest("bug"))) for _ in range(2)]
        assert (bug.code, bug.request_id in str(bug), "secret" in str(bug)) == ("INTERNAL", True, False)
        assert bug.request_id != again.request_id
        fake.hold.clear()
        held = asyncio.create_task(client.retrieve(RetrieveRequest("first")))
        await until(lambda: fake.batches[-1:] == [["first"]])
        full = await error_of(client.retrieve(RetrieveRequest("second")))
        assert (full.code, full.reason, full.is_overload) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", True)
        assert full.retry_after_s > 0
        fake.hold.set()
        await held
        fake.hold.clear()
        late = await error_of(client.retrieve(RetrieveRequest("late"), timeout_s=0.2))
        assert late.code == "DEADLINE_EXCEEDED"


async def test_a_message_above_a_limit_is_no_overload(kind: str) -> None:
    big = RetrieveRequest("x" * 100_000)
    for of_server, of_client in (({"max_request_bytes": 4096}, {}), ({}, {"max_reply_bytes": 4096})):
        async with (
            running(FakeRetriever(), **of_server) as api,
            either_client(kind, api.server.address, **of_client) as client,
        ):
            error = await error_of(client.retrieve(big))
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", MESSAGE_TOO_LARGE)
        assert not error.is_overload


async def test_compressed_requests_are_taken_by_a_server_that_was_told_to(kind: str) -> None:
    big = RetrieveRequest("x" * 10_000)
    async with (
        running(FakeRetriever(), accept_gzip=True) as api,
        either_client(kind, api.server.address, gzip=True, keepalive_s=10) as client,
    ):
        assert (await client.retrieve(big)).result.candidates
    async with running(FakeRetriever()) as api:
        async with either_client(kind, api.server.address, gzip=True) as client:
            error = await error_of(client.retrieve(big))
            assert (error.code, "gzip" in str(error)) == ("UNIMPLEMENTED", True)
        async with either_client(kind, api.server.address) as client:
            assert (await client.retrieve(big)).result.candidates


async def test_a_stream_answers_each_query_once(kind: str) -> None:
    fake = FakeRetriever()
    async with running(fake) as api, either_client(kind, api.server.address) as client:
        requests = [RetrieveRequest(f"query {i}") for i in range(150)] + [RetrieveRequest("word " * 200)]
        answers = await client.stream(requests, max_in_flight=7)
        assert sorted(r.query for r, _ in answers) == sorted(r.query for r in requests)
        for request, reply in answers:
            if isinstance(reply, CallError):
                assert (reply.code, request.query[:4]) == ("INVALID_ARGUMENT", "word")
                assert reply.request_id
            else:
                assert reply.result.query == request.query
                assert reply.result.candidates[0].title == f"title of {request.query}"
        assert await client.stream([]) == []
        with pytest.raises(InputError, match="max_in_flight: must be an integer of at least 1, got 0"):
            await client.stream([], max_in_flight=0)


async def test_an_endless_iterable_is_read_as_far_as_answers_are_taken(kind: str) -> None:
    taken = itertools.count()

    def endless() -> Iterator[RetrieveRequest]:
        for i in taken:
            yield RetrieveRequest(str(i))

    async with running(FakeRetriever()) as api, either_client(kind, api.server.address) as client:
        if kind == "sync":
            assert await asyncio.to_thread(take_some, client.client, endless()) == 50
        else:
            async with aclosing(client.client.retrieve_stream(endless(), max_in_flight=5)) as answers:
                for _ in range(50):
                    await anext(answers)
        assert 50 <= next(taken) <= 50 + 5 + 1
        assert (await client.retrieve(RetrieveRequest("after"))).result.candidates
        await until(lambda: all(lane.admission.num_requests == 0 for lane in api.server.engine.lanes.all()))


def take_some(client: RetrievalClient, requests: Iterator[RetrieveRequest]) -> int:
    stream = client.retrieve_stream(requests, max_in_flight=5)
    count = len(list(itertools.islice(stream, 50)))
    stream.close()  # type: ignore[attr-defined]  # a generator's
    return count


async def test_an_error_of_the_iterable_comes_behind_the_answers_before_it(kind: str) -> None:
    def breaking() -> Iterator[RetrieveRequest]:
        yield RetrieveRequest("a")
        yield RetrieveRequest("b")
        raise OSError("the disk is gone")

    seen: list[Any] = []
    async with running(FakeRetriever()) as api, either_client(kind, api.server.address) as client:
        with pytest.raises(OSError, match="the disk is gone"):
            await client.stream(breaking(), seen)
    assert sorted(request.query for request, _ in seen) == ["a", "b"]


async def test_a_stream_that_breaks_accounts_for_every_query_it_took(kind: str) -> None:
    fake = FakeRetriever(held=True)
    seen: list[Any] = []
    async with running(fake) as api, either_client(kind, api.server.address) as client:

        async def ask(seconds: float) -> CallError:
            seen.clear()
            with unending(kind, "a", "b") as requests:
                return await error_of(client.stream(requests, seen, timeout_s=seconds))

        error = await overtaken(ask, lambda: len(seen) == 2, 0.5)
        assert error.code == "DEADLINE_EXCEEDED"
    assert sorted(request.query for request, _ in seen) == ["a", "b"]
    assert {reply.code for _, reply in seen} == {"DEADLINE_EXCEEDED"}


async def test_a_server_that_shuts_down_answers_what_it_took(kind: str) -> None:
    fake = FakeRetriever(held=True)
    seen: list[Any] = []
    async with running(fake) as api, either_client(kind, api.server.address) as client:
        with unending(kind, "a", "b") as requests:
            reading = asyncio.create_task(client.stream(requests, seen))
            lanes = api.server.engine.lanes
            await until(lambda: sum(lane.admission.num_requests for lane in lanes.all()) == 2)
            draining = asyncio.create_task(api.server.drain())
            await until(lambda: api.server.readiness.state is State.DRAINING)
            fake.hold.set()
            error = await error_of(reading)
        assert error.code == "UNAVAILABLE"
        assert error.retry_after_s is not None
        await draining
    assert sorted(request.query for request, reply in seen if isinstance(reply, Reply)) == ["a", "b"]


@contextmanager
def unending(kind: str, *queries: str) -> Iterator[Any]:
    """Queries of a stream whose end does not come while the body runs."""
    gate = threading.Event()

    def blocking() -> Iterator[RetrieveRequest]:
        yield from map(RetrieveRequest, queries)
        gate.wait(60)

    async def waiting() -> AsyncIterator[RetrieveRequest]:
        for query in queries:
            yield RetrieveRequest(query)
        await asyncio.Event().wait()

    try:
        yield blocking() if kind == "sync" else waiting()
    finally:
        gate.set()


class Confused(pb_grpc.RetrievalServiceServicer):
    """Answers what nobody asked, or nothing at all."""

    def __init__(self, answer: bool) -> None:
        self._answer = answer

    async def RetrieveStream(self, requests: AsyncIterator[pb.RetrieveStreamRequest], context: Any) -> None:
        await anext(requests)
        if self._answer:
            await context.write(pb.RetrieveStreamResponse(id="other"))


@asynccontextmanager
async def client_of(kind: str, add: Any, servicer: object) -> AsyncIterator[Either]:
    """A client of a server that is not ours."""
    server = grpc.aio.server()
    add(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with either_client(kind, f"127.0.0.1:{port}") as client:
            yield client
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("answers", "message"),
    [(True, "a query it was not asked: 'other'"), (False, "without answering everything")],
)
async def test_a_confused_server_is_an_error(kind: str, answers: bool, message: str) -> None:
    add = pb_grpc.add_RetrievalServiceServicer_to_server
    async with client_of(kind, add, Confused(answers)) as client:
        error = await error_of(client.stream([RetrieveRequest("a")]))
    assert error.code == "INTERNAL"
    assert message in str(error)


async def test_tls_with_own_authorities_and_certificates_and_a_token(kind: str, tmp_path: Path) -> None:
    ca = Authority(tmp_path / "ca")
    own = Authority(tmp_path / "clients")
    mine = own.issue("client", client=True)
    read, admin = new_token(), new_token()
    tokens = tokens_in(tmp_path, line_of(Scope.READ, read), line_of(Scope.ADMIN, admin))
    options = {"tls": ca.server_tls(client_ca=own.ca_file), "token_file": tokens}
    trust: dict[str, Any] = {"tls_ca": ca.ca_file, "tls_certificate": mine.certificate, "tls_key": mine.key}
    request = RetrieveRequest("hamlet")
    async with running(FakeRetriever(), **options) as api:
        address = f"localhost:{api.server.port}"
        async with either_client(kind, address, token=read, **trust) as client:
            assert (await client.retrieve(request)).result.candidates
            ((_, reply),) = await client.stream([request])
            assert reply.result.candidates
            assert (await error_of(client.reload_index())).code == "PERMISSION_DENIED"
        async with either_client(kind, address, token=admin, **trust) as client:
            assert not (await client.reload_index()).reloaded
        async with either_client(kind, address, **trust) as client:
            assert (await error_of(client.retrieve(request))).code == "UNAUTHENTICATED"
            assert await client.health() == "SERVING"
        async with either_client(kind, address, token=read, tls_ca=ca.ca_file, timeout_s=60) as client:
            assert (await error_of(client.retrieve(request))).code == "UNAVAILABLE"
        other = {**trust, "tls_server_name": "elsewhere.example"}
        async with either_client(kind, address, token=read, timeout_s=60, **other) as client:
            assert (await error_of(client.retrieve(request))).code == "UNAVAILABLE"


async def test_whoever_waits_for_a_server_hears_when_it_is_ready(kind: str) -> None:
    async with running(FakeRetriever(), load=False) as api, either_client(kind, api.server.address) as client:
        late = await error_of(client.wait_until_ready(0.2))
        assert late.code == "DEADLINE_EXCEEDED"
        assert str(late) == f"{api.server.address} was not ready within 0.2 s"
        waiting = asyncio.create_task(client.wait_until_ready(60))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await api.server.load()
        await waiting


async def test_nothing_is_tried_again_but_what_is_unavailable(kind: str) -> None:
    errors: dict[str, GenretError | DecodingError] = {
        "UNAVAILABLE": NotReadyError("elsewhere", 0.01),
        "RESOURCE_EXHAUSTED": OverloadedError("QUEUE_FULL", "too much", 0.01),
        "INVALID_ARGUMENT": InputError("query", "odd"),
        "NOT_FOUND": UnknownIndexError("none", ()),
        "FAILED_PRECONDITION": ModelError("odd"),
        "DATA_LOSS": IndexChecksumError("trie.arrow", "digest"),
        "DEADLINE_EXCEEDED": DeadlineExceededError("late"),
        "CANCELLED": DecodingCancelledError("gone"),
    }
    fake = FakeRetriever(errors, bugs={"INTERNAL": ValueError("odd")})
    async with running(fake) as api, either_client(kind, api.server.address) as client:
        for code in (*errors, "INTERNAL"):
            assert (await error_of(client.retrieve(RetrieveRequest(code)))).code == code
    asked = Counter(query for batch in fake.batches for query in batch)
    assert asked == dict.fromkeys((*errors, "INTERNAL"), 1) | {"UNAVAILABLE": 4}


async def test_no_time_left_is_not_the_default_of_a_minute(kind: str) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        for seconds in (0, 0.0, -1.0):
            late = await error_of(client.retrieve(RetrieveRequest("q"), timeout_s=seconds))
            assert late.code == "DEADLINE_EXCEEDED"
        for none in ({}, {"timeout_s": None}, {"timeout_s": 1e300}, {"timeout_s": 10}):
            assert (await client.retrieve(RetrieveRequest("q"), **none)).result.candidates
            assert len(await client.stream([RetrieveRequest("q")], **none)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(
            ({"timeout_s": bad}, "timeout_s: must be a finite number")
            for bad in (math.nan, math.inf, "5", True)
        ),
        ({"timeout": 5}, "timeout: is no option of a call, and those .*; did you mean timeout_s"),
        (
            {"filter": "kind = 'film'"},
            "those of a query stand in its request; there are: timeout_s, request_id",
        ),
    ],
)
async def test_bad_options_of_calls_are_refused(kind: str, options: dict[str, Any], said: str) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        for ask, asked in ((client.retrieve, RetrieveRequest("q")), (client.stream, [RetrieveRequest("q")])):
            with pytest.raises(InputError, match=said):
                await ask(asked, **options)


async def test_a_closed_client_says_so(kind: str) -> None:
    async with either_client(kind, "127.0.0.1:1") as client:
        pass
    for asked in (client.health(), client.stream([RetrieveRequest("q")]), client.wait_until_ready(1)):
        assert str(await error_of(asked)) == "this client of 127.0.0.1:1 is closed; open another one"


@pytest.mark.parametrize("bad", ["a text", None, 5], ids=["str", "None", "int"])
async def test_what_is_no_query_or_cannot_be_sent_is_told_behind_the_answers_before_it(
    kind: str, bad: Any
) -> None:
    async with running(FakeRetriever()) as s, either_client(kind, s.server.address) as client:
        seen: list[Any] = []
        with pytest.raises(InputError, match=f"must be a RetrieveRequest, got {type(bad).__name__}"):
            await client.stream([RetrieveRequest("a"), bad, RetrieveRequest("b")], seen)
        assert [request.query for request, _ in seen] == ["a"]
        with pytest.raises(TypeError, match="not iterable"):
            await client.stream(5)
        with pytest.raises(ValueError, match="surrogates"):
            await client.stream([RetrieveRequest("a")], index="half \ud800 of a pair")


class RefusingHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc is untyped
    """As proxies answer that have no server behind them: at once, every time."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def Watch(self, request: Any, context: Any) -> None:
        self.num_calls += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy upstream")


async def test_whoever_waits_for_a_server_does_not_besiege_it(kind: str) -> None:
    refusing = RefusingHealth()
    async with client_of(kind, health_pb2_grpc.add_HealthServicer_to_server, refusing) as client:

        async def wait(seconds: float) -> str:
            return (await error_of(client.wait_until_ready(seconds))).code

        code = await asyncio.wait_for(overtaken(wait, lambda: refusing.num_calls > 0, 1.0), 60)
    assert code == "DEADLINE_EXCEEDED"
    assert 1 <= refusing.num_calls <= 50, "unhindered they are a thousand"
