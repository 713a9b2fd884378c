"""Calls timed in turn, so that all of them see the machine's good and bad minutes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Took(NamedTuple):
    """A timed call.

    Attributes:
        wall_s: Wall time, seconds.
        cpu_s: Processor time of all threads of this process, seconds.
        value: Result of the call.
    """

    wall_s: float
    cpu_s: float
    value: Any


def timed(call: Callable[..., Any], *arguments: object) -> Took:
    """Time a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    value = call(*arguments)
    return Took(time.perf_counter() - wall, time.process_time() - cpu, value)


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1) -> dict[str, list[Took]]:
    """Time every call once a round, after some rounds that are left out."""
    times: dict[str, list[Took]] = {name: [] for name in calls}
    for number in range(-warm_up, rounds):
        for name, call in calls.items():
            took = timed(call)
            if number >= 0:
                times[name].append(took)
    return times
