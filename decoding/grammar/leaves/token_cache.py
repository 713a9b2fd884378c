"""Tokens of leaves that were asked for before, in a bounded number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from decoding.grammar.leaves.leaf import LeafTokens

# A dict's entry, its key, and a named tuple with a few numbers, measured with tracemalloc.
_ENTRY_BYTES = 450
_TOKEN_BYTES = 36
_EXIT_BYTES = 120


class TokenCache:
    """What `Leaf.tokens` has found, by state and place in the trie. The oldest entries leave first.

    Reading takes no lock.

    Args:
        max_bytes: Most memory of all entries, about.
    """

    __slots__ = ("_entries", "_lock", "_max_bytes", "num_bytes")

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self._entries: dict[Hashable, LeafTokens] = {}
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def get(self, place: Hashable) -> LeafTokens | None:
        """What was put there."""
        return self._entries.get(place)

    def put(self, place: Hashable, tokens: LeafTokens) -> LeafTokens:
        """Keep it, unless another thread was first; returns what is kept."""
        with self._lock:
            kept = self._entries.setdefault(place, tokens)
            if kept is tokens:
                self.num_bytes += _size(tokens)
                while self.num_bytes > self._max_bytes and len(self._entries) > 1:
                    oldest = next(iter(self._entries))
                    self.num_bytes -= _size(self._entries.pop(oldest))
            return kept


def _size(tokens: LeafTokens) -> int:
    """Memory of one entry, the nodes behind ended texts included."""
    size = _ENTRY_BYTES + _TOKEN_BYTES * len(tokens.few)
    size += sum(_EXIT_BYTES + 40 * len(exit.rest.positions) for exit in tokens.exits)
    return size + (tokens.many.nbytes if tokens.many is not None else 0)
