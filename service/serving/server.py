"""One server: what it is made of, and how it starts, loads, reloads and drains."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from functools import partial

from retrieval.errors import GenretError
from service.configuration.config import IndexSpec, ServerConfig, join_address
from service.errors import ServiceError
from service.methods.indexes import IndexMethods
from service.methods.retrieval import RetrievalMethods
from service.observability.lanes import LaneObservations
from service.observability.metrics import Metrics
from service.observability.state import ServerState
from service.observability.tracing import Tracing
from service.security.authority import Authority
from service.serving.executor import DeviceExecutor
from service.serving.heap import give_back_memory
from service.serving.lanes import Lanes
from service.serving.listeners import METHODS, SERVICES, Listeners
from service.serving.opener import Opener
from service.serving.readiness import Readiness, State
from service.serving.reload import Reloader
from service.serving.served import IndexTable
from service.version import version

_LOG = logging.getLogger(__name__)


class Server:
    """Serves indexes over gRPC, and over HTTP where that is configured. Lives on one event loop.

    Args:
        config: Addresses and limits.
        opener: Opens the indexes.
        tracing: Where spans go; None: there are none.

    Attributes:
        indexes: What is served.
        lanes: The devices.
        readiness: Whether requests are taken.
        metrics: What is counted.
        reloader: Serves new versions of indexes.
        streams: The streams that are open.
        listeners: What the server listens with.
        on_hangup: Called on SIGHUP, before indexes are reloaded; must not block for long.
    """

    def __init__(self, config: ServerConfig, opener: Opener, tracing: Tracing | None = None) -> None:
        self._config = config
        self._opener = opener
        self._loading = DeviceExecutor("loading")
        self._compiler = DeviceExecutor("schemas")
        self.indexes = IndexTable()
        self.metrics = Metrics()
        self.metrics.expect(METHODS, (spec.name for spec in config.indexes))
        self.lanes = Lanes(config.batch, config.queue, partial(LaneObservations, self.metrics))
        self.readiness = Readiness(SERVICES)
        self.reloader = Reloader(
            config.indexes,
            opener,
            self.indexes,
            self.lanes,
            self._loading,
            self._compiler,
            self.metrics.count_reload,
        )
        self.metrics.watch(ServerState(version(), self.readiness, self.lanes, self.indexes))
        authority = Authority.of(config)
        self.on_hangup: list[Callable[[], object]] = [authority.reload]
        self._retrieval = RetrievalMethods(self.indexes, self.lanes, self.readiness, config, self._compiler)
        self.streams = self._retrieval.streams
        self.listeners = Listeners(
            config,
            self._retrieval,
            IndexMethods(self.indexes, self.readiness, self.reloader),
            self.readiness,
            authority,
            self.metrics,
            tracing,
        )
        self._reloads: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Port of gRPC; with port 0 known after `start`."""
        return self.listeners.port

    @property
    def address(self) -> str:
        """Where the server listens for gRPC; with port 0 known after `start`."""
        return join_address(self._config.host, self.port)

    async def start(self) -> None:
        """Listen. Health checks are answered from here on; requests are refused until `load` is done.

        Raises:
            BindError: an address cannot be listened on.
            InputError: a certificate cannot be used.
        """
        await self.readiness.announce(State.WARMING)
        await self.listeners.start()

    async def load(self) -> None:
        """Open and warm every index, then become ready.

        Raises:
            GenretError: an index or a model cannot be used; the server stays up and not ready.
        """
        for spec in self._config.indexes:
            await self._load(spec)
        await self._loading.run(self._opener.finish)
        # What was loaded lives as long as the server: collections need not look through it again and again,
        # which would hold up requests for some tenths of a second. Versions of indexes that are replaced go
        # all the same: they are part of no cycle, and what is loaded later is not frozen.
        give_back_memory()
        gc.freeze()
        await self.readiness.announce(State.READY)

    async def _load(self, spec: IndexSpec) -> None:
        try:
            await self.reloader.load(spec)
        except GenretError as error:
            if len(self._config.indexes) == 1:
                raise
            raise ServiceError(f"index {spec.name!r}: {error}") from error

    def hang_up(self) -> None:
        """Reload what can be reloaded while it is served: tokens, and the indexes that changed."""
        if self.readiness.state is not State.READY:
            _LOG.info("SIGHUP: %s, nothing is reloaded", self.readiness.state.value)
            return
        for reload in self.on_hangup:
            reload()
        task = asyncio.get_running_loop().create_task(self.reloader.reload_all())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def drain(self, hurry: asyncio.Event | None = None) -> None:
        """Stop without dropping what was accepted.

        Readiness goes off first, requests are still taken for the lame-duck time, then the listeners close,
        and what is in flight has the drain time to finish. Draining again does nothing.

        Args:
            hurry: When set, what is in flight is cancelled at once.
        """
        if self.readiness.state is State.DRAINING:
            return
        hurry = hurry or asyncio.Event()
        await self.readiness.announce(State.DRAINING)
        if self._config.lame_duck_seconds:
            hurried = asyncio.create_task(hurry.wait())
            await asyncio.wait({hurried}, timeout=self._config.lame_duck_seconds)
            hurried.cancel()
        self.streams.stop()
        await self.readiness.refuse(hurry)
        self.readiness.servicer.end_watches()
        await self.listeners.stop(self._config.drain_seconds, hurry)
        await self.reloader.close()
        await asyncio.gather(*self._reloads)
        await self.lanes.close()
        await asyncio.to_thread(self._loading.close)
        await asyncio.to_thread(self._compiler.close)
        await self.listeners.stop_monitoring()
