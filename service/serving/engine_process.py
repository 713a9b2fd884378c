"""An engine in a process of its own: started, asked, watched, started again.

What reads, checks and refuses requests then does not share the interpreter's lock with what decodes. The
engine's process (`engine_worker`) is a child of the server's: when that ends, so does the engine.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import signal
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from genret.retrieval.errors import GenretError
from genret.service.call import Call, current_scope
from genret.service.client.reply import IndexInfo
from genret.service.configuration.server_config import ServerConfig
from genret.service.errors import NotReadyError, ServiceError
from genret.service.methods import Method, caller_of
from genret.service.serving.engine import Changed, EngineDoor
from genret.service.serving.engine_link import Frames, Notes, Worker
from genret.service.status import FailedInEngineError, Failure

_LOG = logging.getLogger(__name__)
# Pauses before an engine that has ended is started again: doubled each time, and the first one again after it
# has run for long enough, seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _LONG_RUN_S = 0.5, 30.0, 60.0
_METRICS_S = 2.0
# How often the engine is asked whether its event loop turns, and the silence that ends it, seconds.
# Compiling a kernel, or a machine that pages, keeps it from answering for many seconds.
_PULSE_S, _SILENCE_S = 10.0, 120.0
_STOP_S = 30.0
_RETRY_S = 2.0


class EngineProcess(EngineDoor):
    """An engine in another process, `worker` if it was started already. Lives on one event loop."""

    def __init__(self, config: ServerConfig, worker: Worker | None = None) -> None:
        self.answers = self
        self._config = config
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[tuple[Any, Notes]]] = {}
        self._room = _KnownRoom()
        self._indexes: Sequence[IndexInfo] = ()
        self._frames: Frames | None = None  # None: there is no engine that answers
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._worker = worker or Worker()

    async def load(self, changed: Changed) -> None:
        """Wait until the engine has loaded every index, and watch it from then on; raises GenretError."""
        frames = await self._ready()
        gc.freeze()
        gc.enable()
        self._tasks.append(asyncio.create_task(self._watch(frames, changed), name="genret-engine"))
        self._tasks.append(asyncio.create_task(self._feel_pulse(), name="genret-engine-pulse"))

    async def answer(self, method: Method, message: Any, call: Call) -> Any:
        """Have the engine answer one message.

        Raises:
            NotReadyError: the engine's process has ended, before this call or during it.
            FailedInEngineError: what it said.
        """
        client, scope = caller_of(call).client, current_scope()
        if method.needs_room:
            self._room.check(client, message)
        counted = self._room.asking(client) if method.needs_room else nullcontext()
        is_traced = scope is not None and scope.span is not None
        with counted:
            result, notes = await self._ask("call", method.name, message.SerializeToString(), call, is_traced)
        if scope is not None:
            notes.add_to(scope)
        if isinstance(result, Failure):
            if notes.num_held is not None:
                self._room.refused(client, message, notes.num_held, result)
            raise FailedInEngineError(result)
        return method.reply.FromString(result)

    def describe(self) -> Sequence[IndexInfo]:
        """Return every index as it was loaded, the default one first."""
        return self._indexes

    async def reload_all(self) -> None:
        """Have the engine serve the live versions of all changed indexes."""
        if self._frames is not None:
            self._frames.send("reload")

    async def other_metrics(self) -> bytes:
        """Return the engine's metrics; nothing while it does not answer."""
        try:
            async with asyncio.timeout(_METRICS_S):
                text, _ = await self._ask("metrics", self._room.take_refusals())
        except (NotReadyError, TimeoutError):
            return b""
        return bytes(text)

    def processes(self) -> Sequence[int]:
        """Return the number of the engine's process."""
        return (self._worker.pid,)

    async def close(self) -> None:
        """Stop the engine: what it has is cancelled. Idempotent."""
        self._closing = True
        if self._frames is not None:
            self._frames.send("stop")
            if await asyncio.to_thread(self._worker.end, _STOP_S) is None:
                _LOG.warning("the engine's process did not stop within %.0f s and is killed", _STOP_S)
        self._worker.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, kind: Any, *values: Any) -> tuple[Any, Notes]:
        """Send a frame and wait for what the engine says to it."""
        frames = self._frames
        if frames is None:
            raise _lost()
        number = next(self._numbers)
        future: asyncio.Future[tuple[Any, Notes]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            frames.send(kind, number, *values)
            await frames.drain()
            return await future
        except asyncio.CancelledError:
            frames.send("cancel", number)
            raise
        finally:
            del self._pending[number]

    async def _ready(self) -> Frames:
        """Wait until the process has loaded everything; raises GenretError."""
        frames = await Frames.over(self._worker.link)
        try:
            frames.send("configure", self._config)
            match await frames.receive():
                case ("ready", indexes):
                    self._indexes = indexes
                case ("failed", text, is_bug, trace):
                    error = RuntimeError(text) if is_bug else ServiceError(text)
                    error.add_note(trace)  # for --debug
                    raise error
                case _:
                    raise ServiceError(f"{await self._end()} while it opened its indexes")
        except BaseException:
            frames.close()
            raise
        self._frames = frames
        return frames

    async def _end(self) -> str:
        """Wait for the end of the process and return it in words."""
        code = await asyncio.to_thread(self._worker.end, _STOP_S)
        if code is None:
            return "the engine's process closed its socket"
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"the engine's process ended with {how}"

    async def _feel_pulse(self) -> None:
        """End an engine that is silent for too long: `_watch` then starts another one."""
        while True:
            await asyncio.sleep(_PULSE_S)
            try:
                async with asyncio.timeout(_SILENCE_S):
                    await self._ask("pulse")
            except TimeoutError:
                _LOG.error("the engine's process has not answered for %.0f s and is killed", _SILENCE_S)
                self._worker.kill()
            except NotReadyError:
                continue  # another one is being started

    async def _watch(self, frames: Frames, changed: Changed) -> None:
        """Hand over what the engine says; start another one when it has ended."""
        pause_s, begun = _FIRST_PAUSE_S, time.monotonic()
        while True:
            while (frame := await frames.receive()) is not None:
                _, number, result, notes = frame
                if (future := self._pending.get(number)) is not None and not future.done():
                    future.set_result((result, notes))
            self._frames = None
            frames.close()
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(_lost())
            if self._closing:
                return
            await changed(False)
            if time.monotonic() > begun + _LONG_RUN_S:
                pause_s = _FIRST_PAUSE_S
            _LOG.error("%s; another one is started in %.1f s", await self._end(), pause_s)
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                self._worker.kill()
                self._worker = Worker()
                try:
                    frames = await self._ready()
                    break
                except (GenretError, RuntimeError) as error:
                    _LOG.error("the engine did not start: %s; again in %.1f s", error, pause_s)
            begun = time.monotonic()
            _LOG.warning("the engine answers again")
            await changed(True)


def _lost() -> NotReadyError:
    return NotReadyError("the engine of this server has ended and is being started again", _RETRY_S)


# How long a refusal is believed, seconds: what others do changes a client's room as well.
_BELIEVED_S = 0.25


class _Refusal(NamedTuple):
    failure: Failure
    num_held: int  # unfinished requests of the client in the engine then
    length: int  # of the shortest query that was refused
    until: float


class _KnownRoom:
    """Remembers what the engine has just refused for lack of room, and need not be asked about again.

    A client's further requests with the same options, and queries no shorter, are refused here while as many
    of its calls are with the engine as that held then.
    """

    def __init__(self) -> None:
        self._num_asking: Counter[str] = Counter()
        self._refusals: dict[Hashable, _Refusal] = {}
        self._num_refused = 0

    def check(self, client: str, message: Any) -> None:
        """Raise FailedInEngineError if the engine would refuse a client's request."""
        self._forget()
        known = self._refusals.get(_kind(client, message)) if self._refusals else None
        if known and len(message.query) >= known.length and self._num_asking[client] >= known.num_held:
            self._num_refused += 1
            raise FailedInEngineError(known.failure)

    @contextmanager
    def asking(self, client: str) -> Iterator[None]:
        """Count a call of the client that is with the engine."""
        self._num_asking[client] += 1
        try:
            yield
        finally:
            self._num_asking[client] -= 1
            if not self._num_asking[client]:
                del self._num_asking[client]

    def refused(self, client: str, message: Any, num_held: int, failure: Failure) -> None:
        """Note that the engine had no room for a request of a client."""
        self._forget()
        kind, length = _kind(client, message), len(message.query)
        if known := self._refusals.get(kind):
            length = min(length, known.length)
        self._refusals[kind] = _Refusal(failure, max(1, num_held), length, time.monotonic() + _BELIEVED_S)

    def _forget(self) -> None:
        now = time.monotonic()
        self._refusals = {kind: known for kind, known in self._refusals.items() if known.until > now}

    def take_refusals(self) -> int:
        """Return how many calls were refused here since the last time."""
        taken, self._num_refused = self._num_refused, 0
        return taken


def _kind(client: str, message: Any) -> Hashable:
    """Return what a client's requests have in common that cost the same but for their queries."""
    options = type(message)()
    options.CopyFrom(message)
    options.ClearField("query")
    return client, type(message), hash(options.SerializeToString(deterministic=True))
