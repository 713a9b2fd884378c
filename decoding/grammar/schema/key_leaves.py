"""The leaves of an object's keys: only those that may still come, with labels that say which member it is."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.spelling import spell_labelled
from decoding.grammar.schema.members import KeyLeaves


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
        classes: Sets of other keys with their labels, above those of names; names may be in them.
    """

    def __init__(self, leaves: Leaves, names: Sequence[str], classes: Sequence[tuple[Dfa, int]]) -> None:
        super().__init__()
        self._factory = leaves
        self._names = names
        self._classes = classes
        self._spelled: ByteDfa | None = None

    def _made(self, labels: tuple[int, ...]) -> Leaf:
        if labels[-1] < len(self._names):
            return self._factory.literal_keys(tuple((self._names[label], label) for label in labels))
        if self._spelled is None:
            named = [(Dfa.of_texts([name]), label) for label, name in enumerate(self._names)]
            self._spelled = spell_labelled([*named, *self._classes])
        return self._factory.keys(self._spelled, frozenset(labels))
