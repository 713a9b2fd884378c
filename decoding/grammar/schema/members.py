"""Describes the members of one kind of object: their keys, their values, and what writing them costs.

The leaves of keys allow only those keys that may still come, with labels that say which member each belongs
to. Keys are automata over bytes: some are given by name, others by sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring  # what json.dumps(ensure_ascii=False) calls
from weakref import WeakValueDictionary

from genret.decoding.bounded_cache import Remembered
from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.leaves.distinct_leaf import Texts
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.json_spelling import spell_labelled
from genret.decoding.grammar.regular.minimise import joined
from genret.decoding.grammar.regular.product import UNION, pairs
from genret.decoding.grammar.shapes import ENDLESS, ValueNode


@dataclass(slots=True, eq=False)
class Member:
    """Members with one key, or with any key of one class."""

    label: int  # The label of its keys in the shape's key leaves
    name: str | None  # The key; None for a class
    required: bool  # Whether it must be there; never for a class
    supply: int | None  # Number of its different keys; None is no bound
    size: int  # Bytes of its shortest key, quotes and colon included
    values: dict[int, ValueNode]  # Its values, by the quotas (a bit mask) that these are to satisfy

    def cost(self, quotas: int = 0) -> int:
        """Fewest bytes of such a member whose value satisfies these quotas, a comma included."""
        return self.size + 1 + self.values[quotas].shortest

    def drop_empty(self) -> bool:
        """Forget values that cannot be written; return whether one is left."""
        self.values = {quotas: node for quotas, node in self.values.items() if node.shortest < ENDLESS}
        return 0 in self.values


class KeyLeaves:
    """The key leaves of one shape, one object for each choice of labels.

    A key given by name has its place as label; behind these come the labels of the disjoint sets of other
    keys, `classes`, which names may be in. Raises AutomatonLimitError if their automaton is too large.
    """

    def __init__(self, leaves: Leaves, names: Sequence[str], classes: tuple[Dfa, ...]) -> None:
        self._factory = leaves
        self._names = names
        self._classes = classes
        self._leaves: dict[tuple[int, ...], Leaf] = {}
        self._spelled: _SpelledKeys | None = None
        if classes:
            spelled_classes(classes)  # kept; here, so that its size is noticed while the schema is compiled

    def of(self, labels: tuple[int, ...]) -> Leaf:
        """The leaf of all keys with these labels, ascending; at least one."""
        leaf = self._leaves.get(labels)
        if leaf is None:
            leaf = self._leaves[labels] = self._made(labels)
        return leaf

    def label_of(self, key: bytes) -> int:
        """The label of a key, which is spelled as in an answer; -1: no key of the object."""
        return self._automaton().label_of(key)

    def _made(self, labels: tuple[int, ...]) -> Leaf:
        names = self._names
        if labels[-1] < len(names):
            return self._factory.literal_keys(tuple((names[label], label) for label in labels))
        return self._factory.keys(self._automaton(), frozenset(labels))

    def _automaton(self) -> ByteDfa:
        if self._spelled is None:
            key = (tuple(self._names), self._classes)
            spelled = _SPELLED.get(key)
            if spelled is None:
                spelled = _SPELLED[key] = _SpelledKeys(*key)
            self._spelled = spelled
        return self._spelled.automaton


class Members:
    """All members of one kind of object: `named` in the schema's order, `free` with classes of other keys."""

    __slots__ = ("_by_label", "bits", "free", "key_leaves", "named", "required")

    def __init__(self, named: Sequence[Member], free: Sequence[Member], key_leaves: KeyLeaves) -> None:
        self.named = list(named)
        self.free = list(free)
        self.key_leaves = key_leaves
        self._index()

    def drop_empty(self) -> None:
        """Forget members whose values cannot be written: their keys are forbidden."""
        self.named = [member for member in self.named if member.drop_empty()]
        self.free = [member for member in self.free if member.drop_empty()]
        self._index()

    def _index(self) -> None:
        self._by_label = {member.label: member for member in (*self.named, *self.free)}
        # A bit for each named member, by label, from 2 on, and the bits of those that must be there.
        self.bits = {member.label: 2 << n for n, member in enumerate(self.named)}
        self.required = sum(self.bits[member.label] for member in self.named if member.required)

    def with_label(self, label: int) -> Member:
        """The member whose keys have a label."""
        return self._by_label[label]


class _SpelledKeys:
    """The automaton of an object's keys, as long as some object has them."""

    __slots__ = ("__weakref__", "automaton")

    def __init__(self, names: Sequence[str], classes: tuple[Dfa, ...]) -> None:
        texts = [encode_basestring(name).encode() for name in names]
        self.automaton: ByteDfa = spelled_keys(texts, spelled_classes(classes))


# Alternatives of one schema often have the same keys.
_SPELLED: WeakValueDictionary[tuple[tuple[str, ...], tuple[Dfa, ...]], _SpelledKeys] = WeakValueDictionary()


class KeyMemory:
    """Remembers which keys have been written, so that none is written twice: labels are numbers of texts."""

    def __init__(self, leaves: Leaves, key_leaves: KeyLeaves) -> None:
        self._factory = leaves
        self._key_leaves = key_leaves
        self._texts = Texts()
        self._sizes: dict[tuple[int, frozenset[int], int], list[int]] = {}

    def leaf(self, labels: tuple[int, ...], used: frozenset[int]) -> Leaf | None:
        """The keys with these labels but for those in use; None: there is none."""
        keys = self._factory.remembering(self._key_leaves.of(labels), self._texts)
        return self._factory.excluding(keys, used) if used else keys

    def label_of(self, number: int) -> int:
        """The label, in the object, of a key that has been written."""
        return self._key_leaves.label_of(self._texts.bytes_of(number))

    def first(self, label: int, used: frozenset[int]) -> int | None:
        """The number of a shortest key of a class that is left; None: there is none."""
        leaf = self.leaf((label,), used)
        return None if leaf is None else self._texts.number(self._texts.place_of(leaf.shortest(0)))

    def sizes(self, label: int, used: frozenset[int], number: int) -> list[int]:
        """Bytes of the shortest keys of a class that are left, colons included, at most `number` of them."""
        known = self._sizes.get((label, used, number))
        if known is None:
            known = []
            taken = used
            while len(known) < number:
                check_time()
                leaf = self.leaf((label,), taken)
                if leaf is None:
                    break
                text = leaf.shortest(0)
                known.append(len(text) + 1)
                taken = taken | {self._texts.number(self._texts.place_of(text))}
            self._sizes[label, used, number] = known
        return known


def _spell(classes: tuple[Dfa, ...]) -> ByteDfa:
    return spell_labelled([(keys, label) for label, keys in enumerate(classes)])


def _size(spelled: ByteDfa, classes: tuple[Dfa, ...]) -> int:
    return spelled.num_bytes + sum(keys.num_bytes for keys in classes)


spelled_classes = Remembered(_spell, _size)
"""The keys of a tuple of disjoint sets in their spelling, labelled by the number of their set."""


def spelled_keys(names: Sequence[bytes], classes: ByteDfa) -> ByteDfa:
    """The automaton of keys given by name, labelled by their number, and of others, labelled above those.

    Nothing has to be minimised: every prefix of a name leads to a label of its own. Names are spelled and
    different; those that are in `classes`, from `spelled_classes`, keep the label of the name.
    """
    if not names:
        return classes
    named = ByteDfa.literals((name, label) for label, name in enumerate(names))
    others = [label + len(names) if label >= 0 else -1 for label in classes.ends]
    rows, labels = pairs((named.rows, named.ends), (classes.rows, others), UNION)
    return ByteDfa(list(map(joined, rows)), labels)
