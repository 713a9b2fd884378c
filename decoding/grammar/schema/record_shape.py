"""Objects whose members say nothing of each other: any that are allowed, the required ones among them."""

from __future__ import annotations

from collections.abc import Hashable

from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.schema.members import ENDLESS, Member, Members
from decoding.grammar.shapes import Option


class OrderedRecordShape:
    """Named members in the schema's order, others behind them (`decoding.grammar.shapes.ObjectShape`).

    Progress is the place in the list of named members from which on they may still come; one more than there
    are once a free key has been written.

    Args:
        members: Of the objects.
    """

    __slots__ = ("_after", "_keys", "_last", "_members", "_named", "_required_from", "_sizes")

    def __init__(self, members: Members) -> None:
        self._members = members
        self._named: list[Member] = []
        self._last = 0
        self._required_from: list[int] = []
        self._sizes: list[int] = []
        self._keys: dict[int, Leaf | None] = {}
        self._after: dict[int, tuple[Option, ...]] = {}

    def cost(self) -> int:
        """Fewest bytes of such an object, as far as its members' values are known."""
        size = sum(member.cost() for member in self._members.named if member.required)
        return size + 1 + (size == 0) if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Settle, once all values are known, what may come where."""
        members = self._members
        members.drop_empty()
        self._named = named = members.named
        self._last = last = len(named)
        sizes, required = [1, 1], [last, last]
        for index in range(last - 1, -1, -1):
            member = named[index]
            sizes.append(sizes[-1] + member.cost() if member.required else sizes[-1])
            required.append(index if member.required else required[-1])
        sizes.reverse()
        required.reverse()
        self._sizes, self._required_from = sizes, required
        for index, member in enumerate(named):
            self._after[member.label] = (Option(member.values[0], index + 1),)
        for member in members.free:
            self._after[member.label] = (Option(member.values[0], last + 1),)

    def start(self) -> Hashable:
        """Progress behind `{`."""
        return 0

    def can_close(self, progress: Hashable) -> bool:
        """Whether `}` may follow."""
        return self._required_from[progress] == self._last  # type: ignore[call-overload,no-any-return]

    def keys(self, progress: Hashable) -> Leaf | None:
        """The keys that may follow."""
        place: int = progress  # type: ignore[assignment]
        try:
            return self._keys[place]
        except KeyError:
            first = self._required_from[place]
            labels = [member.label for member in self._named[place : first + 1]]
            if first == self._last:
                labels += [member.label for member in self._members.free]
            leaf = self._members.key_leaves.of(tuple(labels)) if labels else None
            self._keys[place] = leaf
            return leaf

    def after_key(self, progress: Hashable, label: int) -> tuple[Option, ...]:
        """Ways to go on behind a key."""
        return self._after[label]

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """Progress once the value is written."""
        return progress

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes that close the object from between two members."""
        size = self._sizes[progress]  # type: ignore[call-overload]
        return size - 1 if progress == 0 and size > 1 else size  # type: ignore[no-any-return]


class RecordShape:
    """Members in any order (`decoding.grammar.shapes.ObjectShape`).

    Progress is a bit for "not the start", and above it one for every named member that has been written.

    Args:
        members: Of the objects.
    """

    __slots__ = ("_bits", "_keys", "_members", "_required")

    def __init__(self, members: Members) -> None:
        self._members = members
        self._bits: dict[int, int] = {}
        self._required = 0
        self._keys: dict[int, Leaf | None] = {}

    def cost(self) -> int:
        """Fewest bytes of such an object, as far as its members' values are known."""
        size = sum(member.cost() for member in self._members.named if member.required)
        return size + 1 + (size == 0) if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Settle, once all values are known, what may come where."""
        self._members.drop_empty()
        self._bits = {member.label: 2 << n for n, member in enumerate(self._members.named)}
        for member in self._members.named:
            if member.required:
                self._required |= self._bits[member.label]

    def start(self) -> Hashable:
        """Progress behind `{`."""
        return 0

    def can_close(self, progress: Hashable) -> bool:
        """Whether `}` may follow."""
        return progress & self._required == self._required  # type: ignore[operator]

    def keys(self, progress: Hashable) -> Leaf | None:
        """The keys that may follow: all that have not been written."""
        seen: int = progress  # type: ignore[assignment]
        try:
            return self._keys[seen]
        except KeyError:
            labels = [label for label, bit in self._bits.items() if not seen & bit]
            labels += [member.label for member in self._members.free]
            leaf = self._members.key_leaves.of(tuple(labels)) if labels else None
            self._keys[seen] = leaf
            return leaf

    def after_key(self, progress: Hashable, label: int) -> tuple[Option, ...]:
        """Ways to go on behind a key."""
        seen: int = progress  # type: ignore[assignment]
        value = self._members.with_label(label).values[0]
        return (Option(value, seen | self._bits.get(label, 0) | 1),)

    def after_value(self, progress: Hashable, label: int) -> Hashable:
        """Progress once the value is written."""
        return progress

    def shortest(self, progress: Hashable) -> int:
        """Fewest bytes that close the object from between two members."""
        seen: int = progress  # type: ignore[assignment]
        size = 1
        for member in self._members.named:
            if member.required and not seen & self._bits[member.label]:
                size += member.cost()
        return size - 1 if seen == 0 and size > 1 else size
