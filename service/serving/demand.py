"""What comes while a batch runs: whether those who come last will fill the next one."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from service.configuration.config import BatchLimits

# So many times what has room must be expected: a batch that is not full costs more than a wait.
_MARGIN = 1.25
# Part of a batch's time by which it may end sooner than expected.
_EARLY = 0.15
# Overload is over when nothing was refused for so many times a batch.
_MEMORY = 2.0
_LATEST_BATCHES = 4


class Demand:
    """Knows whether a call would wait in a place that a later one fills. Used on the event loop only.

    When calls come four times as fast as they can be answered, the first to come while a batch runs would
    take all places of the next, wait until the one is done and then for their own. Those who come at its end
    fill the places as well, and wait little more than half as long.

    Nobody is told to come later before a limit has made the server refuse a call: clients of which all find
    room are many in one moment and none in the next, and no rate says when they come.

    Args:
        batch: When a batch is full.
        max_wait_s: The wait that everybody may be asked for, seconds: where two batches take less it does not
            matter who waits.
        clock: What time it is, seconds.
    """

    def __init__(
        self, batch: BatchLimits, max_wait_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._batch = batch
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._running = (0, 0)  # requests and tokens of the batch that runs
        self._soonest_end = 0.0
        self._latest_s = deque([0.0], maxlen=_LATEST_BATCHES)
        self._come = (0.0, 0.0)  # requests and tokens of the last seconds, later ones counting more
        self._counted = self._refused = -math.inf

    def begin(self, requests: int, tokens: int, seconds: float) -> None:
        """Note that a batch begins.

        Args:
            requests: In it.
            tokens: Their work.
            seconds: How long it is expected to take.
        """
        self._running = (requests, tokens)
        self._soonest_end = self._clock() + (1 - _EARLY) * seconds
        self._latest_s.append(seconds)

    def end(self) -> None:
        """Note that the batch is over."""
        self._running, self._soonest_end = (0, 0), 0.0

    def arrived(self, tokens: int) -> None:
        """Note that a call came, whatever becomes of it."""
        now, (requests, work) = self._clock(), self._come
        memory_s = _MEMORY * self._batch_s
        kept = math.exp((self._counted - now) / memory_s) if memory_s else 0.0
        self._come = (kept * requests + 1, kept * work + tokens)
        self._counted = now

    def refused(self) -> None:
        """Note that a call was refused."""
        self._refused = self._clock()

    def fills_next(self, requests: int, tokens: int) -> bool:
        """Whether the next batch will be full, without the call that has just come, of those that come yet.

        Args:
            requests: All that are accepted and not finished.
            tokens: Their work.
        """
        now, memory_s = self._clock(), _MEMORY * self._batch_s
        if 2 * self._batch_s <= self._max_wait_s or now - self._refused > memory_s:
            return False
        left = max(0.0, self._soonest_end - now) / memory_s
        come, work = self._come
        room = self._batch.max_size - (requests - self._running[0])
        token_room = self._batch.max_tokens - (tokens - self._running[1])
        return left * come >= _MARGIN * room or left * work >= _MARGIN * token_room

    @property
    def _batch_s(self) -> float:
        """The longest time of the latest batches, seconds: now and then there is a small one between."""
        return max(self._latest_s)
