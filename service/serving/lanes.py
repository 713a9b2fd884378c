"""A lane per device: its thread, its queue, and what may wait in it."""

from __future__ import annotations

import asyncio

from service.configuration.config import BatchLimits, QueueLimits
from service.serving.admission import Admission
from service.serving.batching import Batcher
from service.serving.executor import DeviceExecutor
from service.serving.observer import LaneObserver, ObserverOf, silent
from service.serving.patience import Patience


class Lane:
    """One device: all models on it take turns in its batches.

    Args:
        device: Its name.
        batch: When a batch is full.
        queue: How much may wait.
        observer: Is told what becomes of requests.

    Attributes:
        device: As given.
        observer: As given.
        executor: The only thread that runs its models.
        admission: What was accepted and is not finished.
        batcher: Its queue.
        patience: Where the work of streams waits for room in it.
    """

    def __init__(self, device: str, batch: BatchLimits, queue: QueueLimits, observer: LaneObserver) -> None:
        self.device = device
        self.observer = observer
        self.executor = DeviceExecutor(device)
        self.admission = Admission(queue, batch)
        self.batcher = Batcher(self.executor, batch, self.admission, observer)
        self.patience = Patience(self.admission, queue, observer)


class Lanes:
    """The lanes of a server, made as devices turn up. Lives on one event loop.

    Args:
        batch: When a batch is full, on every device.
        queue: How much may wait, on every device.
        observer_of: Makes who is told what becomes of the requests of a device.
    """

    def __init__(self, batch: BatchLimits, queue: QueueLimits, observer_of: ObserverOf = silent) -> None:
        self._batch = batch
        self._queue = queue
        self._observer_of = observer_of
        self._lanes: dict[str, Lane] = {}

    def of(self, device: str) -> Lane:
        """Return the lane of a device."""
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = Lane(device, self._batch, self._queue, self._observer_of(device))
            lane.batcher.start()
        return lane

    def all(self) -> list[Lane]:
        """Return the lanes there are."""
        return list(self._lanes.values())

    async def close(self) -> None:
        """Fail what waits, stop what runs, end the threads. Idempotent."""
        for lane in self.all():
            await lane.batcher.close()
            await asyncio.to_thread(lane.executor.close)
