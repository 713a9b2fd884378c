"""Results that are kept between schemas, no more of them than fit in some bytes.

Counting them would not do: an automaton takes a hundred bytes or a hundred million.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

# A key and its place in the table.
_ENTRY_BYTES = 500


class Remembered(Generic[T]):
    """What a function has returned, by its arguments; those not asked for longest leave first.

    Safe to use from several threads: two that ask for the same at once both make it.

    Args:
        make: The function. What it raises is not kept.
        measure: Memory of a result and of the arguments behind it that led there, in bytes, about.
        max_bytes: Most memory of all results. One that takes more than a quarter of it is not kept.
    """

    def __init__(
        self,
        make: Callable[..., T],
        measure: Callable[..., int],
        max_bytes: int = 16 << 20,
    ) -> None:
        self._make = make
        self._measure = measure
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def __call__(self, *arguments: Hashable) -> T:
        """Return the result, made now or before."""
        with self._lock:
            found = self._kept.get(arguments)
            if found is not None:
                self._kept.move_to_end(arguments)
                return found[0]
        made = self._make(*arguments)
        size = _ENTRY_BYTES + self._measure(made, *arguments)
        if size > self._max_bytes // 4:
            return made
        with self._lock:
            kept, _ = self._kept.setdefault(arguments, (made, size))
            if kept is made:
                self.num_bytes += size
                while self.num_bytes > self._max_bytes:
                    _, (_, freed) = self._kept.popitem(last=False)
                    self.num_bytes -= freed
        return kept
