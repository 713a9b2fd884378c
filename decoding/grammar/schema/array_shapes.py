"""Defines the shapes of arrays: items by place, items that are counted, and scalars that must differ.

Items are counted for `contains` with its bounds, and for negations. Where items must differ, the
cheapest assignment of different values to places tells how short an array can be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from genret.decoding.grammar.leaves.distinct_leaf import SOME_TEXT, DistinctLeaf, Texts
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.shapes import ENDLESS, ArrayShape, Option, ValueNode

if TYPE_CHECKING:
    from genret.decoding.grammar.leaves.leaf_factory import Leaves


class ListShape(ArrayShape):
    """Items by place.

    Progress is the number of items written; without an upper bound, counted no further than it matters.
    The first items are `prefix`, all others are `rest`, which is None where `most` leaves no room for them.
    """

    __slots__ = ("_last", "_least", "_most", "_prefix", "_rest", "_sizes")

    def __init__(
        self, prefix: tuple[ValueNode, ...], rest: ValueNode | None, least: int, most: int | None
    ) -> None:
        self._prefix = prefix
        self._rest = rest
        self._least = least
        self._most = most
        self._last = 0
        self._sizes: list[int] = []

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

    def can_close(self, place: int) -> bool:
        """Whether `]` may follow."""
        return place >= self._least

    def items(self, place: int) -> tuple[Option, ...]:
        """The ways to go on with an item."""
        if place == self._most:
            return ()
        return (Option(self._value(place), min(place + 1, self._last)),)

    def shortest(self, place: int) -> int:
        """Fewest bytes that close the array from between two items."""
        prefix = len(self._prefix)
        if place <= prefix:
            size = self._sizes[place]
        else:
            size = max(self._least - place, 0) * (self._value(prefix).shortest + 1) + 1
        return size - 1 if place == 0 and self._least else size


_NOTHING = ValueNode(shortest=ENDLESS)


class ArrayProgress(NamedTuple):
    """Items so far, and items of every counted kind, counted no further than it matters."""

    place: int
    counts: tuple[int, ...]


class QuotaArrayShape(ArrayShape):
    """Items by place, some of them counted.

    Args:
        places: Ways to fill every place, each with what it adds to the counters; the last place stands
            for all that follow. For a counter with an upper bound every way says truly whether it counts;
            for others an item may count for less than it could.
        bounds: Fewest and most items of each counted kind; None is no bound.
        least, most: Fewest and most items; None is no bound.
    """

    __slots__ = ("_bounds", "_last", "_least", "_most", "_places", "_sizes", "_tops")

    def __init__(
        self,
        places: Sequence[Sequence[tuple[tuple[int, ...], ValueNode]]],
        bounds: Sequence[tuple[int, int | None]],
        least: int,
        most: int | None,
    ) -> None:
        self._places = [list(ways) for ways in places]
        self._bounds = list(bounds)
        self._least = least
        self._most = most
        self._last = max(len(places) - 1, least, 1) if most is None else most
        # The counts from which on more items change nothing.
        self._tops = [fewest if largest is None else largest for fewest, largest in bounds]
        self._sizes: dict[ArrayProgress, int] = {}

    def num_states(self) -> int:
        """The number of progresses."""
        states = self._last + 1
        for top in self._tops:
            states *= top + 1
        return states

    def cost(self) -> int:
        """Fewest bytes of such an array, as far as its items' values are known."""
        self._sizes = self._completions()
        size = self._sizes[self.start()]
        return size + 1 if size < ENDLESS else ENDLESS

    def start(self) -> ArrayProgress:
        """Progress behind `[`."""
        return ArrayProgress(0, (0,) * len(self._bounds))

    def can_close(self, now: ArrayProgress) -> bool:
        """Whether `]` may follow."""
        if now.place < self._least:
            return False
        return all(count >= fewest for count, (fewest, _) in zip(now.counts, self._bounds, strict=True))

    def items(self, now: ArrayProgress) -> tuple[Option, ...]:
        """The ways to go on with an item."""
        return tuple(
            Option(value, after)
            for value, after in self._ways(now)
            if value.shortest < ENDLESS and self._sizes[after] < ENDLESS
        )

    def shortest(self, now: ArrayProgress) -> int:
        """Fewest bytes that close the array from between two items."""
        return self._sizes[now]

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
        """Fewest bytes to the closing bracket from everywhere; items only move on, so one pass is enough."""
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


MAX_LEAST = 64
"""Most items that may be required to differ: all of them are looked for before the first is written."""


class UniqueProgress(NamedTuple):
    """Items so far, and the labels of their texts."""

    place: int
    used: frozenset[int]


class UniqueArrayShape(ArrayShape):
    """Scalars by place, each written once at most.

    Items already written are remembered by the labels of their texts, so values must have one spelling each.

    Args:
        places: Leaves for every place, none where it can have no value; the last place is that of all others.
        least, most: Fewest and most items; None is no bound.
    """

    __slots__ = ("_cheap", "_factory", "_least", "_most", "_places", "_remaining", "_sizes")

    def __init__(
        self, leaves: Leaves, places: Sequence[tuple[Leaf, ...]], least: int, most: int | None
    ) -> None:
        texts = Texts()
        self._factory = leaves
        # Where all places have the same leaves and texts never run out, a written text only forbids itself.
        are_alike = len(places) == 1
        self._places = [
            tuple(leaves.remembering(leaf, texts, are_alike) for leaf in place) for place in places
        ]
        self._least = least
        self._most = most
        self._cheap: dict[tuple[int, frozenset[int]], list[tuple[int, int]]] = {}
        self._remaining: dict[tuple[int, frozenset[int]], tuple[DistinctLeaf, ...]] = {}
        self._sizes: dict[UniqueProgress, int] = {}

    def cost(self) -> int:
        """Fewest bytes of such an array."""
        size = self.shortest(self.start())
        return size + 1 if size < ENDLESS else ENDLESS

    def start(self) -> UniqueProgress:
        """Progress behind `[`."""
        return UniqueProgress(0, frozenset())

    def can_close(self, now: UniqueProgress) -> bool:
        """Whether `]` may follow."""
        return now.place >= self._least

    def items(self, now: UniqueProgress) -> tuple[Option, ...]:
        """The way to go on: values that are not there yet and leave enough for those behind them."""
        if now.place == self._most:
            return ()
        leaves = self._leaves(self._kind(now.place), now.used | self._kept_for_others(now))
        if not leaves:
            return ()
        for leaf in leaves:
            leaf.watch(self._wanted_behind(now))
        value = ValueNode(leaves, (), (), min(len(leaf.shortest(0)) for leaf in leaves))
        return (Option(value, UniqueProgress(now.place + 1, now.used)),)

    def after_value(self, now: UniqueProgress, label: int) -> UniqueProgress:
        """Progress once the value is written: its text is used up."""
        return now if label == SOME_TEXT else UniqueProgress(now.place, now.used | {label})

    def shortest(self, now: UniqueProgress) -> int:
        """Fewest bytes that close the array from between two items."""
        size = self._sizes.get(now)
        if size is None:
            size = self._sizes[now] = self._completion(now)
        return size

    def _kind(self, place: int) -> int:
        return min(place, len(self._places) - 1)

    def _completion(self, now: UniqueProgress) -> int:
        more = self._least - now.place
        if more <= 0:
            return 1
        if self._most is not None and self._least > self._most:
            return ENDLESS
        kinds = [self._kind(place) for place in range(now.place, self._least)]
        if kinds[0] == kinds[-1]:
            cheap = self._cheapest(kinds[0], now.used, more)
            size = sum(size for size, _ in cheap) if len(cheap) == more else ENDLESS
        else:
            choices = [
                {label: size for size, label in self._cheapest(kind, now.used, more)} for kind in kinds
            ]
            assigned = cheapest_assignment(choices)
            size = ENDLESS if assigned is None else assigned
        return size + more + (now.place > 0) if size < ENDLESS else ENDLESS

    def _kept_for_others(self, now: UniqueProgress) -> frozenset[int]:
        """Values that must be left to the places behind the next one."""
        if now.place + 1 >= self._least or self._kind(now.place) == self._kind(self._least - 1):
            return frozenset()
        return frozenset(
            label
            for label in self._wanted_behind(now)
            if self.shortest(UniqueProgress(now.place + 1, now.used | {label})) >= ENDLESS
        )

    def _wanted_behind(self, now: UniqueProgress) -> set[int]:
        """The values of the shortest ways to fill the places behind the next one: using up another costs
        nothing.
        """
        behind = range(now.place + 1, self._least)
        kinds = {self._kind(place) for place in behind}
        return {label for kind in kinds for _, label in self._cheapest(kind, now.used, len(behind))}

    def _leaves(self, kind: int, used: frozenset[int]) -> tuple[DistinctLeaf, ...]:
        """The leaves of a place without what has been written."""
        found = self._remaining.get((kind, used))
        if found is None:
            without = [self._factory.excluding(leaf, used) for leaf in self._places[kind]]
            found = tuple(leaf for leaf in without if leaf is not None)
            self._remaining[kind, used] = found
        return found

    def _cheapest(self, kind: int, used: frozenset[int], number: int) -> list[tuple[int, int]]:
        """The shortest values of a place that are left, at most `number`, with their labels."""
        known = self._cheap.setdefault((kind, used), [])
        taken = used.union(label for _, label in known)
        while len(known) < number:
            best: tuple[int, int] | None = None
            for leaf in self._leaves(kind, taken):
                text = leaf.shortest(0)
                if best is None or len(text) < best[0]:
                    best = len(text), leaf.label(reduce(leaf.step, text, 0))
            if best is None:
                break
            known.append(best)
            taken |= {best[1]}
        return known[:number]


def cheapest_assignment(choices: Sequence[Mapping[int, int]]) -> int | None:
    """The total cost of giving every place a value of its own as cheaply as possible; None: too few values.

    Places are added one by one; each may push others on to other values along the cheapest path. `choices`
    are the costs of the values by place.
    """
    owner: dict[int, int] = {}
    for place in range(len(choices)):
        if not _add(choices, owner, place):
            return None
    return sum(choices[place][value] for value, place in owner.items())


def _add(choices: Sequence[Mapping[int, int]], owner: dict[int, int], place: int) -> bool:
    """Give one more place a value."""
    cost: dict[int, int] = {}
    source: dict[int, int] = {}
    queue = [(place, 0)]
    for taker, spent in queue:  # grows while it is read: costs only fall
        for value, price in choices[taker].items():
            total = spent + price
            if owner.get(value) != taker and total < cost.get(value, total + 1):
                cost[value] = total
                source[value] = taker
                if value in owner:
                    loser = owner[value]
                    queue.append((loser, total - choices[loser][value]))
    free = [value for value in cost if value not in owner]
    if not free:
        return False
    value = min(free, key=lambda candidate: cost[candidate])
    held = {taken: of for of, taken in owner.items()}
    while True:
        taker = source[value]
        owner[value] = taker
        if taker == place:
            return True
        value = held[taker]
