"""Overhead of gRPC alone: calls of a server that is only busy as long as a model would be.

A thread of its own computes, as the model's does, and leaves as little of the loop's code and data in the
processor's caches.

    python benchmarks/harness/bare_grpc.py 80
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

_METHOD = "/genret.Bare/Call"
_REQUEST, _REPLY_PADDING = b"q" * 100, b"r" * 1500  # as large as a query and five titles
_SIZE, _ROWS = 512, 64


def computing(seconds: float) -> Callable[[], float]:
    """Return a function that keeps its thread busy so long, and returns the seconds it did."""
    import torch

    torch.set_num_threads(1)
    weights = [torch.randn(_SIZE, _SIZE) for _ in range(24)]  # more than the caches of a core hold

    def compute() -> float:
        begun = time.perf_counter()
        rows = torch.randn(_ROWS, _SIZE)
        while time.perf_counter() < begun + seconds:
            for weight in weights:
                rows = torch.tanh(rows @ weight)
        return time.perf_counter() - begun

    return compute


async def serve(compute: Callable[[], float]) -> None:
    """Answer calls until the process is killed; prints the port."""
    pool = ThreadPoolExecutor(1)

    async def call(request: bytes, context: Any) -> bytes:
        busy_s = await asyncio.get_running_loop().run_in_executor(pool, compute)
        return struct.pack("d", busy_s) + _REPLY_PADDING

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc is untyped
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(call) if details.method == _METHOD else None

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


@contextlib.asynccontextmanager
async def bare_channel(busy_ms: float) -> AsyncIterator[Any]:
    """Connect to a server in a process of its own that is busy so long for every call."""
    command = [sys.executable, str(Path(__file__)), str(busy_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None  # a pipe was asked for
            port = await asyncio.to_thread(process.stdout.readline)
            if not port:
                raise RuntimeError("the bare server did not start")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port.strip()}") as channel:
                yield channel
        finally:
            process.kill()


async def bare_overhead_ms(busy_ms: float, num_calls: int) -> list[float]:
    """Return the time of each of some calls beyond that for which the server was busy, milliseconds.

    They come one after the other; a tenth as many come before and are not counted.
    """
    times_ms = []
    async with bare_channel(busy_ms) as channel:
        method = channel.unary_unary(_METHOD)
        for number in range(-(num_calls // 10), num_calls):
            begun = time.perf_counter()
            reply = await method(_REQUEST, wait_for_ready=True)
            seconds = time.perf_counter() - begun
            if number >= 0:
                times_ms.append(1000 * (seconds - struct.unpack_from("d", reply)[0]))
    return times_ms


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(computing(float(sys.argv[1]) / 1000)))
