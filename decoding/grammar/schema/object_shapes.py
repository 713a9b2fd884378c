"""Defines the shapes of objects, first those whose members say nothing of each other.

`CountedObjectShape` bounds how many members there are, or asks for members that must be among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.schema.members import ENDLESS, KeyMemory, Member, Members
from genret.decoding.grammar.shapes import Option, Progress


class _Shape:
    """Objects of some members; a value says no more to them than its key."""

    __slots__ = ("_members",)

    def __init__(self, members: Members) -> None:
        self._members = members

    def cost(self) -> int:
        """Fewest bytes of such an object, as far as its members' values are known."""
        size = sum(member.cost() for member in self._members.named if member.required)
        return size + 1 + (size == 0) if size < ENDLESS else ENDLESS

    def after_value(self, progress: Progress, label: int) -> Progress:
        """Progress once the value is written."""
        return progress


class OrderedRecordShape(_Shape):
    """Named members in the schema's order, others behind them (`decoding.grammar.shapes.ObjectShape`).

    Progress is the place in the list of named members from which on they may still come; one more than there
    are once a free key has been written.
    """

    __slots__ = ("_after", "_keys", "_last", "_named", "_required_from", "_sizes")

    def __init__(self, members: Members) -> None:
        super().__init__(members)
        self._named: list[Member] = []
        self._last = 0
        self._required_from: list[int] = []
        self._sizes: list[int] = []
        self._keys: dict[int, Leaf | None] = {}
        self._after: dict[int, tuple[Option, ...]] = {}

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

    def start(self) -> int:
        """Progress behind `{`."""
        return 0

    def can_close(self, place: int) -> bool:
        """Whether `}` may follow."""
        return self._required_from[place] == self._last

    def keys(self, place: int) -> Leaf | None:
        """The keys that may follow."""
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

    def after_key(self, place: int, label: int) -> tuple[Option, ...]:
        """The ways to go on behind a key."""
        return self._after[label]

    def shortest(self, place: int) -> int:
        """Fewest bytes that close the object from between two members."""
        size = self._sizes[place]
        return size - 1 if place == 0 and size > 1 else size


class RecordShape(_Shape):
    """Members in any order (`decoding.grammar.shapes.ObjectShape`).

    Progress is a bit for "not the start", and above it one for every named member that has been written.
    """

    __slots__ = ("_bits", "_keys", "_required")

    def __init__(self, members: Members) -> None:
        super().__init__(members)
        self._bits: dict[int, int] = {}
        self._required = 0
        self._keys: dict[int, Leaf | None] = {}

    def seal(self) -> None:
        """Settle, once all values are known, what may come where."""
        self._members.drop_empty()
        self._bits = {member.label: 2 << n for n, member in enumerate(self._members.named)}
        for member in self._members.named:
            if member.required:
                self._required |= self._bits[member.label]

    def start(self) -> int:
        """Progress behind `{`."""
        return 0

    def can_close(self, seen: int) -> bool:
        """Whether `}` may follow."""
        return seen & self._required == self._required

    def keys(self, seen: int) -> Leaf | None:
        """The keys that may follow: all that have not been written."""
        try:
            return self._keys[seen]
        except KeyError:
            labels = [label for label, bit in self._bits.items() if not seen & bit]
            labels += [member.label for member in self._members.free]
            leaf = self._members.key_leaves.of(tuple(labels)) if labels else None
            self._keys[seen] = leaf
            return leaf

    def after_key(self, seen: int, label: int) -> tuple[Option, ...]:
        """The ways to go on behind a key."""
        value = self._members.with_label(label).values[0]
        return (Option(value, seen | self._bits.get(label, 0) | 1),)

    def shortest(self, seen: int) -> int:
        """Fewest bytes that close the object from between two members."""
        size = 1
        for member in self._members.named:
            if member.required and not seen & self._bits[member.label]:
                size += member.cost()
        return size - 1 if seen == 0 and size > 1 else size


class ObjectProgress(NamedTuple):
    """The members of an object so far.

    Attributes:
        seen: Named members that have been written, a bit each; in the schema's order also those passed over.
        written: Members so far; counted no further than it matters, but at least to one.
        pending: Quotas, a bit each, that no member has satisfied yet.
        used: Numbers of the free keys that have been written, where that matters.
    """

    seen: int
    written: int
    pending: int
    used: frozenset[int] = frozenset()


class CountedObjectShape(_Shape):
    """Objects that are completed only by the right number of members (`decoding.grammar.shapes.ObjectShape`).

    A quota asks for at least one member with a key and a value of some kind. Wherever a member may come, what
    is still missing behind it can be written.

    Args:
        members: The members; their values by the quotas they satisfy.
        least: Fewest members.
        most: Most members; None is no bound.
        quotas: Number of quotas.
        ordered: Whether named members come in the schema's order and before all others.
        memory: Remembers free keys; None where writing one twice could not make an invalid object valid.
    """

    def __init__(
        self,
        members: Members,
        least: int,
        most: int | None,
        quotas: int,
        ordered: bool,
        memory: KeyMemory | None,
    ) -> None:
        super().__init__(members)
        self._memory = memory
        self._least = least
        self._most = most
        self._quotas = quotas
        self._ordered = ordered
        self._sizes: dict[ObjectProgress, int] = {}
        self._places: dict[int, int] = {}
        self._number_places()
        self._keys: dict[ObjectProgress, Leaf | None] = {}
        self._choices: dict[tuple[ObjectProgress, int], tuple[Option, ...]] = {}

    def cost(self) -> int:
        """Fewest bytes of such an object, as far as its members' values are known."""
        size = self._completion(self.start())
        return size + 1 if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Settle, once all values are known, what may come."""
        self._members.drop_empty()
        self._number_places()

    def start(self) -> ObjectProgress:
        """Progress behind `{`."""
        return ObjectProgress(0, 0, (1 << self._quotas) - 1)

    def can_close(self, now: ObjectProgress) -> bool:
        """Whether `}` may follow."""
        if now.pending or now.written < self._least:
            return False
        return all(not member.required for member in self._unseen(now))

    def keys(self, now: ObjectProgress) -> Leaf | None:
        """The keys that may follow."""
        try:
            return self._keys[now]
        except KeyError:
            members = (*self._next_named(now), *self._next_free(now))
            labels = tuple(member.label for member in members if self._options(now, member))
            leaf = None
            if labels and self._memory is not None:
                leaf = self._memory.leaf(labels, now.used)
            elif labels:
                leaf = self._members.key_leaves.of(labels)
            self._keys[now] = leaf
            return leaf

    def after_key(self, now: ObjectProgress, label: int) -> tuple[Option, ...]:
        """The ways to go on behind a key."""
        options = self._choices.get((now, label))
        if options is None:
            if self._memory is None:
                member, number = self._members.with_label(label), None
            else:
                member, number = self._members.with_label(self._memory.label_of(label)), label
            options = self._choices[now, label] = self._options(now, member, number)
        return options

    def _options(self, now: ObjectProgress, member: Member, number: int | None = None) -> tuple[Option, ...]:
        """The ways to write a member whose key is new; `number` is the key's, where that is remembered."""
        if member.supply is not None and member.name is None:
            if self._supply(member, now) < 1:
                return ()
            if number is None and self._memory is not None:
                # Whichever key is written, there is one less of them behind it.
                number = self._memory.first(member.label, now.used)
        found = (
            Option(value, self._behind(now, member, satisfied, number))
            for satisfied, value in member.values.items()
            if satisfied & now.pending == satisfied
        )
        return tuple(option for option in found if self.shortest(option.progress) < ENDLESS)

    def _supply(self, member: Member, now: ObjectProgress) -> int:
        """The number of keys of a class that are left, where it has finitely many."""
        supply: int = member.supply  # type: ignore[assignment]
        if self._memory is None:
            return supply
        return supply - sum(self._memory.label_of(number) == member.label for number in now.used)

    def shortest(self, now: ObjectProgress) -> int:
        """Fewest bytes that close the object from between two members."""
        size = self._sizes.get(now)
        if size is None:
            size = self._sizes[now] = self._completion(now)
        return size

    def _unseen(self, now: ObjectProgress) -> Iterator[Member]:
        return (member for n, member in enumerate(self._members.named) if not now.seen >> n & 1)

    def _next_named(self, now: ObjectProgress) -> Iterator[Member]:
        for member in self._unseen(now):
            yield member
            if self._ordered and member.required:
                return

    def _next_free(self, now: ObjectProgress) -> list[Member]:
        if self._ordered and any(member.required for member in self._unseen(now)):
            return []
        return self._members.free

    def _key_sizes(self, member: Member, now: ObjectProgress, number: int) -> Iterable[int]:
        """Bytes of the shortest keys of a class that are left, colons included, at most so many."""
        if self._memory is not None:
            return self._memory.sizes(member.label, now.used, number)
        if member.supply is not None:
            number = min(number, member.supply)
        return repeat(member.size, number)

    def _number_places(self) -> None:
        self._places = {member.label: place for place, member in enumerate(self._members.named)}

    def _behind(
        self, now: ObjectProgress, member: Member, satisfied: int, number: int | None
    ) -> ObjectProgress:
        seen, used = now.seen, now.used
        if member.name is None:
            if self._ordered:
                seen = (1 << len(self._members.named)) - 1
            if number is not None:
                used = used | {number}
        else:
            place = self._places[member.label]
            seen = (2 << place) - 1 if self._ordered else seen | 1 << place
        written = now.written + 1
        if self._most is None:
            written = min(written, max(self._least, 1))
        return ObjectProgress(seen, written, now.pending & ~satisfied, used)

    def _completion(self, now: ObjectProgress) -> int:
        """Fewest bytes that close the object, `ENDLESS` if nothing does.

        Members are chosen one after another; all that counts of a choice is the quotas still pending and the
        number of members, so that the choices stay few.
        """
        need = max(self._least - now.written, 0)
        room = None if self._most is None else self._most - now.written
        if room is not None and room < need:
            return ENDLESS
        best = {(now.pending, 0): 0}
        for member in self._unseen(now):
            more = self._extended(best, member, need, room)
            if member.required:
                best = more
            else:
                _keep_best(best, more)
        for member in self._members.free:
            most = need + now.pending.bit_count()
            for size in self._key_sizes(member, now, most):
                check_time()
                _keep_best(best, self._extended(best, member, need, room, size))
        sizes = [size for (pending, count), size in best.items() if not pending and count >= need]
        size = min(sizes, default=ENDLESS)
        if size >= ENDLESS:
            return ENDLESS
        return size + 1 - (size > 0 and now.written == 0)

    def _extended(
        self,
        best: dict[tuple[int, int], int],
        member: Member,
        need: int,
        room: int | None,
        key_size: int | None = None,
    ) -> dict[tuple[int, int], int]:
        """All choices so far, each with one more member, whose key takes `key_size` bytes with its colon."""
        longer = 0 if key_size is None else key_size - member.size
        more: dict[tuple[int, int], int] = {}
        for (pending, count), size in best.items():
            behind = count + 1 if room is not None else min(count + 1, need)
            if room is not None and behind > room:
                continue
            for satisfied in member.values:
                total = size + longer + member.cost(satisfied)
                choice = (pending & ~satisfied, behind)
                if total < more.get(choice, ENDLESS):
                    more[choice] = total
        return more


def _keep_best(best: dict[tuple[int, int], int], more: dict[tuple[int, int], int]) -> None:
    for choice, size in more.items():
        if size < best.get(choice, ENDLESS):
            best[choice] = size
