"""Defines the shapes of objects, first those whose members say nothing of each other.

`CountedObjectShape` bounds how many members there are, or asks for members that must be among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.schema.members import KeyMemory, Member, Members
from genret.decoding.grammar.shapes import ENDLESS, ObjectShape, Option, Progress


class RecordShape(ObjectShape):
    """Objects whose members say nothing of each other.

    Progress is a bit for "not the start", and above it one for every named member that has been written or,
    in the schema's order, passed over. If `ordered`, named members come in that order and before all others.
    """

    __slots__ = ("_keys", "_members", "_ordered")

    def __init__(self, members: Members, ordered: bool) -> None:
        self._members = members
        self._ordered = ordered
        self._keys: dict[Progress, Leaf | None] = {}

    def cost(self) -> int:
        """Fewest bytes of such an object, as far as its members' values are known."""
        size = sum(member.cost() for member in self._members.named if member.required)
        return size + 1 + (size == 0) if size < ENDLESS else ENDLESS

    def seal(self) -> None:
        """Forget, once all values are known, the members that cannot be written."""
        self._members.drop_empty()

    def can_close(self, seen: Progress) -> bool:
        """Whether `}` may follow."""
        required = self._members.required
        return bool(seen & required == required)

    def keys(self, seen: Progress) -> Leaf | None:
        """The keys that may follow."""
        try:
            return self._keys[seen]
        except KeyError:
            leaf = self._keys[seen] = self._find_keys(seen)
            return leaf

    def after_key(self, seen: Progress, label: int) -> tuple[Option, ...]:
        """The ways to go on behind a key."""
        return (Option(self._members.with_label(label).values[0], self._with(seen, label)),)

    def shortest(self, seen: Progress) -> int:
        """Fewest bytes that close the object from between two members."""
        size = sum(member.cost() for member in self._left(seen) if member.required)
        return size + 1 - (size > 0 and seen == 0)

    def _find_keys(self, seen: Progress) -> Leaf | None:
        labels = tuple(member.label for member in self._next(seen))
        return self._members.key_leaves.of(labels) if labels else None

    def _left(self, seen: int) -> Sequence[Member]:
        """The named members that may still come."""
        members = self._members
        if self._ordered:
            return members.named[max(seen.bit_length() - 1, 0) :]
        return [member for member in members.named if not seen & members.bits[member.label]]

    def _next(self, seen: int) -> Iterator[Member]:
        """The members that may come next, by their order and by what has been written."""
        for member in self._left(seen):
            yield member
            if self._ordered and member.required:
                return
        yield from self._members.free

    def _with(self, seen: int, label: int) -> int:
        """The bits behind one more member."""
        members = self._members
        bit = members.bits.get(label, 0)
        if self._ordered:
            return 2 * bit - 1 if bit else (2 << len(members.named)) - 1
        return seen | bit | 1


class ObjectProgress(NamedTuple):
    """The members of an object so far."""

    seen: int  # Bits of named members; see `RecordShape`
    written: int  # Members so far; counted no further than it matters, but at least to one
    pending: int  # Quotas, a bit each, that no member has satisfied yet
    used: frozenset[int] = frozenset()  # Numbers of the free keys that have been written, where that matters


class CountedObjectShape(RecordShape):
    """Objects that are completed only by the right number of members; progress is an `ObjectProgress`.

    A quota asks for at least one member with a key and a value of some kind. Wherever a member may come, what
    is still missing behind it can be written.

    Args:
        members: The members; their values by the quotas they satisfy.
        least, most: Fewest and most members; None is no bound.
        quotas: Number of quotas.
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
        super().__init__(members, ordered)
        self._memory = memory
        self._least = least
        self._most = most
        self._quotas = quotas
        self._sizes: dict[ObjectProgress, int] = {}

    def cost(self) -> int:
        """Fewest bytes of such an object, as far as its members' values are known."""
        size = self._completion(self.start())
        return size + 1 if size < ENDLESS else ENDLESS

    def start(self) -> ObjectProgress:
        """Progress behind `{`."""
        return ObjectProgress(0, 0, (1 << self._quotas) - 1)

    def can_close(self, now: ObjectProgress) -> bool:
        """Whether `}` may follow."""
        return not now.pending and now.written >= self._least and super().can_close(now.seen)

    def after_key(self, now: ObjectProgress, label: int) -> tuple[Option, ...]:
        """The ways to go on behind a key."""
        if self._memory is None:
            return self._options(now, self._members.with_label(label))
        return self._options(now, self._members.with_label(self._memory.label_of(label)), label)

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

    def _find_keys(self, now: ObjectProgress) -> Leaf | None:
        labels = tuple(member.label for member in self._next(now.seen) if self._options(now, member))
        if labels and self._memory is not None:
            return self._memory.leaf(labels, now.used)
        return self._members.key_leaves.of(labels) if labels else None

    def _key_sizes(self, member: Member, now: ObjectProgress, number: int) -> Iterable[int]:
        """Bytes of the shortest keys of a class that are left, colons included, at most so many."""
        if self._memory is not None:
            return self._memory.sizes(member.label, now.used, number)
        if member.supply is not None:
            number = min(number, member.supply)
        return repeat(member.size, number)

    def _behind(
        self, now: ObjectProgress, member: Member, satisfied: int, number: int | None
    ) -> ObjectProgress:
        used = now.used
        if member.name is None and number is not None:
            used = used | {number}
        written = now.written + 1
        if self._most is None:
            written = min(written, max(self._least, 1))
        return ObjectProgress(self._with(now.seen, member.label), written, now.pending & ~satisfied, used)

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
        for member in self._left(now.seen):
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
