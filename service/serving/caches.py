"""What caches behind a served index did and hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What a cache did and holds.

    Attributes:
        hits: Requests it answered.
        misses: Requests it did not.
        evictions: Entries given up for others.
        held_bytes: Memory of what it holds, bytes.
    """

    hits: int
    misses: int
    evictions: int
    held_bytes: int


@runtime_checkable
class CachingRetriever(Protocol):
    """A retriever that tells of its caches. Both counts are cheap, and from any thread."""

    def filter_cache(self) -> CacheCounts:
        """Return the counts of the filters kept of its index."""

    def grammar_cache(self) -> CacheCounts:
        """Return the counts of the grammars kept of its model."""
