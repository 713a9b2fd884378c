"""Schemas wait by client, are compiled once, leave when nobody waits, and give way to everything else."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from genret.decoding.errors import DeadlineExceededError, DecodingCancelledError
from genret.decoding.grammar.compile_options import CompileLimits, check_time, compile_budget, pausing
from genret.decoding.grammar.errors import CompileTimeoutError
from genret.retrieval.errors import InputError
from genret.service.errors import NotReadyError, OverloadedError
from genret.service.serving import schema_compiler
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import QueueObserver, Rejection, Stage
from tests.service.running_server import until


class Gate:
    """Compilations that go on polling until they are let through; `begun` lists them as they begin."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.open = threading.Event()

    def call(self, key: Any) -> Callable[[], Any]:
        return partial(self._compile, key)

    def _compile(self, key: Any) -> Any:
        self.begun.append(key)
        with compile_budget(CompileLimits(seconds=math.inf)):
            while not self.open.wait(0.001):
                check_time()
        return key


class Seen(QueueObserver):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def rejected(self, reason: Rejection) -> None:
        self.seen.append(f"rejected {reason}")

    def cancelled(self, stage: Stage) -> None:
        self.seen.append(f"cancelled {stage}")

    def deadline_exceeded(self, stage: Stage) -> None:
        self.seen.append(f"late {stage}")


def ask(
    compiler: SchemaCompiler, gate: Gate, key: Any, client: str, num_bytes: int = 1, **options: Any
) -> asyncio.Task[tuple[Any, float]]:
    return asyncio.create_task(compiler.compile(key, gate.call(key), num_bytes, client, **options))


async def test_clients_compile_side_by_side_and_each_of_them_one_at_a_time() -> None:
    compiler, gate = SchemaCompiler(), Gate()
    greedy = [ask(compiler, gate, ("greedy", n), "greedy") for n in range(20)]
    await until(lambda: len(gate.begun) == 1)
    await asyncio.sleep(0)
    assert (compiler.num_running, compiler.num_waiting) == (1, 19)  # a client compiles one at a time
    assert await asyncio.wait_for(ask(compiler, open_gate(), "other", "other"), 60)
    crowd = [ask(compiler, gate, (name, n), name) for n in range(2) for name in "abcd"]
    await until(lambda: compiler.num_running == 4)
    gate.open.set()
    await asyncio.gather(*greedy, *crowd)
    assert compiler.num_compiled == 29
    await compiler.close()


async def test_one_thread_goes_round_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_compiler, "_NUM_THREADS", 1)
    compiler, gate = SchemaCompiler(), Gate()
    tasks = [ask(compiler, gate, (name, n), name) for name in "ab" for n in range(3)]
    await until(lambda: compiler.num_waiting == 5)
    gate.open.set()
    await asyncio.gather(*tasks)
    assert [f"{name}{n}" for name, n in gate.begun] == ["a0", "a1", "b0", "a2", "b1", "b2"]
    await compiler.close()


def open_gate() -> Gate:
    gate = Gate()
    gate.open.set()
    return gate


async def test_a_schema_is_compiled_once_for_all_who_ask_in_the_first_one_s_turn() -> None:
    compiler, gate = SchemaCompiler(), Gate()
    mine = [ask(compiler, gate, n, "mine") for n in range(9)]
    await until(lambda: gate.begun == [0])
    theirs = ask(compiler, gate, 8, "theirs")
    await until(lambda: gate.begun == [0, 8])  # it does not wait for the other client's eight
    late = ask(compiler, gate, 8, "late")
    await asyncio.sleep(0)
    gate.open.set()
    results = await asyncio.gather(*mine, theirs, late)
    assert [key for key, _ in results] == [*range(9), 8, 8]
    assert sorted(gate.begun) == list(range(9))
    assert results[8] == results[9] == results[10]
    assert all(milliseconds >= 0 for _, milliseconds in results)
    await compiler.close()


async def test_who_goes_leaves_the_queue_and_stops_what_runs() -> None:
    compiler, gate, seen = SchemaCompiler(), Gate(), Seen()
    tasks = [ask(compiler, gate, n, "one", observer=seen) for n in range(3)]
    also = ask(compiler, gate, 1, "two")
    await until(lambda: sorted(gate.begun) == [0, 1])
    tasks[2].cancel()
    await until(lambda: compiler.num_waiting == 0)
    tasks[1].cancel()  # the other client still waits for it
    tasks[0].cancel()
    await until(lambda: compiler.num_running == 1)
    late = ask(compiler, gate, 4, "two", deadline=time.monotonic() + 0.01, observer=seen)
    with pytest.raises(DeadlineExceededError, match="before the schema was compiled"):
        await late
    again = ask(compiler, gate, 0, "one")  # what was stopped can be asked for again
    await until(lambda: gate.begun.count(0) == 2)
    gate.open.set()
    assert [(await task)[0] for task in (also, again)] == [1, 0]
    assert seen.seen == ["cancelled queue"] * 3 + ["late queue"]
    assert (compiler.num_compiled, compiler.num_abandoned) == (2, 3)
    await compiler.close()


async def test_a_full_queue_refuses_the_client_with_most_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schema_compiler, "MAX_WAITING", 6)
    monkeypatch.setattr(schema_compiler, "MAX_WAITING_BYTES", 100)
    compiler, gate, seen = SchemaCompiler(), Gate(), Seen()
    many = [ask(compiler, gate, n, "many", observer=seen) for n in range(7)]
    await until(lambda: (compiler.num_running, compiler.num_waiting) == (1, 6))
    with pytest.raises(OverloadedError, match="6 schemas wait to be compiled") as refused:
        await ask(compiler, gate, 7, "many", observer=seen)
    assert refused.value.reason == "QUEUE_FULL"
    assert refused.value.retry_after_s >= 1
    few = [ask(compiler, gate, ("few", n), "few") for n in range(2)]
    with pytest.raises(OverloadedError):
        await many[6]
    await until(lambda: (compiler.num_running, compiler.num_waiting) == (2, 6))
    large = ask(compiler, gate, "large", "few", num_bytes=200)
    with pytest.raises(OverloadedError):  # by its bytes
        await large
    assert seen.seen == ["rejected queue_full"] * 2
    assert compiler.num_refused == 3
    assert [record.getMessage() for record in caplog.records if record.name == schema_compiler.__name__] == [
        "6 schemas wait to be compiled, 6 bytes: more are refused"
    ]
    gate.open.set()
    await asyncio.gather(*many[:6], *few)
    await compiler.close()


async def test_closing_refuses_what_waits_and_stops_what_runs() -> None:
    compiler, gate, seen = SchemaCompiler(), Gate(), Seen()
    tasks = [ask(compiler, gate, n, "one", observer=seen) for n in range(2)]
    await until(lambda: gate.begun == [0])
    await compiler.close()
    for task in (*tasks, ask(compiler, gate, 2, "one", observer=seen)):
        with pytest.raises(NotReadyError):
            await task
    assert seen.seen == ["rejected shutting_down"] * 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("genret-schemas")]


async def test_an_error_is_that_of_its_schema_and_keeps_nothing_of_the_compilation() -> None:
    class Large:
        alive = 0

        def __init__(self) -> None:
            Large.alive += 1

        def __del__(self) -> None:
            Large.alive -= 1

    def fail() -> None:
        part = Large()
        raise InputError("schema", f"is wrong {part is None}")

    compiler = SchemaCompiler()
    with pytest.raises(InputError, match="is wrong"):
        await compiler.compile("key", fail, 1, "one")
    assert Large.alive == 0
    assert compiler.num_running == 0
    await compiler.close()


async def test_another_s_end_does_not_end_a_compilation_that_somebody_waits_for() -> None:
    outcomes = iter([DecodingCancelledError("the other one's clients have gone"), None])

    def compile_it() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "compiled"

    compiler = SchemaCompiler()
    assert (await compiler.compile("key", compile_it, 1, "one"))[0] == "compiled"
    await compiler.close()


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_compilation_sleeps_while_others_may_work(is_busy: bool) -> None:
    """By its own clock: the time it works, and the time it would have slept."""
    slept: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            slept.append(timeout or 0.0)
            return self.is_set()

    compiler, gate = SchemaCompiler(lambda: is_busy), Gate()
    other = ask(compiler, gate, "other", "other")
    await until(lambda: len(gate.begun) == 1)

    def work() -> float:
        begun = time.thread_time()
        with compile_budget(CompileLimits(seconds=math.inf)):
            while time.thread_time() < begun + 0.1:
                check_time()
        return time.thread_time() - begun

    mine = asyncio.create_task(compiler.compile("mine", work, 1, "mine"))
    await asyncio.sleep(0)
    (job,) = [job for job in compiler._jobs.values() if job.key == "mine"]
    job.stop = Stop()
    worked, milliseconds = await mine
    parts = 15 if is_busy else 1  # two of them, in one part of eight
    assert 0.9 * parts * worked < sum(slept) < parts * worked
    assert max(slept) < parts * 0.1
    assert worked * 1000 <= milliseconds < worked * 1000 + 50
    gate.open.set()
    await other
    await compiler.close()


async def test_the_collector_of_cycles_waits_until_all_are_compiled() -> None:
    assert gc.isenabled()
    compiler, gate = SchemaCompiler(), Gate()
    tasks = [ask(compiler, gate, n, f"{n}") for n in range(2)]
    await until(lambda: len(gate.begun) == 2)
    assert not gc.isenabled()
    await asyncio.wait_for(ask(compiler, open_gate(), 2, "2"), 60)
    assert not gc.isenabled()
    gate.open.set()
    await asyncio.gather(*tasks)
    assert gc.isenabled()
    await compiler.close()


def test_waiting_costs_a_schema_nothing_of_its_time() -> None:
    limits = CompileLimits(seconds=0.02)
    paused: list[float] = []

    def pause(worked_s: float) -> None:
        paused.append(worked_s)
        time.sleep(0.01)

    with pausing(pause), compile_budget(limits) as budget:
        begun = time.monotonic()
        while time.monotonic() < begun + 0.05:
            time.sleep(0.001)
            check_time()
        assert budget.spent_s < 0.02
        with compile_budget(limits), pytest.raises(CompileTimeoutError, match=r"longer than 0\.02 s"):
            _work_on()  # a part of a compilation gets no time of its own
        assert budget.spent_s >= 0.02
    assert sum(paused) < 0.03


def _work_on() -> None:
    while True:
        check_time()
