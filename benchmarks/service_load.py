"""Load on a server: what it adds to a call, many callers, one among many, equal parts, four times too much.

    python benchmarks/service_load.py --index sample.index [--parts overhead,clients,turns,joins,shares]

The server is a process of its own, asked by the project's client from this one. What is compared is measured
in turn: a shared machine may be half as fast again a minute later.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import grpc
from harness.load_generator import SHARES, Ended, Load, ask, beside, closed_loop, open_loop, probe_health
from harness.report import Spread, benchmark, percentiles, shown
from harness.sample_data import sample_queries
from harness.served_process import ServedProcess, serving
from harness.timing import timed

from genret.retrieval.retriever import Retriever
from genret.retrieval.types import METHODS, RetrievalResult, RetrieveRequest
from genret.service.client import AsyncRetrievalClient
from genret.service.pb.genret.v1 import retrieval_service_pb2 as pb
from genret.service.security.bearer_tokens import Scope, line_of, new_token
from genret.service.wire.replies import reply_to_proto
from genret.service.wire.requests import request_from_proto

PARTS = ("overhead", "clients", "turns", "joins", "shares", "overload")
_CLIENTS = (1, 4, 16, 64)
_TURNS = 5
_ONE_S, _MANY_S = 5.0, 8.0
_NUM_CLIENTS = 64
_BATCH_SIZE, _BATCHES = 32, 5  # of the library in a turn; batches are those of a server by default
_PAUSE_S = 5.0  # after four times the capacity: what was let in is answered
_REFUSED_WITHIN_S = 0.05


async def measure_overhead(
    client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], index: Path
) -> dict[str, Any]:
    """One call at a time, in turn to the server and bare ones: what a reply takes beyond the model's time.

    Behind a forward of many megabytes all code is cold, in the client too: a call that computes nothing is
    ten times as fast.
    """
    figures: dict[str, Any] = {}
    async with _bare_server(index, False) as threads, _bare_server(index, True) as loop:
        calls = await in_turn({"ours": client, "grpc": threads, "grpc.aio": loop}, requests, 60)
    for name, some in calls.items():
        parts = {
            "total": [call.seconds * 1000 for call in some],
            "overhead": [call.seconds * 1000 - call.model_ms for call in some],
            "server": [call.server_ms - call.queue_ms - call.model_ms for call in some],
            "wire": [call.seconds * 1000 - call.server_ms for call in some],
        }
        figures[name] = {part: percentiles(values, *SHARES) for part, values in parts.items()}
    medians = {name: parts["overhead"]["p50"] for name, parts in figures.items()}
    figures["ratio"] = {name: medians["ours"] / medians[name] for name in ("grpc", "grpc.aio")}
    return figures


async def in_turn(
    clients: dict[str, AsyncRetrievalClient], requests: Sequence[RetrieveRequest], seconds: float
) -> dict[str, list[Ended]]:
    """Ask each query of every client, one call at a time, in a random order; the first ten do not count."""
    rng, calls, number = random.Random(5), {name: list[Ended]() for name in clients}, 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        request = requests[number % len(requests)]
        for name in rng.sample(sorted(clients), len(clients)):
            calls[name].append(await ask(clients[name], request, time.perf_counter()))
        number += 1
    return {name: some[10:] for name, some in calls.items()}


@contextlib.asynccontextmanager
async def _bare_server(index: Path, is_asynchronous: bool) -> AsyncIterator[AsyncRetrievalClient]:
    """Run a server of one handler on the library, with nothing around it, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_bare, args=(index, is_asynchronous, theirs), daemon=True)
    process.start()
    try:
        address = f"127.0.0.1:{await asyncio.to_thread(ours.recv)}"
        async with AsyncRetrievalClient(address, timeout_s=60) as client:
            yield client
    finally:
        process.kill()


def _serve_bare(index: Path, is_asynchronous: bool, link: Any) -> None:
    def answer(message: pb.RetrieveRequest, context: Any) -> pb.RetrieveResponse:
        begun = time.perf_counter()
        (result,) = retriever.retrieve_batch([request_from_proto(message)])
        assert isinstance(result, RetrievalResult), result
        return reply_to_proto(result, described, 0.0, (time.perf_counter() - begun) * 1000)

    retriever = Retriever.open(index, num_threads=1)
    retriever.warm_up()
    described: Any = SimpleNamespace(name=index.name, version="", digest="")
    gc.freeze()
    service = pb.DESCRIPTOR.services_by_name["RetrievalService"].full_name
    codec = pb.RetrieveRequest.FromString, pb.RetrieveResponse.SerializeToString
    pool = ThreadPoolExecutor(1)

    async def answer_from_loop(message: pb.RetrieveRequest, context: Any) -> pb.RetrieveResponse:
        return await asyncio.get_running_loop().run_in_executor(pool, answer, message, context)

    async def run() -> None:
        asked = answer_from_loop if is_asynchronous else answer
        handler = grpc.unary_unary_rpc_method_handler(asked, *codec)
        handlers = grpc.method_handlers_generic_handler(service, {"Retrieve": handler})
        server: Any = grpc.aio.server() if is_asynchronous else grpc.server(pool)
        server.add_generic_rpc_handlers((handlers,))
        link.send(server.add_insecure_port("127.0.0.1:0"))
        if is_asynchronous:
            await server.start()
            await server.wait_for_termination()
        else:
            server.start()
            server.wait_for_termination()

    asyncio.run(run())


async def measure_clients(
    client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], seconds: float
) -> dict[str, Any]:
    """Clients that each send one call after the other."""
    figures: dict[str, Any] = {}
    for num_clients in _CLIENTS:
        figures[str(num_clients)] = figures_of(await closed_loop(client, requests, num_clients, seconds))
    return figures


async def measure_joins(
    client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], seconds: float
) -> dict[str, Any]:
    """One call now and then, while 16 others decode: how long it waits for its first step, in forwards."""
    others = asyncio.create_task(closed_loop(client, requests, 16, seconds))
    rng, joined = random.Random(4), []
    while not others.done():
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        joined.append(await ask(client, rng.choice(requests), time.perf_counter()))
    # The prompt is a forward as well.
    forwards = [call.model_ms / (call.num_steps + 1) for call in (await others).with_code("OK")]
    waited = [call.queue_ms for call in joined[:-1] if call.code == "OK"]
    one = statistics.mean(forwards)
    return {
        "forward_ms": percentiles(forwards, *SHARES),
        "waited_ms": percentiles(waited, *SHARES),
        "waited_forwards": percentiles([ms / one for ms in waited], *SHARES),
        "calls": len(waited),
    }


async def measure_overload(
    client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], seconds: float, served: ServedProcess
) -> dict[str, Any]:
    """Calls that come four times as fast as the server can answer them, between as many as it can."""
    capacity = (await closed_loop(client, requests, 64, 20)).per_second
    usual = await open_loop(client, requests, 0.8 * capacity, seconds / 2, seed=1)
    before = served.footprint()
    times_ms: list[float] = []
    async with beside(probe_health(client, times_ms)):
        load = await open_loop(client, requests, 4 * capacity, seconds, seed=2)
    after = served.footprint()
    await asyncio.sleep(_PAUSE_S)
    later = await open_loop(client, requests, 0.8 * capacity, seconds / 2, seed=3)
    usual = Load(usual.seconds + later.seconds, usual.calls + later.calls)
    later_capacity = (await closed_loop(client, requests, 64, 20)).per_second
    refused = load.with_code("RESOURCE_EXHAUSTED")
    with_hint = sum(call.retry_after_s is not None for call in refused)
    late = percentiles([call.late_seconds * 1000 for call in load.calls], *SHARES)
    ratio = load.milliseconds()["p99"] / usual.milliseconds()["p99"]
    slow = [call for call in refused if call.seconds > _REFUSED_WITHIN_S]
    slow_itself = sum(call.seconds - call.late_seconds > _REFUSED_WITHIN_S for call in slow)
    kept = 2 * load.per_second / (capacity + later_capacity)
    return {
        "capacity": [capacity, later_capacity],
        "capacity_kept": kept,
        "usual": figures_of(usual),
        "overloaded": figures_of(load),
        "refused_ms": load.milliseconds("RESOURCE_EXHAUSTED"),
        "refused_with_retry_info": with_hint,
        "refused_later_than_50_ms": [len(slow), slow_itself],
        "p99_ratio": ratio,
        "health_ms": percentiles(times_ms, *SHARES),
        "generator_late_ms": late,
        "anonymous_mib": [before.anonymous_mib, after.anonymous_mib],
        "footprints": [before, after],
    }


async def measure_shares(
    index: Path, options: Sequence[str], requests: Sequence[RetrieveRequest], seconds: float
) -> dict[str, Any]:
    """Equal clients with two streams, two batches, 16 single calls, and one with one: who gets what."""
    tokens = {name: new_token() for name in ("streams", "batches", "singles", "one")}
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "tokens"
        token_file.touch(mode=0o600)
        token_file.write_text("".join(f"{line_of(Scope.READ, token)}\n" for token in tokens.values()))
        with serving(index, *options, "--token-file", token_file) as served:
            clients = {
                name: AsyncRetrievalClient(served.address, timeout_s=10 * seconds, token=token)
                for name, token in tokens.items()
            }
            alone = await closed_loop(clients["one"], requests, 1, seconds / 4)
            answered, ends = Counter[str](), time.perf_counter() + seconds

            async def stream() -> None:
                until = itertools.takewhile(lambda _: time.perf_counter() < ends, itertools.cycle(requests))
                async for _ in clients["streams"].retrieve_stream(until, max_in_flight=16):
                    answered["streams"] += time.perf_counter() < ends

            async def batch() -> None:
                while time.perf_counter() < ends:
                    await clients["batches"].retrieve_batch(random.sample(requests, 16))
                    answered["batches"] += 16

            singles, one, *_ = await asyncio.gather(
                closed_loop(clients["singles"], requests, 16, seconds),
                closed_loop(clients["one"], requests, 1, seconds),
                *(call() for call in (stream, batch) for _ in range(2)),
            )
            for client in clients.values():
                await client.close()
    answered["singles"] = len(singles.with_code("OK"))
    return {
        "answers_per_second": {name: number / seconds for name, number in answered.items()},
        "most_of_least": max(answered.values()) / min(answered.values()),
        "singles": figures_of(singles),
        "one": figures_of(one),
        "one_alone": figures_of(alone),
    }


def figures_of(load: Load) -> dict[str, Any]:
    """Return what is kept of a load."""
    return {"per_second": load.per_second, "codes": load.codes(), "ms": load.milliseconds()}


async def measure_turns(
    client: AsyncRetrievalClient, requests: Sequence[RetrieveRequest], index: Path
) -> dict[str, Any]:
    """Compare 64 clients with one, and with the library in this process, in turn: ratios within turns."""
    per_second: dict[str, list[float]] = {"one": [], "many": [], "alone": []}
    with Retriever.open(index, num_threads=1) as retriever:
        retriever.warm_up()
        for turn in range(_TURNS):
            per_second["one"].append((await closed_loop(client, requests, 1, _ONE_S)).per_second)
            per_second["many"].append((await closed_loop(client, requests, _NUM_CLIENTS, _MANY_S)).per_second)
            seconds = 0.0
            for number in range(turn * _BATCHES, (turn + 1) * _BATCHES):
                first = number * _BATCH_SIZE % (len(requests) - _BATCH_SIZE + 1)
                some = list(requests[first : first + _BATCH_SIZE])
                seconds += timed(retriever.retrieve_batch, some).wall_s
            per_second["alone"].append(_BATCHES * _BATCH_SIZE / seconds)
    ratios = {name: Spread.of_ratios(per_second["many"], per_second[name]) for name in ("one", "alone")}
    per_turn = {name: Spread.of(values) for name, values in per_second.items()}
    return {"per_second": per_turn, "ratios": ratios}


@benchmark("torch", "grpcio")
@click.option("--index", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--parts", default=",".join(PARTS))
@click.option("--seconds", type=float, default=60.0, help="Length of overload and shares.")
@click.option("--method", type=click.Choice(METHODS), default="beam")
@click.option("--k", type=int, default=5)
@click.argument("serve_options", nargs=-1)
def main(options: SimpleNamespace) -> dict[str, Any]:
    """Start a server on INDEX and put load on it. Options behind -- go to `genret serve`."""
    wanted, seconds = options.parts.split(","), options.seconds
    if unknown := set(wanted) - set(PARTS):
        raise click.UsageError(f"unknown parts {sorted(unknown)}; known: {', '.join(PARTS)}")
    requests = [RetrieveRequest(query, k=options.k, method=options.method) for query in sample_queries()]
    figures: dict[str, Any] = {}
    with serving(options.index, *options.serve_options) as served:
        measures: dict[str, Callable[[AsyncRetrievalClient], Awaitable[dict[str, Any]]]] = {
            "overhead": lambda client: measure_overhead(client, requests, options.index),
            "clients": lambda client: measure_clients(client, requests, 15),
            "turns": lambda client: measure_turns(client, requests, options.index),
            "joins": lambda client: measure_joins(client, requests, 30),
            "overload": lambda client: measure_overload(client, requests, seconds, served),
            "shares": lambda _: measure_shares(options.index, options.serve_options, requests, seconds),
        }

        async def run() -> None:
            async with AsyncRetrievalClient(served.address, timeout_s=60) as client:
                await closed_loop(client, requests, 4, 3)
                for part in wanted:
                    figures[part] = shown(part, await measures[part](client))

        asyncio.run(run())
    return figures


if __name__ == "__main__":
    main()
