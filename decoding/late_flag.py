"""Lets the host read a device's answers a step or two late, so that neither waits for the other.

Asking a CUDA device "is anything still running?" and waiting empties its queue: it idles while the host
prepares the next step. Here the answer is copied to pinned memory behind the work already queued, and read
once it has arrived; until then the host goes on as if it were yes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genret.decoding.errors import InvalidLogitsError


class Event(Protocol):
    """A mark in a device's queue of work."""

    def record(self, stream: Any) -> None:
        """Put the mark behind everything queued so far; None: in no stream of CUDA."""

    def query(self) -> bool:
        """Whether the device has passed the mark."""

    def synchronize(self) -> None:
        """Wait until it has."""


# A buffer, the same memory for the host, and its mark; None on a CPU, which is done when a call returns.
_Slot = tuple[Tensor, npt.NDArray[np.bool_], Event | None]


class LateFlag:
    """A few booleans, put by the device once per step and read by the host when they have arrived.

    At most `lag` answers are under way besides the newest. A host further ahead waits for the oldest, while
    the device still works on the later steps: it does not run dry, and the host queues at most lag + 1
    needless steps. `new_event` makes the marks in the device's queue.
    """

    def __init__(
        self, size: int, device: torch.device, lag: int = 2, new_event: Callable[[], Event] | None = None
    ) -> None:
        on_cuda = device.type == "cuda"
        if new_event is None and on_cuda:
            new_event = torch.cuda.Event
        self._cuda = device if on_cuda else None
        # An event is recorded again only after its answer was read, so lag + 1 of each are enough.
        buffers = [torch.empty(size, dtype=torch.bool, pin_memory=on_cuda) for _ in range(lag + 1)]
        # Read through NumPy: a value in the host's own memory needs no operation of torch.
        self._free: deque[_Slot] = deque(
            (buffer, buffer.numpy(), new_event and new_event()) for buffer in buffers
        )
        self._under_way: deque[_Slot] = deque()
        self._latest: tuple[bool, ...] | None = None

    def put(self, flags: Tensor) -> None:
        """Queue the device's newest answer, (k,), bool. Waits if more than `lag` others have not arrived."""
        if not self._free:
            self._take(wait=True)
        slot = self._free.popleft()
        slot[0].copy_(flags, non_blocking=True)
        if slot[2] is not None:
            slot[2].record(self._cuda and torch.cuda.current_stream(self._cuda))
        self._under_way.append(slot)

    def latest(self) -> tuple[bool, ...] | None:
        """Return the newest answer that has arrived, None before the first. Never waits."""
        while self._under_way and ((event := self._under_way[0][2]) is None or event.query()):
            self._take(wait=False)
        return self._latest

    def last(self) -> tuple[bool, ...] | None:
        """Wait for everything under way and return the last answer, None if there never was one."""
        while self._under_way:
            self._take(wait=True)
        return self._latest

    def _take(self, wait: bool) -> None:
        slot = self._under_way.popleft()
        _, values, event = slot
        if wait and event is not None:
            event.synchronize()
        self._latest = tuple(bool(value) for value in values)
        self._free.append(slot)


def goes_on(flags: tuple[bool, ...] | None, place: str) -> bool:
    """Return the first of the late flags (running, broken logits), True before any has arrived.

    InvalidLogitsError if the second is set; `place` says where.
    """
    if flags is None:
        return True
    running, broken = flags
    if broken:
        raise InvalidLogitsError(f"the model returned NaN or infinite logits on {place}")
    return running
