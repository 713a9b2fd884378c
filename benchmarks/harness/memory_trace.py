"""Resident memory of this process and all below it, over time."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType

from harness.processes import process_tree, resident_bytes


class MemoryTrace:
    """Looks at the memory in a thread while a block runs.

    Memory that processes share (a mapped index, libraries) is counted in each of them.

    Attributes:
        samples: Seconds since the block began, and bytes.
    """

    def __init__(self, interval_s: float = 0.2) -> None:
        self.samples: list[tuple[float, int]] = []
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._begun = 0.0

    @property
    def peak_bytes(self) -> int:
        """Largest sum seen."""
        return max((number for _, number in self.samples), default=0)

    def thinned(self, number: int) -> list[tuple[float, int]]:
        """Return at most so many stretches of the time, each with the largest sum in it."""
        step = max(1, -(-len(self.samples) // number))
        parts = [self.samples[at : at + step] for at in range(0, len(self.samples), step)]
        return [(round(part[-1][0], 1), max(memory for _, memory in part)) for part in parts]

    def __enter__(self) -> MemoryTrace:
        self._begun = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            together = sum(map(resident_bytes, process_tree(os.getpid())))
            self.samples.append((time.perf_counter() - self._begun, together))
            if self._done.wait(self._interval_s):
                return
