"""Counts the memory of the requests that were read and not answered, for each client and in all."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from genret.service.errors import OverloadedError

_RETRY_S = 1.0


@dataclass(slots=True, eq=False)
class _Turn:
    client: str
    size: int
    come: asyncio.Future[None]


class RequestBytes:
    """Lets requests in while the bytes of unfinished ones stay within two limits. Lives on one event loop.

    A request of more bytes than a limit counts as many as the limit: it is let in when nothing else is there.
    """

    def __init__(self, max_client_bytes: int, max_bytes: int) -> None:
        self._max_client_bytes = min(max_client_bytes, max_bytes)
        self._max_bytes = max_bytes
        self._of_client: Counter[str] = Counter()
        self._waiting: deque[_Turn] = deque()
        self.held = 0

    @contextmanager
    def hold(self, client: str, size: int) -> Iterator[None]:
        """Hold the bytes of a request in the block; raises OverloadedError at a limit."""
        size = min(size, self._max_client_bytes)
        if not self._fits(client, size):
            raise self._refusal(client, size)
        self._take(client, size)
        try:
            yield
        finally:
            self._give_back(client, size)

    @asynccontextmanager
    async def room(self, client: str, size: int) -> AsyncIterator[None]:
        """Wait for room, one client's requests first come first served, and hold the bytes in the block.

        Raises OverloadedError when as much waits as all clients may hold.
        """
        size = min(size, self._max_client_bytes)
        if not self._fits(client, size) or any(turn.client == client for turn in self._waiting):
            if size and sum(turn.size for turn in self._waiting) + size > self._max_bytes:
                raise self._refusal(client, size)
            await self._wait(client, size)
        else:
            self._take(client, size)
        try:
            yield
        finally:
            self._give_back(client, size)

    async def turn(self, client: str) -> None:
        """Wait until none of the client's requests waits for room: its next one may be read."""
        async with self.room(client, 0):
            return

    async def _wait(self, client: str, size: int) -> None:
        turn = _Turn(client, size, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.cancelled():
                self._waiting.remove(turn)
                self._wake()
            else:  # its turn had come
                self._give_back(client, size)
            raise

    def _fits(self, client: str, size: int) -> bool:
        mine = self._of_client.get(client, 0) + size
        return mine <= self._max_client_bytes and self.held + size <= self._max_bytes

    def _take(self, client: str, size: int) -> None:
        self._of_client[client] += size
        self.held += size

    def _give_back(self, client: str, size: int) -> None:
        self._of_client[client] -= size
        self.held -= size
        if not self._of_client[client]:
            del self._of_client[client]
        self._wake()

    def _wake(self) -> None:
        behind: set[str] = set()  # clients whose first turn has not come
        for turn in list(self._waiting):
            if turn.client in behind or not self._fits(turn.client, turn.size):
                behind.add(turn.client)
            elif not turn.come.done():
                self._waiting.remove(turn)
                self._take(turn.client, turn.size)
                turn.come.set_result(None)

    def _refusal(self, client: str, size: int) -> OverloadedError:
        mine, most = self._of_client.get(client, 0), self._max_client_bytes
        return OverloadedError(
            "QUEUE_FULL",
            f"the requests in flight take too much memory: {mine} bytes of this client, at most {most}; "
            f"{self.held} in all, at most {self._max_bytes}; this one takes {size}",
            _RETRY_S,
        )
