"""Arrays of scalars no two of which are equal."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from decoding.grammar.leaves.alike_exits import SOME_TEXT
from decoding.grammar.leaves.distinct_leaf import DistinctLeaf
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.leaves.texts import Texts
from decoding.grammar.schema.assignment import cheapest_assignment
from decoding.grammar.schema.members import ENDLESS
from decoding.grammar.shapes import Option, ValueNode

if TYPE_CHECKING:
    from decoding.grammar.leaves.factory import Leaves

MAX_LEAST = 64
"""Most items that may be required to differ: all of them are looked for before the first is written."""


class UniqueProgress(NamedTuple):
    """How far an array is: items so far, and the labels of their texts."""

    place: int
    used: frozenset[int]


class UniqueArrayShape:
    """Scalars by place, each written once at most (`decoding.grammar.shapes.ArrayShape`).

    What has been written is remembered by the labels of texts, so that values must have one spelling each.

    Args:
        leaves: Of the vocabulary.
        places: Leaves for every place, none where it can have no value; the last place is that of all others.
        least: Fewest items.
        most: Most items; None is no bound.
    """

    __slots__ = ("_cheap", "_factory", "_least", "_most", "_options", "_places", "_remaining", "_sizes")

    def __init__(
        self, leaves: Leaves, places: Sequence[tuple[Leaf, ...]], least: int, most: int | None
    ) -> None:
        texts = Texts()
        self._factory = leaves
        # Where all places have the same leaves and texts never run out, which ones are written decides
        # nothing but that they are not written again.
        are_alike = len(places) == 1
        self._places = [
            tuple(leaves.remembering(leaf, texts, are_alike) for leaf in place) for place in places
        ]
        self._least = least
        self._most = most
        self._cheap: dict[tuple[int, frozenset[int]], list[tuple[int, int]]] = {}
        self._remaining: dict[tuple[int, frozenset[int]], tuple[DistinctLeaf, ...]] = {}
        self._sizes: dict[UniqueProgress, int] = {}
        self._options: dict[UniqueProgress, tuple[Option, ...]] = {}

    def cost(self) -> int:
        """Fewest bytes of such an array."""
        size = self.shortest(self.start())
        return size + 1 if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Nothing is left to settle: scalars are known from the start."""

    def start(self) -> UniqueProgress:
        """Progress behind `[`."""
        return UniqueProgress(0, frozenset())

    def can_close(self, progress: Hashable) -> bool:
        """Whether `]` may follow."""
        return progress.place >= self._least  # type: ignore[attr-defined,no-any-return]

    def items(self, progress: Hashable) -> tuple[Option, ...]:
        """What the next item may be: a value that is not there yet and leaves enough for those behind it."""
        now: UniqueProgress = progress  # type: ignore[assignment]
        options = self._options.get(now)
        if options is None:
            leaves: tuple[DistinctLeaf, ...] = ()
            if now.place != self._most:
                kind = self._kind(now.place)
                leaves = self._leaves(kind, now.used | self._kept_for_others(now))
            options = ()
            if leaves:
                value = ValueNode(leaves, (), (), min(len(leaf.shortest(0)) for leaf in leaves))
                options = (Option(value, UniqueProgress(now.place + 1, now.used)),)
            self._options[now] = options
        return options

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """Progress once the value is written: its text is used up."""
        now: UniqueProgress = progress  # type: ignore[assignment]
        return now if label == SOME_TEXT else UniqueProgress(now.place, now.used | {label})

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes that close the array from between two items."""
        now: UniqueProgress = progress  # type: ignore[assignment]
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
        behind = range(now.place + 1, self._least)
        if not behind or self._kind(now.place) == self._kind(behind[-1]):
            return frozenset()
        candidates = {
            label for place in behind for _, label in self._cheapest(self._kind(place), now.used, len(behind))
        }
        return frozenset(
            label
            for label in candidates
            if self.shortest(UniqueProgress(now.place + 1, now.used | {label})) >= ENDLESS
        )

    def _leaves(self, kind: int, used: frozenset[int]) -> tuple[DistinctLeaf, ...]:
        """The leaves of a place without what has been written."""
        found = self._remaining.get((kind, used))
        if found is None:
            without = [self._factory.excluding(leaf, used) for leaf in self._places[kind]]
            found = tuple(leaf for leaf in without if leaf is not None)
            self._remaining[kind, used] = found
        return found

    def _cheapest(self, kind: int, used: frozenset[int], number: int) -> list[tuple[int, int]]:
        """The shortest values of a place that are left, at most so many, with their labels."""
        known = self._cheap.setdefault((kind, used), [])
        taken = used.union(label for _, label in known)
        while len(known) < number:
            best: tuple[int, int] | None = None
            for leaf in self._leaves(kind, taken):
                text = leaf.shortest(0)
                if best is None or len(text) < best[0]:
                    best = len(text), _label(leaf, text)
            if best is None:
                break
            known.append(best)
            taken |= {best[1]}
        return known[:number]


def _label(leaf: Leaf, text: bytes) -> int:
    state = 0
    for byte in text:
        state = leaf.step(state, byte)
    return leaf.label(state)
