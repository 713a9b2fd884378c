"""What the members of one kind of object are: its keys, their values, and what writing them costs."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.shapes import ValueNode

ENDLESS = 1 << 40
"""Bytes of what cannot be written at all; sums of it stay above every real size."""


class Member:
    """Members with one key, or with any key of one class.

    Attributes:
        label: Of its keys in the shape's key leaves.
        name: The key; None for a class.
        required: Whether it must be there; never for a class.
        supply: How many different keys it has; None is no bound.
        size: Bytes of its shortest key, quotes and colon included.
        values: What its value may be, by the quotas (a bit mask) that the value is to satisfy.
    """

    __slots__ = ("label", "name", "required", "size", "supply", "values")

    def __init__(
        self,
        label: int,
        name: str | None,
        required: bool,
        supply: int | None,
        size: int,
        values: dict[int, ValueNode],
    ) -> None:
        self.label = label
        self.name = name
        self.required = required
        self.supply = supply
        self.size = size
        self.values = values

    def cost(self, quotas: int = 0) -> int:
        """Fewest bytes of such a member whose value satisfies some quotas, a comma included."""
        return self.size + 1 + self.values[quotas].shortest

    def drop_empty(self) -> bool:
        """Forget values that cannot be written; whether one is left."""
        self.values = {quotas: node for quotas, node in self.values.items() if node.shortest < ENDLESS}
        return 0 in self.values


class KeyLeaves:
    """The key leaves of one shape, one object for each choice of labels.

    Subclasses make them.
    """

    def __init__(self) -> None:
        self._leaves: dict[tuple[int, ...], Leaf] = {}

    def of(self, labels: tuple[int, ...]) -> Leaf:
        """The leaf of all keys with these labels, ascending; at least one."""
        leaf = self._leaves.get(labels)
        if leaf is None:
            leaf = self._leaves[labels] = self._made(labels)
        return leaf

    def prepare(self) -> None:
        """Make what may turn out too large, so that it is noticed while the schema is compiled.

        Raises:
            AutomatonLimitError: it is too large.
        """

    def _made(self, labels: tuple[int, ...]) -> Leaf:
        raise NotImplementedError


class Members:
    """All members of one kind of object.

    Args:
        named: With one key each, in the schema's order; those that may not be there left out.
        free: Classes of other keys.
        key_leaves: Makes the leaves of keys.
    """

    __slots__ = ("_by_label", "free", "key_leaves", "named")

    def __init__(self, named: Sequence[Member], free: Sequence[Member], key_leaves: KeyLeaves) -> None:
        self.named = list(named)
        self.free = list(free)
        self.key_leaves = key_leaves
        self._by_label = {member.label: member for member in (*named, *free)}

    def drop_empty(self) -> None:
        """Forget members whose values cannot be written: their keys are forbidden."""
        self.named = [member for member in self.named if member.drop_empty()]
        self.free = [member for member in self.free if member.drop_empty()]
        self._by_label = {member.label: member for member in (*self.named, *self.free)}

    def with_label(self, label: int) -> Member:
        """The member whose keys have a label."""
        return self._by_label[label]
