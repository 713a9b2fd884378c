"""A server's life in a process: signals start its drain, hurry it, and have it reload."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable

from service.serving.heap import keep_freed_memory
from service.serving.server import Server

_LOG = logging.getLogger(__name__)
# How long a thread may keep Python to itself while another one waits for it, seconds. By default it is 5 ms,
# and the event loop, which has little to do but often, waits that long for the model's thread each time.
SWITCH_INTERVAL_S = 0.001


async def serve_until_signalled(server: Server, on_ready: Callable[[Server], None]) -> signal.Signals | None:
    """Run a server until SIGTERM or SIGINT, then drain it; a second signal cancels what is in flight.

    SIGHUP reloads what can be reloaded while it is served; before the server is ready it is ignored.

    Returns:
        The signal that stopped the server before it was ready; None when it had been ready.

    Raises:
        BindError: the address cannot be listened on.
        GenretError: an index or the model cannot be used.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    stop, hurry = asyncio.Event(), asyncio.Event()
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        _LOG.info("%s: %s", number.name, "cancelling what is in flight" if stop.is_set() else "draining")
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Not asyncio.run's own handling of SIGINT, which would cancel the drain as well.
        loop.add_signal_handler(number, on_signal, number)
    loop.add_signal_handler(signal.SIGHUP, server.hang_up)
    stopped = asyncio.create_task(stop.wait())
    try:
        await server.start()
        loading = asyncio.create_task(server.load())
        await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()
            on_ready(server)
            await stopped
            return None
        loading.cancel()
        return received[0]
    finally:
        stopped.cancel()
        await server.drain(hurry)
