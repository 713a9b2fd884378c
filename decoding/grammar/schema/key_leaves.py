"""The leaves of an object's keys: only those that may still come, with labels that say which member it is."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring  # what json.dumps(ensure_ascii=False) calls
from weakref import WeakValueDictionary

from decoding.grammar.budget import check_time
from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.leaves.texts import Texts
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.schema.key_spelling import spelled_classes, spelled_keys
from decoding.grammar.schema.members import KeyLeaves


class _SpelledKeys:
    """The automaton of an object's keys, as long as some object has them."""

    __slots__ = ("__weakref__", "automaton")

    def __init__(self, names: Sequence[str], classes: tuple[Dfa, ...]) -> None:
        texts = [encode_basestring(name).encode() for name in names]
        self.automaton: ByteDfa = spelled_keys(texts, spelled_classes(classes))


# Alternatives of one schema often have the same keys.
_SPELLED: WeakValueDictionary[tuple[tuple[str, ...], tuple[Dfa, ...]], _SpelledKeys] = WeakValueDictionary()


class NamedKeyLeaves(KeyLeaves):
    """Keys that are all given by name.

    Args:
        leaves: Of the vocabulary.
        names: The keys; a key's label is its place.
    """

    def __init__(self, leaves: Leaves, names: Sequence[str]) -> None:
        super().__init__()
        self._factory = leaves
        self._names = names

    def _made(self, labels: tuple[int, ...]) -> Leaf:
        names = self._names
        return self._factory.literal_keys(tuple((names[label], label) for label in labels))


class FreeKeyLeaves(KeyLeaves):
    """Keys some of which are given by sets.

    Args:
        leaves: Of the vocabulary.
        names: Keys given by name; a key's label is its place.
        classes: Disjoint sets of other keys, labelled behind the names; names may be in them.
    """

    def __init__(self, leaves: Leaves, names: Sequence[str], classes: tuple[Dfa, ...]) -> None:
        super().__init__()
        self._factory = leaves
        self._names = names
        self._classes = classes
        self._spelled: _SpelledKeys | None = None

    def prepare(self) -> None:
        """Make what may turn out too large."""
        spelled_classes(self._classes)

    def _made(self, labels: tuple[int, ...]) -> Leaf:
        names = self._names
        if labels[-1] < len(names):
            return self._factory.literal_keys(tuple((names[label], label) for label in labels))
        return self._factory.keys(self._automaton(), frozenset(labels))

    def label_of(self, key: bytes) -> int:
        """The label of a key, which is spelled as in an answer; -1: no key of the object."""
        return self._automaton().label_of(key)

    def _automaton(self) -> ByteDfa:
        if self._spelled is None:
            key = (tuple(self._names), self._classes)
            spelled = _SPELLED.get(key)
            if spelled is None:
                spelled = _SPELLED[key] = _SpelledKeys(*key)
            self._spelled = spelled
        return self._spelled.automaton


class KeyMemory:
    """Keys that have been written are not written again: labels are numbers of texts.

    Args:
        leaves: Of the vocabulary.
        key_leaves: Of the object.
    """

    def __init__(self, leaves: Leaves, key_leaves: FreeKeyLeaves) -> None:
        self._factory = leaves
        self._key_leaves = key_leaves
        self._texts = Texts()
        self._sizes: dict[tuple[int, frozenset[int], int], list[int]] = {}

    def leaf(self, labels: tuple[int, ...], used: frozenset[int]) -> Leaf | None:
        """Keys with certain labels but for those in use; None: there is none."""
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
        """Bytes of the shortest keys of a class that are left, colons included, at most so many."""
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
