"""Work that waits for room in a device's queue instead of being refused: that of batches and streams."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from decoding.errors import DeadlineExceededError
from service.configuration.config import QueueLimits
from service.errors import OverloadedError
from service.serving.admission import Admission
from service.serving.observer import LaneObserver, SilentObserver


class Patience:
    """Lets patient work into a queue, first come first served. Lives on one event loop.

    It takes half of what the queue may hold at most: whoever makes a single call finds room beside streams
    that have no end. Room that comes free goes to patient work before any call that comes later.

    Args:
        admission: What the queue holds.
        limits: How much it may hold.
        observer: Is told of work that found no room; None: nobody is.
    """

    def __init__(
        self, admission: Admission, limits: QueueLimits, observer: LaneObserver | None = None
    ) -> None:
        self._admission = admission
        self._observer = observer or SilentObserver()
        self._max_requests = max(1, limits.max_requests // 2)
        self._max_tokens = limits.max_tokens // 2
        self._max_waiting = limits.max_requests
        self._requests = 0
        self._tokens = 0
        self._waiting: deque[asyncio.Event] = deque()
        admission.on_release(self._wake)

    @property
    def num_waiting(self) -> int:
        """Pieces of work that wait for room."""
        return len(self._waiting)

    @asynccontextmanager
    async def room(self, tokens: int, deadline: float, bounded: bool = False) -> AsyncIterator[None]:
        """Wait until there is room, and hold a share of what patient work may take.

        Work that is submitted in the body before anything is awaited there is admitted for sure.

        Args:
            tokens: The work.
            deadline: `time.monotonic()` after which it is worth nothing, seconds.
            bounded: Whether to refuse it when as much waits as the queue may hold: nobody stops reading
                a batch that is there, as is done with a stream.

        Raises:
            DeadlineExceededError: there was no room before the deadline.
            OverloadedError: too much waits.
        """
        if bounded and len(self._waiting) >= self._max_waiting:
            self._observer.rejected("queue_full")
            held = f"{len(self._waiting)} requests of batches wait for room, at most {self._max_waiting}"
            raise OverloadedError("QUEUE_FULL", f"the queue is full: {held}", self._admission.retry_after_s())
        if self._waiting or not self._fits(tokens):
            await self._wait(tokens, deadline)
        self._requests += 1
        self._tokens += tokens
        try:
            yield
        finally:
            self._requests -= 1
            self._tokens -= tokens
            self._wake()

    async def _wait(self, tokens: int, deadline: float) -> None:
        turn = asyncio.Event()
        self._waiting.append(turn)
        left = deadline - time.monotonic()
        try:
            async with asyncio.timeout(None if left == math.inf else left):
                # Others may come between being woken and running: then the place is kept.
                while turn is not self._waiting[0] or not self._fits(tokens):
                    turn.clear()
                    await turn.wait()
        except asyncio.CancelledError:
            self._observer.cancelled("queue")
            raise
        except TimeoutError:
            self._observer.deadline_exceeded("arrival")
            raise DeadlineExceededError("the deadline passed while the queue was full") from None
        finally:
            self._waiting.remove(turn)
            self._wake()

    def _fits(self, tokens: int) -> bool:
        share = not self._requests or (
            self._requests < self._max_requests and self._tokens + tokens <= self._max_tokens
        )
        modest = not self._requests or self._admission.leaves_half(tokens)
        return share and modest and self._admission.fits(tokens)

    def _wake(self) -> None:
        """Let the first one look whether there is room for it; it wakes the next."""
        if self._waiting:
            self._waiting[0].set()
