"""Arrays whose items say nothing of each other: a value for each place, and bounds on how many there are."""

from __future__ import annotations

from collections.abc import Hashable

from decoding.grammar.schema.members import ENDLESS
from decoding.grammar.shapes import Option, ValueNode


class ListShape:
    """Items by place (`decoding.grammar.shapes.ArrayShape`).

    Progress is the number of items written; without an upper bound, counted no further than it matters.

    Args:
        prefix: Values of the first items.
        rest: Value of all others; None where `most` leaves no room for them.
        least: Fewest items.
        most: Most items; None is no bound.
    """

    __slots__ = ("_after_prefix", "_last", "_least", "_most", "_options", "_prefix", "_rest", "_sizes")

    def __init__(
        self, prefix: tuple[ValueNode, ...], rest: ValueNode | None, least: int, most: int | None
    ) -> None:
        self._prefix = prefix
        self._rest = rest
        self._least = least
        self._most = most
        self._last = 0
        self._sizes: list[int] = []
        self._after_prefix = 0
        self._options: dict[int, tuple[Option, ...]] = {}

    def cost(self) -> int:
        """Fewest bytes of such an array, as far as its items' values are known."""
        size = sum(self._value(place).shortest + 1 for place in range(min(self._least, len(self._prefix))))
        more = self._least - len(self._prefix)
        if more > 0:
            size += more * (self._value(len(self._prefix)).shortest + 1)
        return size + 1 + (size == 0) if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Settle, once all values are known, how long the arrays can be."""
        prefix = len(self._prefix)
        for place in range(prefix + 1):
            if self._most is not None and self._most <= place:
                break
            if self._value(place).shortest >= ENDLESS:
                self._most = place
                break
        self._last = max(prefix, self._least) if self._most is None else self._most
        tail = max(self._least - prefix, 0)
        size = tail * (self._value(prefix).shortest + 1) + 1 if tail else 1
        sizes = [size]
        for place in range(prefix - 1, -1, -1):
            if place < self._least:
                size += self._value(place).shortest + 1
            sizes.append(size)
        sizes.reverse()
        self._sizes = sizes

    def _value(self, place: int) -> ValueNode:
        if place < len(self._prefix):
            return self._prefix[place]
        return _NOTHING if self._rest is None else self._rest

    def start(self) -> Hashable:
        """Progress behind `[`."""
        return 0

    def can_close(self, progress: Hashable) -> bool:
        """Whether `]` may follow."""
        return progress >= self._least  # type: ignore[operator]

    def items(self, progress: Hashable) -> tuple[Option, ...]:
        """What the next item may be."""
        place: int = progress  # type: ignore[assignment]
        options = self._options.get(place)
        if options is None:
            if place == self._most:
                options = ()
            else:
                options = (Option(self._value(place), min(place + 1, self._last)),)
            self._options[place] = options
        return options

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """Progress once the value is written."""
        return progress

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes that close the array from between two items."""
        place: int = progress  # type: ignore[assignment]
        prefix = len(self._prefix)
        if place <= prefix:
            size = self._sizes[place]
        else:
            size = max(self._least - place, 0) * (self._value(prefix).shortest + 1) + 1
        return size - 1 if place == 0 and self._least else size


_NOTHING = ValueNode(shortest=ENDLESS)
