"""The engine's process of a server: `python -m genret.service.serving.engine_worker FD`.

It reads calls off a socket and answers them with an `Engine`. It ends when the server's own process says so,
or has ended; signals are that one's business.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial

from genret.retrieval.errors import GenretError
from genret.service.call import Attribute, Call, CallScope, enter
from genret.service.configuration.server_config import ServerConfig
from genret.service.errors import NoRoomError
from genret.service.methods import METHODS
from genret.service.observability.logs import configure as configure_logs
from genret.service.observability.metrics import EngineMetrics
from genret.service.serving.engine import Engine
from genret.service.serving.engine_link import Frames, Notes, Stage
from genret.service.serving.heap import tune_process
from genret.service.status import Failure, logged_failure, told


class _Stages(list[Stage]):
    """Takes the stages of an answer, in the place of a trace's span."""

    def stage(self, name: str, begin_s: float, end_s: float, attributes: Mapping[str, Attribute]) -> None:
        """Note a stage."""
        self.append(Stage(name, begin_s, end_s, dict(attributes)))


class EngineWorker:
    """Answers the calls of a socket. Lives on one event loop.

    `lost` is called when the server's process has ended without a word: nobody waits for anything any more.
    """

    def __init__(self, frames: Frames, engine: Engine, lost: Callable[[], None]) -> None:
        self._frames = frames
        self._engine = engine
        self._lost = lost
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._reloads: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer calls until the server's process says stop, or has ended."""
        while (frame := await self._frames.receive()) is not None:
            match frame:
                case ("call", number, *asked):
                    task = asyncio.create_task(self._answer(number, *asked))
                    self._calls[number] = task
                    task.add_done_callback(partial(self._ended, number))
                case ("cancel", number):
                    if running := self._calls.get(number):
                        running.cancel()
                case ("reload",):
                    reload = asyncio.create_task(self._engine.reload_all())
                    self._reloads.add(reload)
                    reload.add_done_callback(self._reloads.discard)
                case ("metrics", number, num_refused):
                    self._engine.metrics.rejected.labels("queue_full").inc(num_refused)
                    self._frames.send("ended", number, self._engine.metrics.render()[0], Notes())
                case ("pulse", number):
                    self._frames.send("ended", number, None, Notes())
                case ("stop",):
                    await self._engine.close()
                    return
        self._lost()

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._calls[number]
        if not task.cancelled():
            task.result()

    async def _answer(self, number: int, name: str, raw: bytes, call: Call, is_traced: bool) -> None:
        stages, method = _Stages(), METHODS[name]
        scope = CallScope(call.request_id, name, span=stages if is_traced else None)
        enter(scope)
        num_held: int | None = None
        result: bytes | Failure
        try:
            reply = await self._engine.answers.answer(method, method.question.FromString(raw), call)
            result = reply.SerializeToString()
        except Exception as error:
            num_held = error.num_held if isinstance(error, NoRoomError) else None
            result = logged_failure(error, call.request_id)
        notes = Notes(scope.prompt_tokens, scope.num_answers, scope.answered, tuple(stages), num_held)
        self._frames.send("ended", number, result, notes)


async def serve_engine(frames: Frames, make: Callable[[], Engine], lost: Callable[[], None]) -> None:
    """Load the engine that `make` returns, say how that ended, and answer calls."""
    try:
        engine = make()
        serving = asyncio.create_task(EngineWorker(frames, engine, lost).serve())
        await engine.load()
    except Exception as error:
        is_bug = not isinstance(error, GenretError)
        text = f"{type(error).__name__}: {error}" if is_bug else str(error)
        frames.send("failed", text, is_bug, traceback.format_exc())
    else:
        frames.send("ready", list(engine.describe()))
        await serving
    await frames.drain()
    frames.close()


async def _run(link: socket.socket) -> None:
    """Make the engine of the configuration that comes first."""
    frames = await Frames.over(link)
    first = await frames.receive()
    if first is None:
        return
    config: ServerConfig = first[1]
    configure_logs(config.log)

    def make() -> Engine:
        from genret.service.serving.models import IndexOpener

        return Engine(config, IndexOpener(config, told), EngineMetrics())

    # An index that is being opened on a thread would keep the process alive.
    await serve_engine(frames, make, partial(os._exit, 1))


def main() -> None:
    """Run the process; its argument is the descriptor of the socket."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # as in `genret serve`: until everything is loaded
    tune_process()
    asyncio.run(_run(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
