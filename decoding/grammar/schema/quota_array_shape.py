"""Arrays some of whose items are counted: `contains` with its bounds, and what negations ask for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import product
from typing import NamedTuple

from decoding.grammar.schema.members import ENDLESS
from decoding.grammar.shapes import Option, ValueNode


class ItemCounter(NamedTuple):
    """Bounds on how many items are of a kind; None is no bound."""

    least: int
    most: int | None

    @property
    def top(self) -> int:
        """As far as it is counted."""
        return self.least if self.most is None else self.most


class ArrayProgress(NamedTuple):
    """How far an array is.

    Attributes:
        place: Items so far, counted no further than it matters.
        counts: Items of every counted kind, likewise.
    """

    place: int
    counts: tuple[int, ...]


class QuotaArrayShape:
    """Items by place, some of them counted (`decoding.grammar.shapes.ArrayShape`).

    Args:
        places: For every place ways to fill it, each with what it adds to the counters; the last place stands
            for all that follow. Of a counter with an upper bound every way says truly whether it counts; of
            others an item may count for less than it could.
        counters: What is counted.
        least: Fewest items.
        most: Most items; None is no bound.
    """

    __slots__ = ("_counters", "_last", "_least", "_most", "_options", "_places", "_sizes", "_tops")

    def __init__(
        self,
        places: Sequence[Sequence[tuple[tuple[int, ...], ValueNode]]],
        counters: Sequence[ItemCounter],
        least: int,
        most: int | None,
    ) -> None:
        self._places = [list(ways) for ways in places]
        self._counters = list(counters)
        self._least = least
        self._most = most
        self._last = max(len(places) - 1, least, 1) if most is None else most
        self._tops = [counter.top for counter in counters]
        self._sizes: dict[ArrayProgress, int] = {}
        self._options: dict[ArrayProgress, tuple[Option, ...]] = {}

    def num_states(self) -> int:
        """How many progresses there are."""
        states = self._last + 1
        for top in self._tops:
            states *= top + 1
        return states

    def cost(self) -> int:
        """Fewest bytes of such an array, as far as its items' values are known."""
        self._sizes = self._completions()
        size = self._sizes[self.start()]
        return size + 1 if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Settle, once all values are known, what closes the array from where."""
        self._sizes = self._completions()

    def start(self) -> ArrayProgress:
        """Progress behind `[`."""
        return ArrayProgress(0, (0,) * len(self._counters))

    def can_close(self, progress: Hashable) -> bool:
        """Whether `]` may follow."""
        now: ArrayProgress = progress  # type: ignore[assignment]
        if now.place < self._least:
            return False
        return all(count >= counter.least for count, counter in zip(now.counts, self._counters, strict=True))

    def items(self, progress: Hashable) -> tuple[Option, ...]:
        """What the next item may be."""
        now: ArrayProgress = progress  # type: ignore[assignment]
        options = self._options.get(now)
        if options is None:
            options = tuple(
                Option(value, after)
                for value, after in self._ways(now)
                if value.shortest < ENDLESS and self._sizes[after] < ENDLESS
            )
            self._options[now] = options
        return options

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """Progress once the value is written."""
        return progress

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes that close the array from between two items."""
        return self._sizes[progress]  # type: ignore[index]

    def _ways(self, now: ArrayProgress) -> list[tuple[ValueNode, ArrayProgress]]:
        """Ways to write one more item, possible or not."""
        if now.place == self._most:
            return []
        place = min(now.place + 1, self._last)
        ways = []
        for counted, value in self._places[min(now.place, len(self._places) - 1)]:
            counts = [count + more for count, more in zip(now.counts, counted, strict=True)]
            # Where enough has been counted, the way that does not count allows all that this one does.
            if all(count <= top for count, top in zip(counts, self._tops, strict=True)):
                ways.append((value, ArrayProgress(place, tuple(counts))))
        return ways

    def _completions(self) -> dict[ArrayProgress, int]:
        """Fewest bytes to the closing bracket from everywhere.

        Every item moves on, or stays where moving on no longer matters; from the end, one pass suffices.
        """
        sizes: dict[ArrayProgress, int] = {}
        ranges = [range(top, -1, -1) for top in self._tops]
        for place in range(self._last, -1, -1):
            for counts in product(*ranges):
                now = ArrayProgress(place, counts)
                best = 1 if self.can_close(now) else ENDLESS
                for value, after in self._ways(now):
                    if after != now:
                        best = min(best, (place > 0) + value.shortest + sizes[after])
                sizes[now] = min(best, ENDLESS)
        return sizes
