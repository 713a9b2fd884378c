"""A device, its queue and its clients in simulated time: admission decides, a straight line says how long."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

from service.configuration.server_config import BatchLimits, QueueLimits
from service.errors import OverloadedError
from service.serving.admission import Admission

TOKENS = 90


@dataclass(frozen=True, slots=True)
class Device:
    """How long its batches take.

    Attributes:
        per_batch_s: A batch beside its requests, seconds.
        per_request_s: Each request, seconds.
        noise: Standard deviation of the logarithm of a batch's time.
    """

    per_batch_s: float
    per_request_s: float
    noise: float = 0.1

    def seconds(self, requests: int) -> float:
        """Return how long a batch should take."""
        return self.per_batch_s + requests * self.per_request_s


@dataclass(slots=True)
class Lane:
    """A lane at work.

    Attributes:
        device: Runs its batches.
        limits: When a batch is full.
        queue: How much may wait.
        seed: Of arrivals and of the device's noise.
        seconds: How long every answered call took, in the order they were answered.
        num_refused: Calls that were refused.
    """

    device: Device
    limits: BatchLimits = field(default_factory=BatchLimits)
    queue: QueueLimits = field(default_factory=QueueLimits)
    seed: int = 0
    seconds: list[float] = field(default_factory=list)
    num_refused: int = 0

    def open_loop(self, per_second: float, seconds: float) -> None:
        """Let calls come at the times of a Poisson process."""
        rng, at, arrivals = random.Random(self.seed), 0.0, []
        while (at := at + rng.expovariate(per_second)) < seconds:
            arrivals.append(at)
        self._run(arrivals, seconds, repeats=False)

    def closed_loop(self, clients: int, seconds: float) -> None:
        """Let clients send one call after the other; one that is refused comes when it was told to."""
        self._run([client / 1e4 for client in range(clients)], seconds, repeats=True)

    def percentile(self, share: float) -> float:
        """Return what a share of the answered calls took at most, seconds."""
        return sorted(self.seconds)[int(share * len(self.seconds))]

    def _run(self, arrivals: list[float], until: float, repeats: bool) -> None:
        now, rng = 0.0, random.Random(self.seed + 1)
        admission = Admission(self.queue, self.limits, clock=lambda: now)
        for size in (1, 2, 4, 8, 16, 32):
            admission.observe(size * TOKENS, self.device.seconds(size))
        events = [(at, "arrival") for at in arrivals]
        heapq.heapify(events)
        waiting: list[float] = []
        running: list[float] = []
        begun = 0.0
        while events and events[0][0] < until:
            now, event = heapq.heappop(events)
            if event == "arrival":
                try:
                    admission.admit(TOKENS)
                    waiting.append(now)
                except OverloadedError as error:
                    self.num_refused += 1
                    if repeats:
                        heapq.heappush(events, (now + error.retry_after_s, "arrival"))
            else:
                admission.end()
                for arrived in running:
                    admission.release(TOKENS)
                    self.seconds.append(now - arrived)
                    if repeats:
                        heapq.heappush(events, (now + rng.uniform(0.003, 0.03), "arrival"))
                admission.observe(TOKENS * len(running), now - begun)
                running = []
            if waiting and not running:
                running, waiting = waiting[: self.limits.max_size], waiting[self.limits.max_size :]
                begun = now
                admission.begin(len(running), TOKENS * len(running))
                took = self.device.seconds(len(running)) * rng.lognormvariate(0, self.device.noise)
                heapq.heappush(events, (now + took, "end"))
