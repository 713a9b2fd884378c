"""One thread per device: the only place where a model runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from service.serving.containment import contained

P = ParamSpec("P")
T = TypeVar("T")


class DeviceExecutor:
    """Runs blocking model work, one call at a time, off the event loop.

    With the model on the loop itself a health check takes as long as a batch (measured: 1 s against 2 ms),
    and two batches at once on one device only take turns.

    Args:
        device: Name of the device, for the thread's name.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"genret-{device}")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the device's thread and return what it returns.

        Cancelling the awaiting task does not stop a call that has started: pass it a CancelToken.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(contained, call, *args, **kwargs))

    def close(self) -> None:
        """Drop calls that have not started and wait for the one that has. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
