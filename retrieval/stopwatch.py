"""How long the parts of a batch took."""

from __future__ import annotations

import time
from collections import defaultdict

from retrieval.types import Timings


class Stopwatch:
    """Adds up the time of every part of a batch."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._parts: defaultdict[str, float] = defaultdict(float)

    def stop(self, part: str) -> None:
        """Count the time since the last stop as that of a part, named as in `Timings`."""
        now = time.perf_counter()
        self._parts[part] += (now - self._last) * 1e3
        self._last = now

    def timings(self) -> Timings:
        """Return the times of all parts."""
        return Timings(**self._parts, total_ms=sum(self._parts.values()))
