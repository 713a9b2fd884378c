"""The leaves of an object's keys: only those that may still come, with labels that say which member it is."""

from __future__ import annotations

import json
from collections.abc import Sequence

from decoding.grammar.leaves.factory import Leaves
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.schema.key_spelling import spelled_classes, spelled_keys
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
        classes: Disjoint sets of other keys, labelled behind the names; names may be in them.
    """

    def __init__(self, leaves: Leaves, names: Sequence[str], classes: tuple[Dfa, ...]) -> None:
        super().__init__()
        self._factory = leaves
        self._names = names
        self._classes = classes
        self._spelled: ByteDfa | None = None

    def prepare(self) -> None:
        """Make what may turn out too large."""
        spelled_classes(self._classes)

    def _made(self, labels: tuple[int, ...]) -> Leaf:
        names = self._names
        if labels[-1] < len(names):
            return self._factory.literal_keys(tuple((names[label], label) for label in labels))
        if self._spelled is None:
            texts = [json.dumps(name, ensure_ascii=False).encode() for name in names]
            self._spelled = spelled_keys(texts, spelled_classes(self._classes))
        return self._factory.keys(self._spelled, frozenset(labels))
