"""What one stream may hold: so many queries, and so many bytes of answers that nobody has taken yet."""

from __future__ import annotations

import asyncio

# How fast the largest answer so far is forgotten, per answer.
_DECAY = 0.95


class StreamRoom:
    """Says when a stream may read its next query. Lives on one event loop.

    A query that has no answer yet counts as many bytes as the largest of the last answers. A single query
    always fits: an answer may be larger than all the room.

    Args:
        max_queries: Most queries that have been read and whose answers have not been written.
        max_bytes: Most bytes of answers that have not been written, where the next are as large as the last.
    """

    def __init__(self, max_queries: int, max_bytes: int) -> None:
        self._max_queries = max_queries
        self._max_bytes = max_bytes
        self._num_asked = 0
        self._num_answered = 0
        self._bytes = 0
        self._expected = max_bytes / max_queries
        self._changed = asyncio.Event()
        self._is_open = False

    def __len__(self) -> int:
        """Queries that have been read and whose answers have not been written."""
        return self._num_asked + self._num_answered

    async def wait(self) -> None:
        """Wait until one more query may be read."""
        while not (self._is_open or self._fits()):
            self._changed.clear()
            await self._changed.wait()

    def asked(self) -> None:
        """Note a query that was read."""
        self._num_asked += 1

    def answered(self, size: int) -> None:
        """Note that one has its answer, of `size` bytes."""
        self._num_asked -= 1
        self._num_answered += 1
        self._bytes += size
        self._expected = max(size, self._expected * _DECAY)
        self._changed.set()

    def written(self, size: int) -> None:
        """Note that an answer has left."""
        self._num_answered -= 1
        self._bytes -= size
        self._changed.set()

    def open(self) -> None:
        """Hold nobody back any more."""
        self._is_open = True
        self._changed.set()

    def _fits(self) -> bool:
        if not len(self):
            return True
        expected = self._bytes + (self._num_asked + 1) * self._expected
        return len(self) < self._max_queries and expected <= self._max_bytes
