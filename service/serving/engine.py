"""What answers: indexes with their models, devices with their queues, schemas, reloads; no transport."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from genret.service.client.reply import IndexInfo
from genret.service.configuration.server_config import ServerConfig
from genret.service.methods import Answering, Answers
from genret.service.observability.metrics import EngineMetrics, EngineState
from genret.service.observability.observations import QueueObservations
from genret.service.serving.batching import DeviceQueues
from genret.service.serving.heap import give_back_memory, keep_freed_memory
from genret.service.serving.reload import Reloader
from genret.service.serving.schema_compiler import SchemaCompiler
from genret.service.serving.served import IndexTable, Opener

# Is told whether requests can be answered: False when an engine's process has ended, True when it is back.
Changed = Callable[[bool], Awaitable[None]]


class EngineDoor(Protocol):
    """An engine: `Engine` in this process, or another process with one. `answers` has the API's methods."""

    answers: Answering

    async def load(self, changed: Changed) -> None:
        """Open and warm every index, and tell later changes; raises GenretError."""

    def describe(self) -> Sequence[IndexInfo]:
        """Return every index as it was loaded, the default one first."""

    async def reload_all(self) -> None:
        """Serve the live versions of all changed indexes; errors are only logged."""

    async def other_metrics(self) -> bytes:
        """Return the metrics of other processes: there are none."""
        return b""

    def processes(self) -> Sequence[int]:
        """Return the numbers of other processes: there are none."""
        return ()

    async def close(self) -> None:
        """Fail what waits, stop what runs, and close everything. Idempotent."""


class Engine(EngineDoor):
    """Answers the methods of the API from its indexes. Lives on one event loop."""

    def __init__(self, config: ServerConfig, opener: Opener, metrics: EngineMetrics) -> None:
        self.metrics = metrics
        metrics.expect_work(spec.name for spec in config.indexes)
        self.indexes = IndexTable()
        self.lanes = DeviceQueues(config.batch, config.queue, partial(QueueObservations, metrics))
        self.compiler = SchemaCompiler(lambda: any(lane.admission.num_requests for lane in self.lanes.all()))
        self.reloader = Reloader(
            config.indexes, opener, self.indexes, self.lanes, self.compiler, metrics.count_reload
        )
        metrics.registry.register(EngineState(self.lanes, self.indexes, self.compiler))
        self.answers = Answers(self.indexes, self.lanes, self.reloader, config, self.compiler)

    async def load(self, changed: Changed | None = None) -> None:
        """Open and warm every index; raises GenretError."""
        await self.reloader.load()
        # Loaded objects live as long as the server; frozen, they no longer cost collections some tenths of a
        # second. Replaced versions are freed all the same: they are part of no cycle, and later loads are
        # not frozen.
        give_back_memory()
        gc.freeze()
        gc.enable()
        keep_freed_memory()

    def describe(self) -> Sequence[IndexInfo]:
        """Return every index, the default one first."""
        return self.indexes.describe()

    async def reload_all(self) -> None:
        """Serve the live versions of all changed indexes; errors are only logged."""
        await self.reloader.reload_all()

    async def close(self) -> None:
        """Fail what waits, stop what runs, and close everything. Idempotent."""
        await self.reloader.close()
        await self.lanes.close()
        await self.compiler.close()
