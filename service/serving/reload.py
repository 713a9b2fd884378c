"""Hot reload: the live version of an index is opened beside the one that is served, and takes its place."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from retrieval.errors import GenretError
from service.configuration.server_config import IndexSpec
from service.errors import NotReadyError
from service.serving.batching import DeviceExecutor, DeviceQueues, give_back_memory
from service.serving.served import IndexDescription, IndexTable, Opener, ServedIndex

_LOG = logging.getLogger(__name__)
_TRIALS = (1, 8)  # requests in a batch
_LONG_TRIAL_S = 2.0


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of a reload.

    Attributes:
        description: What is served now.
        previous_version: What was served before.
        reloaded: Whether something was loaded; not when the live version was served already.
        open_ms: Time to open the new version and to check it, milliseconds.
        warm_up_ms: Time to warm it up, milliseconds.
    """

    description: IndexDescription
    previous_version: str
    reloaded: bool = False
    open_ms: float = 0.0
    warm_up_ms: float = 0.0


class Reloader:
    """Replaces versions of indexes under running requests. Lives on one event loop.

    One reload runs at a time: each holds a second version in memory. Whoever asks for an index that is being
    reloaded waits for that reload. Opening runs on the loading thread; of the device a reload takes single
    queries, between the batches of requests.

    Args:
        specs: The indexes that are served.
        opener: Opens them.
        indexes: The table that requests look into.
        lanes: The devices.
        loading: The thread on which indexes are opened.
        compiler: The thread on which schemas are compiled.
        on_ended: Told the index and the outcome of every reload that ends: "reloaded", "unchanged", "failed".
    """

    def __init__(
        self,
        specs: Sequence[IndexSpec],
        opener: Opener,
        indexes: IndexTable,
        lanes: DeviceQueues,
        loading: DeviceExecutor,
        compiler: DeviceExecutor,
        on_ended: Callable[[str, str], None] = lambda index, outcome: None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._opener = opener
        self._indexes = indexes
        self._lanes = lanes
        self._loading = loading
        self._compiler = compiler
        self._one_at_a_time = asyncio.Lock()
        self._running: dict[str, asyncio.Task[Reloaded]] = {}
        self._releasing: set[asyncio.Task[object]] = set()
        self._closed = False
        self._on_ended = on_ended
        indexes.on_free(self._free)

    async def load(self, spec: IndexSpec) -> None:
        """Open, warm up and publish an index for the first time.

        Raises:
            GenretError: it cannot be served.
        """
        opened = await self._ready(await self._loading.run(self._opener.open, spec))
        await self._try_out(opened)
        self._publish(opened)

    async def reload(self, name: str, force: bool = False) -> Reloaded:
        """Serve the live version of an index.

        Cancelling the awaiting task gives up the wait; the reload goes on.

        Args:
            name: The index; empty for the default one.
            force: Reload also when the live version is the one that is served.

        Raises:
            UnknownIndexError: there is no such index.
            NotReadyError: the server is shutting down.
            GenretError: the live version cannot be served; what is served stays.
        """
        name = self._indexes.resolve(name).description.name
        if self._closed:
            raise NotReadyError("the server is shutting down", retry_after_s=1.0)
        running = self._running.get(name)
        if running is not None:
            joined = await self._outcome(running)
            if joined.reloaded or not force:
                return joined
        running = self._running.get(name)  # whoever waited beside this call may have begun anew
        if running is None:
            running = asyncio.create_task(self._reload(self._specs[name], force), name=f"reload {name}")
            self._running[name] = running
            running.add_done_callback(lambda task: self._ended(name, task))
        return await self._outcome(running)

    async def reload_all(self) -> None:
        """Serve the live versions of all indexes, those that changed; the log says what became of each."""
        await asyncio.gather(*(self.reload(name) for name in self._specs), return_exceptions=True)

    async def settle(self) -> None:
        """Wait until every version that nobody uses any more is released."""
        while self._releasing:
            await asyncio.gather(*self._releasing)

    async def close(self) -> None:
        """Give up reloads that run, and wait for what is being released. Idempotent."""
        self._closed = True
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.settle()
        self._indexes.on_free(_leave)

    async def _outcome(self, running: asyncio.Task[Reloaded]) -> Reloaded:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():  # and not whoever waits here
                raise NotReadyError("the server is shutting down", retry_after_s=1.0) from None
            raise

    async def _reload(self, spec: IndexSpec, force: bool) -> Reloaded:
        async with self._one_at_a_time:
            before = self._indexes.resolve(spec.name).description
            begun = time.perf_counter()
            version = await self._loading.run(self._opener.live_version, spec)
            if version == before.version and not force:
                return Reloaded(before, before.version)
            opened = await self._open(spec)
            warming = time.perf_counter()
            self._publish(await self._ready(opened))
            done = time.perf_counter()
        return Reloaded(
            opened.description, before.version, True, (warming - begun) * 1e3, (done - warming) * 1e3
        )

    async def _open(self, spec: IndexSpec) -> ServedIndex:
        try:
            return await self._loading.run(self._opener.open, spec)
        except GenretError as error:
            refusal = error
        # Its traceback and its causes hold the files that were open; the words say all that is needed.
        refusal.__cause__ = refusal.__context__ = None
        raise refusal.with_traceback(None)

    async def _ready(self, opened: ServedIndex) -> ServedIndex:
        """Warm up an index that was opened; one that cannot be is given up."""
        device = self._lanes.of(opened.description.device).executor
        try:
            for step in opened.retriever.warm_up_steps():
                await device.run(step)
        except BaseException:
            self._free(opened)
            raise
        return opened

    async def _try_out(self, opened: ServedIndex) -> None:
        """Learn how fast the device is, before a first burst is refused or let in."""
        lane = self._lanes.of(opened.description.device)
        for num_requests in _TRIALS:
            tokens, seconds = await lane.executor.run(opened.retriever.trial, num_requests)
            lane.admission.observe(tokens, seconds)
            if seconds > _LONG_TRIAL_S:  # a start should not take minutes
                break

    def _publish(self, opened: ServedIndex) -> None:
        # Without an await: requests find either all old versions or all new ones.
        for served in self._opener.publish(opened):
            self._indexes.put(served)

    def _ended(self, name: str, task: asyncio.Task[Reloaded]) -> None:
        del self._running[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_ended(name, "failed")
            bug = None if isinstance(error, GenretError) else error
            _LOG.error("index %r: the version served stays: %s", name, error, exc_info=bug)
            self._in_background(self._loading.run(give_back_memory))
            return
        done = task.result()
        self._on_ended(name, "reloaded" if done.reloaded else "unchanged")
        if done.reloaded:
            _LOG.info(
                "index %r: version %s took the place of %s; opened in %.0f ms, warmed up in %.0f ms",
                name, done.description.version, done.previous_version, done.open_ms, done.warm_up_ms,
            )  # fmt: skip
        else:
            _LOG.info("index %r: version %s is served already", name, done.previous_version)

    def _free(self, served: ServedIndex) -> None:
        release = self._opener.retire(served)
        if release is not None:
            device = self._lanes.of(served.description.device).executor
            self._in_background(self._release(release, device))

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, release: Callable[[], None], device: DeviceExecutor) -> None:
        """Close versions behind the last call that may be at them: one of a request that was cancelled."""
        await self._compiler.run(_nothing)
        await device.run(release)
        # Versions are no cycles and go at once; this is for what errors and tasks have left behind.
        await self._loading.run(give_back_memory)


def _leave(served: ServedIndex) -> None:
    """Leave a version to the end of the process: the threads that could close it are about to end."""


def _nothing() -> None:
    """Take a turn on a thread."""
