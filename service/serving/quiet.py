"""When what is refused has stopped coming."""

from __future__ import annotations

import asyncio
import time

# Nobody asks any more: nothing came for so long; or they ask again and again, whom nothing but the end stops.
_QUIET_S, _MAX_S = 0.05, 1.0


class Quiet:
    """Waits for the end of what comes and is refused. The wait begins as this is made."""

    def __init__(self) -> None:
        self._begun = self._last = time.monotonic()

    def broken(self) -> None:
        """Note that something came."""
        self._last = time.monotonic()

    async def come(self, sooner: asyncio.Event) -> None:
        """Return when hardly anything comes any more, soon in any case.

        Args:
            sooner: When set, there is nothing to wait for.
        """
        while not sooner.is_set() and (left := self._left()) > 0:
            try:
                async with asyncio.timeout(left):
                    await sooner.wait()
            except TimeoutError:
                continue  # something may have come meanwhile

    def _left(self) -> float:
        return min(self._last + _QUIET_S, self._begun + _MAX_S) - time.monotonic()
