"""Keeps the values used last within a bound on their size, in bytes or in another unit; used by every
package.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Counts since a cache of bytes was made, and what it holds now."""

    hits: int  # Values found
    misses: int  # Values not found, those included that another thread was making
    evictions: int  # Values dropped to make room
    entries: int  # Values held
    num_bytes: int  # Memory of them and of their keys
    max_bytes: int  # The bound on it


class BoundedCache(Generic[K, V]):
    """Drops the values not used for longest. Safe to use from several threads.

    A dropped value stays alive as long as a caller uses it.

    Args:
        max_size: Bound on the sizes of all values together, in the unit of `size_of`.
        size_of: Size of a key with its value; None: each counts 1.
        max_value_size: Size of the largest value that is kept; None: `max_size`. A larger value is handed out
            and displaces nothing. With `math.inf` the value used last stays whatever its size.
        single_flight: Whether threads that miss the same key at once wait for the first of them, and share
            its value or its error. Not for work that one caller can cancel or has a time limit of its own.
        on_evict: Called with every value that is dropped to make room, while the lock is held.

    Attributes:
        size: Sizes of all values held, as last measured.
        hits: Values found.
        misses: Values not found, or made.
        waits: Values that another thread was making.
        evictions: Values dropped to make room.
    """

    def __init__(
        self,
        max_size: int,
        size_of: Callable[[K, V], int] | None = None,
        max_value_size: float | None = None,
        single_flight: bool = False,
        on_evict: Callable[[V], None] | None = None,
    ) -> None:
        self.max_size = max_size
        self.lock = threading.RLock()  # Held by every method; hold it to make several calls atomic
        self.size = self.hits = self.misses = self.waits = self.evictions = 0
        self._size_of = size_of or (lambda key, value: 1)
        self._max_value_size = max_size if max_value_size is None else max_value_size
        self._on_evict = on_evict
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._running: dict[K, Future[V]] | None = {} if single_flight else None

    def __len__(self) -> int:
        """Number of values held."""
        return len(self._entries)

    @property
    def counts(self) -> CacheCounts:
        """Counts so far, and the present content, of a cache whose sizes are in bytes."""
        with self.lock:
            misses = self.misses + self.waits
            return CacheCounts(self.hits, misses, self.evictions, len(self), self.size, self.max_size)

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the entries, the one used last first; hold the lock meanwhile."""
        return ((key, value) for key, (value, _) in reversed(self._entries.items()))

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used last; None if it is not held."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def peek(self, key: K) -> V | None:
        """Return a value without marking it as used; None if it is not held."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V) -> V:
        """Keep a value unless the key has one; return the one that the key has now."""
        size = self._size_of(key, value)
        with self.lock:
            entry = self._entries.get(key)
            if entry is not None:
                return entry[0]
            if size > self._max_value_size:
                return value
            self._entries[key] = value, size
            self.size += size
            self._make_room()
            return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return a value, made now if it is not held; errors of `make` are passed on and not kept."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is not None:
                self.hits += 1
                self._entries.move_to_end(key)
                return entry[0]
            running = None if self._running is None else self._running.get(key)
            if running is None:
                self.misses += 1
                if self._running is not None:
                    mine = self._running[key] = Future()
            else:
                self.waits += 1
        if running is not None:
            return running.result()
        if self._running is None:
            return self.put(key, make())
        try:
            made = self.put(key, make())
        except BaseException as error:
            mine.set_exception(error if isinstance(error, Exception) else RuntimeError("interrupted"))
            raise
        finally:
            with self.lock:
                del self._running[key]
        mine.set_result(made)
        return made

    def settle(self, key: K | None = None) -> None:
        """Measure again a value that has grown (None: all values), and make room for it.

        Only a value that has become too large to be kept is dropped.
        """
        with self.lock:
            for each in list(self._entries) if key is None else [key]:
                entry = self._entries.get(each)
                if entry is None:
                    continue
                now = self._size_of(each, entry[0])
                self._entries[each] = entry[0], now
                self.size += now - entry[1]
                if now > self._max_value_size:
                    self._entries.move_to_end(each, last=False)
                    self._evict()
            self._make_room()

    def discard(self, where: Callable[[K], bool]) -> list[V]:
        """Drop and return the values whose key is `where`; they do not count as evicted."""
        with self.lock:
            dropped = [self._entries.pop(key) for key in list(self._entries) if where(key)]
            self.size -= sum(size for _, size in dropped)
            return [value for value, _ in dropped]

    def clear(self) -> None:
        """Drop everything; counts stay."""
        self.discard(lambda key: True)

    def _make_room(self) -> None:
        while self.size > self.max_size and len(self._entries) > 1:
            self._evict()

    def _evict(self) -> None:
        _, (value, size) = self._entries.popitem(last=False)
        self.size -= size
        self.evictions += 1
        if self._on_evict is not None:
            self._on_evict(value)


T = TypeVar("T")

# Memory of a key and its table entry.
_RESULT_BYTES = 500


class Remembered(Generic[T]):
    """Keeps the results of a function by its arguments.

    Safe to use from several threads: two that ask for the same at once both make it, because each may run out
    of its own time.

    Args:
        make: The function. Its errors are not kept.
        measure: Approximate bytes of a result, given the result and the arguments.
        max_bytes: Bound on all results together. A result that takes more than a quarter of it is not kept.
    """

    def __init__(
        self,
        make: Callable[..., T],
        measure: Callable[..., int],
        max_bytes: int = 16 << 20,
    ) -> None:
        self._make = make
        self._kept: BoundedCache[tuple[Hashable, ...], T] = BoundedCache(
            max_bytes, lambda arguments, made: _RESULT_BYTES + measure(made, *arguments), max_bytes // 4
        )

    @property
    def num_bytes(self) -> int:
        """Memory of all results kept."""
        return self._kept.size

    def __call__(self, *arguments: Hashable) -> T:
        """Return the result, made now or before."""
        return self._kept.get_or_make(arguments, lambda: self._make(*arguments))
