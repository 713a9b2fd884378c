"""The queue of a device: what shares a batch, what is dropped, what failures touch, and freed memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import json
import math
import mmap
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.cancellation import CancelToken
from genret.decoding.errors import DeadlineExceededError
from genret.decoding.side_by_side import current_call
from genret.retrieval.errors import InputError
from genret.retrieval.types import RetrievalResult, RetrieveRequest
from genret.service.call import PRIORITY_KEY
from genret.service.configuration.server_config import BatchLimits, QueueLimits
from genret.service.errors import NotReadyError, OverloadedError
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.serving import device_threads
from genret.service.serving.admission import Patience
from genret.service.serving.batching import DeviceQueue, QueuedResult
from genret.service.serving.device_threads import DeviceThread, Work, contained
from genret.service.serving.fair_shares import (
    BULK_WEIGHT,
    Caller,
    CallShare,
    ClientShare,
    FairShares,
    TimeShare,
)
from genret.service.serving.heap import give_back_memory, keep_freed_memory
from genret.service.streams import StreamRoom
from tests.service.fake_retriever import FakeRetriever
from tests.service.running_server import failure_code, running, until
from tests.service.turned_clock import TurnedClock


@asynccontextmanager
async def batching(queue: QueueLimits | None = None, **limits: Any) -> AsyncIterator[DeviceQueue]:
    lane = DeviceQueue("cpu", BatchLimits(**limits), queue or QueueLimits())
    try:
        yield lane
    finally:
        await lane.close()
    assert (lane.admission.num_requests, lane.admission.num_tokens) == (0, 0), "all work is given back"


def submit(
    lane: DeviceQueue,
    answering: Any,
    query: str,
    tokens: int = 1,
    seconds: float | None = None,
    *caller: Any,
    **options: Any,
) -> asyncio.Task[QueuedResult]:
    """Ask a fake, or what answers in its place; who asks, and how patiently, may come behind the deadline."""
    deadline = None if seconds is None else time.monotonic() + seconds
    respond, request = getattr(answering, "respond", answering), RetrieveRequest(query, **options)
    return asyncio.create_task(lane.submit(respond, request, tokens, CancelToken(deadline), *caller))


ALONE = {"method": "beam", "exact": True}  # options of a request that is a group of its own


@asynccontextmanager
async def busy(lane: DeviceQueue) -> AsyncIterator[list[asyncio.Task[QueuedResult]]]:
    """Keep the device busy until all that the block puts into the list wait; then let them come to an end."""
    fake, calls = FakeRetriever(held=True), list[asyncio.Task[QueuedResult]]()
    running = submit(lane, fake, "busy")
    await until(fake.running.is_set)
    yield calls
    await until(lambda: lane.num_waiting == len(calls))
    fake.hold.set()
    await asyncio.gather(running, *calls)


class Decoding:
    """A retriever's call of several forwards that notes what happens; `after` is told each forward."""

    def __init__(self, forwards: int, after: Callable[[str, int], None] = lambda name, number: None) -> None:
        self.forwards, self.after, self.events = forwards, after, list[str]()

    def __call__(self, requests: Any, cancels: Any) -> Any:
        name, running_call = requests[0].query, current_call()
        assert running_call is not None
        self.events.append(f"{name} begins")
        for number in range(self.forwards):
            running_call.wait(None, 1)
            self.events.append(name)
            self.after(name, number)
        return FakeRetriever().respond(requests, cancels)


async def test_an_idle_device_waits_for_the_company_of_the_last_batch_only_so_long(
    stopped_clock: TurnedClock,
) -> None:
    clock = stopped_clock
    async with batching(max_delay_ms=150, max_size=3) as lane:
        fake = FakeRetriever()
        await asyncio.gather(submit(lane, fake, "a"), submit(lane, fake, "b"))
        first = submit(lane, fake, "c")
        await clock.until(lambda: lane.num_waiting == 1)
        clock.forward(0.02)
        answers = await asyncio.gather(first, submit(lane, fake, "d"))  # on a clock that stands still
        assert fake.batches == [["a", "b"], ["c", "d"]], "as many as before: nobody else is expected"
        assert [answer.queue_ms for answer in answers] == [pytest.approx(20), 0]
        alone = submit(lane, fake, "e")
        await clock.until(lambda: lane.num_waiting == 1)
        clock.forward(0.14)
        await asyncio.to_thread(time.sleep, 0.01)
        assert lane.num_waiting == 1, "the other one may come yet"
        clock.forward(0.02)
        assert (await alone).queue_ms == pytest.approx(160)
        assert (await submit(lane, fake, "f")).queue_ms == 0, "a single client never waits"


@pytest.mark.usefixtures("stopped_clock")
async def test_a_full_batch_does_not_wait() -> None:
    async with batching(max_delay_ms=5000, max_size=3) as lane:
        fake = FakeRetriever()
        for queries in ("abcdef", "ghi"):
            await asyncio.gather(*(submit(lane, fake, query) for query in queries))
        assert [len(batch) for batch in fake.batches] == [3, 3, 3]


async def test_requests_of_one_retriever_share_a_batch_and_keep_their_order() -> None:
    async with batching(max_delay_ms=20, max_tokens=10) as lane:
        one, two = FakeRetriever(), FakeRetriever()
        of = ((one, "a", 4), (two, "b", 4), (one, "c", 4), (one, "d", 4), (one, "huge", 99), (two, "e", 4))
        async with busy(lane) as calls:
            calls += [submit(lane, *asked) for asked in of]
        assert one.batches == [["a", "c"], ["d"], ["huge"]]
        assert two.batches == [["b", "e"]]


async def test_a_deadline_that_cannot_be_met_is_refused_at_once() -> None:
    async with batching(QueueLimits(max_wait_seconds=60), max_delay_ms=0) as lane:
        fake = FakeRetriever(held=True)
        lane.admission.speed.observe(10, seconds=1.0)
        first = submit(lane, fake, "first", tokens=100)
        await until(fake.running.is_set)
        with pytest.raises(OverloadedError, match="the work ahead takes about 10"):
            await submit(lane, fake, "hopeless", seconds=2)
        patient = submit(lane, fake, "patient", seconds=600)
        fake.hold.set()
        await asyncio.gather(first, patient)


async def test_a_bug_hits_the_guilty_only() -> None:
    async with batching(max_delay_ms=20) as lane:
        fake = FakeRetriever(bugs={"bug": ZeroDivisionError("x"), "big": MemoryError()})
        calls = [submit(lane, fake, q) for q in ("a", "bug", "b", "big")]
        a, bug, b, big = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in (a, b)] == [QueuedResult, QueuedResult]
        assert [type(one) for one in (bug, big)] == [ZeroDivisionError, OverloadedError]
        assert big.reason == "MEMORY_FULL"
        assert (await submit(lane, fake, "after")).result.candidates


async def test_a_retriever_that_breaks_its_contract_does_not_stop_the_queue() -> None:
    class Short(FakeRetriever):
        def respond(self, requests: Any, cancel: Any = None) -> list[Any]:
            return super().respond(requests, cancel)[:-1]

    async with batching(max_delay_ms=20) as lane:
        calls = [submit(lane, Short(), "a"), submit(lane, FakeRetriever(), "b")]
        broken, good = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(broken, ValueError)
        assert isinstance(good, QueuedResult)


async def test_closing_fails_what_waits_and_stops_what_runs() -> None:
    async with batching(max_delay_ms=0) as lane:
        fake = FakeRetriever(held=True)
        running = submit(lane, fake, "running")
        await until(fake.running.is_set)
        waiting = submit(lane, fake, "waiting")
        await until(lambda: lane.num_waiting == 1)
        await lane.close()
        for call in (running, waiting):
            with pytest.raises(NotReadyError):
                await call
        with pytest.raises(NotReadyError):
            await submit(lane, fake, "late")
        await until(lambda: len(fake.stopped_by) == 1)


class HungRetriever(FakeRetriever):
    """Does not look at deadlines while it hangs, as a device that does not come back."""

    def respond(self, requests: Any, cancel: Any = None) -> Any:
        self.running.set()
        self.hold.wait(60)
        return super().respond(requests, cancel)


async def test_deadlines_hold_while_a_device_hangs(clock: TurnedClock) -> None:
    retriever = HungRetriever(held=True)
    async with batching(max_size=1) as lane:
        try:
            begun = time.monotonic()
            tokens = [CancelToken(begun + 600), CancelToken(begun + 1200), CancelToken(math.inf)]
            calls = [
                asyncio.create_task(lane.submit(retriever.respond, RetrieveRequest(f"q{i}"), 5, token))
                for i, token in enumerate(tokens)
            ]
            await until(lambda: retriever.running.is_set() and lane.num_waiting == 2)
            for call, where in zip(calls, ("during decoding", "in the queue"), strict=False):
                assert not call.done()
                clock.forward(600)
                with pytest.raises(DeadlineExceededError, match=f"^the deadline passed {where}$"):
                    await asyncio.wait_for(call, 60)
            # What runs on a device that hangs counts until it ends, what waited for it does not.
            assert lane.admission.num_requests == 2
        finally:
            retriever.hold.set()
        assert isinstance((await calls[2]).result, RetrievalResult)


async def test_requests_that_fail_do_not_make_a_device_look_fast() -> None:
    retriever = FakeRetriever(errors={"bad": InputError("query", "fits no model")})
    async with batching() as lane:
        retriever.seconds = 0.05
        await lane.submit(retriever.respond, RetrieveRequest("good"), 100, CancelToken())
        retriever.seconds = 0.0
        for _ in range(30):
            with pytest.raises(InputError):
                await lane.submit(retriever.respond, RetrieveRequest("bad"), 100, CancelToken())
        assert lane.admission.speed.seconds(100, 1) >= 0.04


class PanicError(BaseException):
    """As extensions written in Rust raise it: no Exception."""


CANCELLED = (concurrent.futures.CancelledError(), asyncio.CancelledError())
WORST = (PanicError("index out of bounds"), StopIteration(), GeneratorExit(), SystemExit(3), *CANCELLED)


class PanickingTokenizer(FakeRetriever):
    def prompt_tokens(self, request: RetrieveRequest) -> int:  # type: ignore[override]
        if request.query.startswith("bad"):
            raise PanicError("no boundary of a character")
        return super().prompt_tokens(request)


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("bug", WORST, ids=lambda bug: type(bug).__module__ + type(bug).__name__)
def test_what_no_future_can_hold_becomes_an_exception(bug: BaseException) -> None:
    with pytest.raises(RuntimeError, match=type(bug).__name__) as caught:
        contained(raising, bug)
    assert caught.value.__cause__ is bug


def test_exceptions_pass_as_they_are() -> None:
    with pytest.raises(KeyError, match="mine"):
        contained(raising, KeyError("mine"))


@pytest.mark.parametrize("query", ["bad", "bad" + 1000 * " word"], ids=["inline", "in a thread"])
async def test_panic_of_a_tokenizer_ends_the_call_or_its_item_alone(query: str) -> None:
    items = [pb.RetrieveRequest(query=text) for text in (query, "good")]
    async with running(PanickingTokenizer()) as s:
        assert await failure_code(s.retrieve(query)) is grpc.StatusCode.INTERNAL
        reply = await s.batch(*items)
        assert [result.WhichOneof("outcome") for result in reply.results] == ["error", "response"]
        asked = [pb.RetrieveStreamRequest(id=str(i), request=item) for i, item in enumerate(items)]
        answers = {answer.id: answer async for answer in s.stub.RetrieveStream(iter(asked), timeout=60)}
        assert answers["0"].error.code == grpc.StatusCode.INTERNAL.value[0]
        assert answers["1"].response.candidates


GLIBC = hasattr(ctypes.CDLL(None), "mallopt")
PAGES = """
import json, resource, threading
from genret.service.serving.heap import give_back_memory, keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def anonymous_kib():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))

def batch():
    held = [b"x" * (mib * 2**20) for mib in (1, 5, 20, 20, 20)]
    del held

def measure(told):
    batch(); batch()
    before = faults()
    for _ in range(5):
        batch()
    told.append(faults() - before)

told = []
for is_kept in (False, True):
    if is_kept:
        told.append(keep_freed_memory({}))
    thread = threading.Thread(target=measure, args=(told,))
    thread.start()
    thread.join()
held = anonymous_kib()
give_back_memory()
print(json.dumps([*told, held - anonymous_kib()]))
"""


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_a_thread_gets_the_memory_of_its_last_batch_again() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    before, is_kept, after, given_back_kib = json.loads(done.stdout)
    assert is_kept is True
    assert before > 1000, "pages of each batch are new"
    assert after < before / 20
    assert given_back_kib > 15 * 1024


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_pages_of_files_are_given_back_but_for_changed_ones(tmp_path: Path) -> None:
    file, size = tmp_path / "pages", 2**20
    file.write_bytes(b"x" * size)
    with file.open("r+b") as opened:
        changed, unchanged = (
            mmap.mmap(opened.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            for _ in range(2)
        )
    changed[0:7] = b"changed"
    libc = ctypes.CDLL(None)
    for pages in (changed, unchanged):
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.PROT_READ) == 0
        assert pages[7:] == b"x" * (size - 7)  # mapped now
    held = resident_kib(file)
    give_back_memory()
    assert held - resident_kib(file) >= size // 2048
    assert changed[0:7] == b"changed"
    assert unchanged[:] == b"x" * size


def resident_kib(file: Path) -> int:
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        next(int(fact.split()[1]) for fact in lines if fact.startswith("Rss"))
        for line in lines
        if line.endswith(str(file))
    )


def test_an_idle_device_gives_memory_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: SimpleQueue[None] = SimpleQueue()
    monkeypatch.setattr(device_threads, "_LONG_IDLE_S", 0.05)
    monkeypatch.setattr(device_threads, "give_back_memory", lambda: told.put(None))
    device = device_threads.DeviceThread("cpu", 1.0, lambda _: None)
    for _ in range(2):  # again after more work, and not before
        told.get(timeout=60)
        with pytest.raises(Empty):
            told.get(timeout=0.3)
        device.wake()
    device.close()


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environment_wins(name: str) -> None:
    assert not keep_freed_memory({name: "1"})


async def fits(room: StreamRoom) -> bool:
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


async def fill(room: StreamRoom) -> int:
    """Ask for as long as there is room."""
    begun = len(room)
    while await fits(room):
        room.asked()
    return len(room) - begun


async def test_so_many_queries_of_small_answers_fit_and_fewer_of_large_ones() -> None:
    room = StreamRoom(8, 800)
    assert await fill(room) == 8
    for _ in range(8):
        room.answered(10)
    assert not await fits(room), "until they are taken"
    for _ in range(8):
        room.written(10)
    assert await fill(room) == 8
    room = StreamRoom(8, 800)
    room.asked()
    room.answered(300)
    assert await fill(room) == 1, "that one waits, one more is expected to be as large"
    room.answered(300)
    room.written(300)
    room.written(300)
    assert await fill(room) == 2


@pytest.mark.parametrize("size", [800, 10_000])
async def test_one_answer_may_be_larger_than_all_the_room_and_is_forgotten(size: int) -> None:
    room = StreamRoom(8, 800)
    room.asked()
    room.answered(size)
    assert not await fits(room)
    room.written(size)
    assert await fill(room) == 1
    room.answered(1)
    room.written(1)
    for _ in range(200):
        await asyncio.wait_for(room.wait(), 60)
        room.asked()
        room.answered(1)
        room.written(1)
    assert await fill(room) == 8


@pytest.mark.parametrize("is_opened", [False, True])
async def test_who_waits_is_let_in_as_answers_leave_or_the_room_opens(is_opened: bool) -> None:
    room = StreamRoom(1, 800)
    room.asked()
    waiting = asyncio.create_task(room.wait())
    room.answered(10)
    await asyncio.sleep(0)
    assert not waiting.done()
    if is_opened:
        room.open()
    else:
        room.written(10)
    await asyncio.wait_for(waiting, 60)


async def in_steps(thread: DeviceThread, steps: list[str], name: str, count: int) -> None:
    """Run a call that waits for `count` forwards of its own and notes each."""

    def work() -> None:
        for _ in range(count):
            current_call().wait(None, 1)  # type: ignore[union-attr]
            steps.append(name)

    await thread.run(work)


async def test_calls_of_a_device_run_side_by_side_and_what_is_to_come_last_waits_for_all() -> None:
    thread = DeviceThread("cpu", 0.1, lambda is_idle: None)
    steps: list[str] = []
    release = thread.run_after_all(lambda: steps.append("released"))
    calls = [in_steps(thread, steps, name, count) for name, count in (("a", 5), ("b", 3))]
    tasks = [asyncio.ensure_future(call) for call in (*calls, release)]
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    await asyncio.to_thread(thread.close)
    assert sorted(steps) == ["a"] * 5 + ["b"] * 3 + ["released"]
    assert steps.index("b") < len(steps) - steps[::-1].index("a") - 1, "one does not wait for the other's end"
    assert steps[-1] == "released"
    with pytest.raises(RuntimeError, match="the device's thread has ended"):
        await thread.run(int)


async def test_a_single_call_does_not_wait_behind_what_its_own_client_streams() -> None:
    async with batching(max_delay_ms=0, max_size=2) as lane:
        fake = FakeRetriever()
        streamed = [(f"s{i}", Caller("me", "stream")) for i in range(6)]
        asked = [*streamed, ("one", Caller("me", "single")), ("o", Caller("you", "other"))]
        async with busy(lane) as calls:
            calls += [submit(lane, fake, query, 5, None, caller, Patience.STREAM) for query, caller in asked]
        order = [query for batch in fake.batches for query in batch]
        assert set(order[:3]) == {"s0", "one", "o"}, "a stream, a single call, and another client in turn"
        assert [query for query in order if query.startswith("s")] == [f"s{i}" for i in range(6)]


async def test_bulk_calls_give_way_and_do_not_starve() -> None:
    shares: FairShares[str] = FairShares()
    urgent, bulk = shares.client("me"), shares.client("me bulk", BULK_WEIGHT)
    for client, name in ((urgent, "urgent"), (bulk, "bulk")):
        for number in range(100):
            shares.add(client, client.call("call"), f"{name} {number}")
    order = []
    for _ in range(90):
        client, call = next(shares.turns())
        order.append(call.waiting[0].split()[0])
        shares.remove(client, call, call.waiting[0])
        client.charge(1.0)
        call.charge(1.0)
    assert order.count("bulk") == 10
    assert all("bulk" not in pair or pair != pair[::-1] for pair in pairwise(order))


@pytest.mark.parametrize("are_clients", [False, True], ids=["calls", "clients"])
def test_what_takes_long_has_its_part_beside_endless_short_ones(are_clients: bool) -> None:
    """One call of 500 turns, and four at a time that take one each and are followed by new ones."""
    shares: FairShares[str] = FairShares()

    def begin(name: str) -> tuple[ClientShare[str], CallShare[str]]:
        client = shares.client(name if are_clients else "all of them")
        call = client.call(name)
        shares.add(client, call, name)
        return client, call

    long = begin("long")
    busy, names = [long, *(begin(f"short {n}") for n in range(4))], iter(range(4, 1000))
    turns = []
    for _ in range(500):
        now = client, call = min(busy, key=lambda pair: (pair[0].had, pair[1].had))
        turns.append(call is long[1])
        client.charge(0.1)
        call.charge(0.1)
        if now is not long:
            busy.remove(now)
            shares.remove(client, call, call.waiting[0])
            shares.tidy()
            busy.append(begin(f"short {next(names)}"))
    assert 95 <= sum(turns) <= 105
    assert all(any(turns[at : at + 10]) for at in range(490))


def least(shares: list[tuple[ClientShare[int], CallShare[int]]]) -> tuple[ClientShare[int], CallShare[int]]:
    """The call that is next, by a look at all of them."""
    return min(shares, key=lambda pair: (pair[0].reach, pair[1].reach))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), max_size=40), st.data())
def test_turns_come_in_the_order_of_shares_whatever_is_taken_and_charged(
    asked: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    shares: FairShares[int] = FairShares()
    calls: list[tuple[ClientShare[int], CallShare[int]]] = []
    for who, what, had in asked:
        client = shares.client(str(who))
        call = client.call(str(what))
        shares.add(client, call, len(calls))
        client.charge(had)
        if (client, call) not in calls:
            calls.append((client, call))
    turns = shares.turns()
    while calls:
        expected, found = least(calls), next(turns)
        assert [share.reach for share in found] == [share.reach for share in expected]
        client, call = found
        if data.draw(st.booleans()):
            shares.remove(client, call, call.waiting[-1])
            client.claim(data.draw(st.integers(0, 3)))
            call.charge(data.draw(st.integers(0, 3)))
            if call.waiting:
                continue
        calls.remove(found)
    assert next(turns, None) is None


async def test_the_priority_of_a_call_is_read_off_its_metadata() -> None:
    shares: list[float] = []
    asked = pb.RetrieveRequest(query="hamlet")
    async with running(FakeRetriever()) as api:
        lane = api.server.engine.lanes.of("cpu")
        ask = lane.submit

        async def watched(*arguments: Any) -> QueuedResult:
            shares.append(arguments[4].weight)
            return await ask(*arguments)

        lane.submit = watched  # type: ignore[method-assign]
        for metadata in ((), ((PRIORITY_KEY, "bulk"),), ((PRIORITY_KEY, "interactive"),)):
            await api.stub.Retrieve(asked, metadata=metadata, timeout=60)
        with pytest.raises(grpc.aio.AioRpcError, match="must be interactive or bulk, got 'soon'") as caught:
            await api.stub.Retrieve(asked, metadata=((PRIORITY_KEY, "soon"),), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert shares == [1.0, BULK_WEIGHT, 1.0]


async def test_calls_in_a_row_let_what_waits_begin_between_them() -> None:
    begun: list[str] = []
    waiting: deque[str] = deque()

    def next_work(is_idle: bool) -> Work | None:
        return (
            Work(partial(begun.append, waiting.popleft()), TimeShare(), lambda end: None) if waiting else None
        )

    thread = DeviceThread("cpu", 0.1, next_work)
    first, held = threading.Event(), threading.Event()

    def hold() -> None:
        begun.append("call 1")
        first.set()
        held.wait(60)

    calls = [asyncio.ensure_future(thread.run(hold))]
    await until(first.is_set)
    calls += [asyncio.ensure_future(thread.run(begun.append, f"call {number}")) for number in (2, 3)]
    await asyncio.sleep(0)
    waiting.extend(("request 1", "request 2"))
    held.set()
    await asyncio.gather(*calls)
    await asyncio.to_thread(thread.close)
    assert begun == ["call 1", "request 1", "call 2", "request 2", "call 3"]


async def test_every_forward_that_a_call_has_waited_for_lets_one_group_more_begin() -> None:
    decode = Decoding(20)
    async with batching() as lane, busy(lane) as calls:
        calls += [submit(lane, decode, "a", 1, None, Caller("one", str(n)), **ALONE) for n in range(9)]
    places = [place for place, event in enumerate(decode.events) if event == "a begins"]
    begun = [decode.events[:place].count("a") for place in places]
    assert begun[:6] == [0, 0, 0, 1, 2, 3]
    assert begun[6] >= 20, "six at most: the seventh waits for an end"


async def test_a_client_that_is_ahead_begins_nothing_beside_what_it_has_running() -> None:
    """Otherwise its new requests ride along with others', and have its part before those that run."""
    seconds, loop = 0.0, asyncio.get_running_loop()

    def after(name: str, number: int) -> None:
        nonlocal seconds
        seconds += 10.0 if name == "long" else 0.1
        if name == "long" and not number:
            loop.call_soon_threadsafe(ask, "short", "one")
            while not lane.num_waiting:
                time.sleep(0.001)

    def ask(query: str, client: str) -> None:
        tasks.append(submit(lane, decode, query, 1, None, Caller(client, query), **ALONE))

    decode = Decoding(4, after)
    async with batching() as lane:
        lane.thread._scheduler._clock = lambda: seconds
        async with busy(lane) as tasks:
            ask("long", "one")
            ask("other", "two")
        await asyncio.gather(*tasks)
    assert "other" not in decode.events[decode.events.index("short begins") :]
    assert decode.events[-1] == "long", "what runs need not have ended"


async def test_a_single_call_does_not_wait_for_the_end_of_what_its_own_client_streams() -> None:
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[QueuedResult]]()

    def after(name: str, number: int) -> None:
        if name == "stream" and not number and len(tasks) == 8:
            loop.call_soon_threadsafe(ask, "single")
            while lane.num_waiting < 5:
                time.sleep(0.001)

    def ask(call: str) -> None:
        tasks.append(submit(lane, decode, call, 1, None, Caller("me", call)))

    decode = Decoding(5, after)
    async with batching(max_delay_ms=0, max_size=4) as lane:
        for _ in range(8):
            ask("stream")
        await until(lambda: len(tasks) == 9)
        await asyncio.gather(*tasks)
    assert decode.events.index("single begins") < 5, "a group of four has the whole batch, and four more wait"
