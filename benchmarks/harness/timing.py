"""Calls timed in turn: again and again, with everything in the caches, or once, with nothing in them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

_CALLS = 3
_EVICTED_BYTES = 64 << 20  # beyond a core's share of the last cache


class Eviction:
    """Empties the caches of data, as a model's weights do between two steps of a constraint."""

    def __init__(self) -> None:
        self._buffer = np.zeros(_EVICTED_BYTES // 8, dtype=np.int64)

    def run(self) -> None:
        """Read and write more than the caches hold."""
        self._buffer += 1


class Timed(NamedTuple):
    """Something to be timed, and what must happen before each call, untimed."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None

    def seconds(self, eviction: Eviction | None) -> float:
        """Return the time of a call with empty caches, or without eviction the median of some calls."""
        if eviction is not None:
            return self._once(eviction)
        return statistics.median(self._once(None) for _ in range(_CALLS))

    def _once(self, eviction: Eviction | None) -> float:
        if self.prepare is not None:
            self.prepare()
        if eviction is not None:
            eviction.run()
        begun = time.perf_counter()
        self.call()
        return time.perf_counter() - begun


def mean_seconds(timed: Sequence[Timed], eviction: Eviction | None = None) -> float:
    """Return the mean time of several things, with empty caches if there is an eviction."""
    return statistics.fmean(one.seconds(eviction) for one in timed)


def in_turn(contests: Sequence[dict[str, Timed]], repeats: int, cold: bool = False) -> dict[str, list[float]]:
    """Time the same contestants in several contests, all of them in every round.

    Args:
        contests: Contestants by name.
        repeats: Rounds; one before them warms up and is left out.
        cold: Empty the caches before every call.

    Returns:
        Mean seconds per contest by contestant and round.
    """
    times: dict[str, list[float]] = {name: [] for name in contests[0]}
    eviction = Eviction() if cold else None
    for number in range(repeats + 1):
        for name, column in times.items():
            mean = mean_seconds([contest[name] for contest in contests], eviction)
            if number:
                column.append(mean)
    return times
