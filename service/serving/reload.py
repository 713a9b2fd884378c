"""Hot reload: opens the live version of an index beside the served one, then replaces it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from genret.retrieval.errors import GenretError
from genret.service.client.reply import ReloadReply
from genret.service.configuration.server_config import IndexSpec
from genret.service.errors import NotReadyError, ServiceError
from genret.service.serving.batching import DeviceQueues
from genret.service.serving.device_threads import DeviceThread, contained
from genret.service.serving.heap import give_back_memory
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import IndexTable, Opener, ServedIndex

_LOG = logging.getLogger(__name__)
_TRIALS = (1, 8)  # requests in a batch
_LONG_TRIAL_S = 2.0
T = TypeVar("T")


class Reloader:
    """Replaces versions of indexes under running requests. Lives on one event loop.

    One reload runs at a time, because each holds a second version in memory. A further caller waits for the
    running reload of its index. Opening runs on the loading thread; the device only runs single queries,
    between the batches of requests. `on_ended` is called with the index and "reloaded", "unchanged" or
    "failed".
    """

    def __init__(
        self,
        specs: Sequence[IndexSpec],
        opener: Opener,
        indexes: IndexTable,
        lanes: DeviceQueues,
        compiler: SchemaCompiler,
        on_ended: Callable[[str, str], None] = lambda index, outcome: None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        self._opener = opener
        self._indexes = indexes
        self._lanes = lanes
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="genret-loading")
        self._compiler = compiler
        self._one_at_a_time = asyncio.Lock()
        self._running: dict[str, asyncio.Task[ReloadReply]] = {}
        self._releasing: set[asyncio.Task[object]] = set()
        self._closed = False
        self._on_ended = on_ended
        indexes.on_free(self._free)

    async def load(self) -> None:
        """Open, warm up and publish every index for the first time; raises GenretError."""
        for spec in self._specs.values():
            try:
                opened = await self._ready(await self._load(self._opener.open, spec))
                await self._try_out(opened)
                self._publish(opened)
            except GenretError as error:
                if len(self._specs) == 1:
                    raise
                raise ServiceError(f"index {spec.name!r}: {error}") from error
        await self._load(self._opener.finish)

    async def reload(self, name: str, force: bool = False) -> ReloadReply:
        """Serve the live version of an index, with `force` also one that is served already.

        Cancelling the awaiting task does not stop the reload.

        Raises:
            UnknownIndexError: there is no such index.
            NotReadyError: the server is shutting down.
            GenretError: the live version cannot be served; the present one stays.
        """
        name = self._indexes.resolve(name).description.name
        if self._closed:
            raise NotReadyError()
        running = self._running.get(name)
        if running is not None:
            joined = await self._outcome(running)
            if joined.reloaded or not force:
                return joined
        running = self._running.get(name)  # another caller that waited may have started anew
        if running is None:
            running = asyncio.create_task(self._reload(self._specs[name], force), name=f"reload {name}")
            self._running[name] = running
            running.add_done_callback(lambda task: self._ended(name, task))
        return await self._outcome(running)

    async def reload_all(self) -> None:
        """Serve the live versions of all changed indexes; errors are only logged."""
        await asyncio.gather(*(self.reload(name) for name in self._specs), return_exceptions=True)

    async def settle(self) -> None:
        """Wait until every unused version is released."""
        while self._releasing:
            await asyncio.gather(*self._releasing)

    async def close(self) -> None:
        """Give up running reloads, and wait for versions that are being released. Idempotent."""
        self._closed = True
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        await self.settle()
        self._indexes.on_free(lambda served: None)  # the threads that could close it end now
        await asyncio.to_thread(self._loading.shutdown, cancel_futures=True)

    async def _load(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a blocking call on the loading thread, which cancelling does not stop."""
        work = partial(contained, call, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    async def _outcome(self, running: asyncio.Task[ReloadReply]) -> ReloadReply:
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if running.cancelled():  # and not this waiter
                raise NotReadyError() from None
            raise

    async def _reload(self, spec: IndexSpec, force: bool) -> ReloadReply:
        async with self._one_at_a_time:
            before = self._indexes.resolve(spec.name).description
            begun = time.perf_counter()
            version = await self._load(self._opener.live_version, spec)
            if version == before.version and not force:
                return ReloadReply(before, before.version, False, 0.0, 0.0)
            opened = await self._open(spec)
            warming = time.perf_counter()
            self._publish(await self._ready(opened))
            done = time.perf_counter()
        return ReloadReply(
            opened.description, before.version, True, (warming - begun) * 1e3, (done - warming) * 1e3
        )

    async def _open(self, spec: IndexSpec) -> ServedIndex:
        try:
            return await self._load(self._opener.open, spec)
        except GenretError as error:
            refusal = error
        # Its traceback and its causes hold open files; its text is enough.
        refusal.__cause__ = refusal.__context__ = None
        raise refusal.with_traceback(None)

    async def _ready(self, opened: ServedIndex) -> ServedIndex:
        """Warm up an opened index; give it up if that fails."""
        device = self._lanes.of(opened.description.device).thread
        try:
            for step in opened.retriever.warm_up_steps():
                await device.run(step)
        except BaseException:
            self._free(opened)
            raise
        return opened

    async def _try_out(self, opened: ServedIndex) -> None:
        """Measure the device's speed before the first burst is admitted or refused."""
        lane = self._lanes.of(opened.description.device)
        for num_requests in _TRIALS:
            tokens, seconds = await lane.thread.run(opened.retriever.trial, num_requests)
            lane.admission.speed.observe(tokens, seconds)
            if seconds > _LONG_TRIAL_S:  # a start should not take minutes
                break

    def _publish(self, opened: ServedIndex) -> None:
        # Without an await: requests find either all old versions or all new ones.
        for served in self._opener.publish(opened):
            self._indexes.put(served)

    def _ended(self, name: str, task: asyncio.Task[ReloadReply]) -> None:
        del self._running[name]
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_ended(name, "failed")
            bug = None if isinstance(error, GenretError) else error
            _LOG.error("index %r: the version served stays: %s", name, error, exc_info=bug)
            self._in_background(self._load(give_back_memory))
            return
        done = task.result()
        self._on_ended(name, "reloaded" if done.reloaded else "unchanged")
        if done.reloaded:
            _LOG.info(
                "index %r: version %s took the place of %s; opened in %.0f ms, warmed up in %.0f ms",
                name, done.index.version, done.previous_version, done.open_ms, done.warm_up_ms,
            )  # fmt: skip
        else:
            _LOG.info("index %r: version %s is served already", name, done.previous_version)

    def _free(self, served: ServedIndex) -> None:
        release = self._opener.retire(served)
        if release is not None:
            device = self._lanes.of(served.description.device).thread
            self._in_background(self._release(release, device))

    def _in_background(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)

    async def _release(self, release: Callable[[], None], device: DeviceThread) -> None:
        """Close versions after the last calls that may use them, such as those of cancelled requests."""
        await self._compiler.settle()
        await device.run_after_all(release)
        # Versions are no cycles and go at once; this frees what errors and tasks have left behind.
        await self._load(give_back_memory)
