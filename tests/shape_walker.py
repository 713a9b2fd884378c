"""Walks shapes with values: whether a compiled schema allows them, and whether it can always be completed."""

from __future__ import annotations

import json
import random
from collections.abc import Hashable, Iterator
from decimal import Decimal
from itertools import permutations, product
from typing import Any

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.leaves.distinct_leaf import DistinctLeaf
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.schema.formula_table import FormulaTable
from genret.decoding.grammar.schema.value_nodes import compile_value
from genret.decoding.grammar.shapes import ArrayShape, ObjectShape, Option, ValueNode
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import BYTES, label_of, shortest_ways, steps_of

_LEAVES = Leaves(Vocabulary([*BYTES, None], 256, 257))


def node_of(schema: Any, options: GrammarOptions) -> ValueNode:
    """The node that a schema is compiled to, over single bytes, which can write everything."""
    return compile_value(FormulaTable(schema, options), options, _LEAVES)


def spelled(value: object) -> bytes:
    """The JSON of a value, nothing escaped that need not be, and numbers without exponents."""
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f").encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def texts_of(value: object) -> list[bytes]:
    """The JSON of a value with the members of its objects in every order, with blanks and without."""
    return [text for blank in (b"", b" ") for text in _texts(value, blank)]


def _texts(value: object, blank: bytes) -> list[bytes]:
    if isinstance(value, list):
        choices = product(*[_texts(item, blank) for item in value])
        return [b"[" + (b"," + blank).join(items) + b"]" for items in choices]
    if not isinstance(value, dict):
        return [spelled(value)]
    members = [
        [spelled(key) + b":" + blank + text for text in _texts(inner, blank)] for key, inner in value.items()
    ]
    orders = [order for choice in product(*members) for order in permutations(choice)]
    return [b"{" + (b"," + blank).join(order) + b"}" for order in orders]


class ShapeWalker:
    """Checks values against nodes.

    Args:
        any_order: Whether the keys of objects may be reordered to fit.
    """

    def __init__(self, any_order: bool) -> None:
        self._any_order = any_order

    def allows(self, node: ValueNode, value: object) -> bool:
        """Whether the node allows the value."""
        return bool(self.labels(node, value))

    def labels(self, node: ValueNode, value: object) -> set[int]:
        """Labels of the ways in which a node allows a value; 0 for containers that it follows itself.

        Where items must differ, containers are texts of leaves, with their members in any one order.
        """
        if isinstance(value, dict) and any(self._object(shape, value) for shape in node.objects):
            return {0}
        if isinstance(value, list) and any(self._array(shape, value) for shape in node.arrays):
            return {0}
        texts = [spelled(value)]
        leaves = [leaf for leaf in node.leaves if leaf.step(0, texts[0][0]) >= 0]
        if leaves and isinstance(value, dict | list):
            texts = texts_of(value)
        return {label for leaf in leaves for text in texts if (label := label_of(leaf, text)) >= 0}

    def _object(self, shape: ObjectShape, members: dict[str, object]) -> bool:
        reached: set[tuple[frozenset[str], Hashable]] = {(frozenset(), shape.start())}
        labels: dict[tuple[int, str], set[int]] = {}
        for name in members:
            following = set()
            for done, progress in reached:
                for key in members.keys() - done if self._any_order else [name]:
                    for after in self._after_member(shape, progress, key, members[key], labels):
                        following.add((done | {key}, after))
            reached = following
        return any(shape.can_close(progress) for _, progress in reached)

    def _after_member(
        self,
        shape: ObjectShape,
        progress: Hashable,
        key: str,
        value: object,
        known: dict[tuple[int, str], set[int]],
    ) -> Iterator[Hashable]:
        leaf = shape.keys(progress)
        label = -1 if leaf is None else label_of(leaf, spelled(key))
        if label < 0:
            return
        options = shape.after_key(progress, label)
        assert options, "a key without options"
        for option in options:
            place = (id(option.value), key)
            if place not in known:
                known[place] = self.labels(option.value, value)
            for value_label in known[place]:
                yield shape.after_value(option.progress, value_label)

    def _array(self, shape: ArrayShape, items: list[object]) -> bool:
        reached = {shape.start()}
        for item in items:
            reached = {
                shape.after_value(option.progress, label)
                for progress in reached
                for option in shape.items(progress)
                for label in self.labels(option.value, item)
            }
        return any(shape.can_close(progress) for progress in reached)


class RandomWriter:
    """Writes random values of nodes, which shows that every place can be left again.

    Args:
        rng: Chooses.
        size: About how many bytes may be written before only what ends soonest is chosen.
    """

    def __init__(self, rng: random.Random, size: int) -> None:
        self._rng = rng
        self._left = size

    def value(self, node: ValueNode) -> tuple[bytes, int]:
        """A random value, and its label."""
        ways: list[Leaf | ArrayShape | ObjectShape] = [*node.leaves, *node.arrays, *node.objects]
        assert ways, "an empty node"
        if self._left <= 0:
            ways = [way for way in ways if _size(way) == node.shortest]
            assert ways, f"nothing is as short as {node.shortest}"
        way = self._rng.choice(ways)
        if hasattr(way, "keys"):
            return self._object(way), 0
        if hasattr(way, "items"):
            return self._array(way), 0
        text = self.scalar(way)
        return text, label_of(way, text)

    def scalar(self, leaf: Leaf) -> bytes:
        """A random text of a leaf."""
        state, text = 0, bytearray()
        while True:
            if leaf.label(state) >= 0 and (not leaf.goes_on(state) or self._rng.random() < 0.3):
                break
            edges = steps_of(leaf, state)
            if len(text) > 8 or self._left <= 0:
                text += leaf.shortest(state)
                break
            byte = self._rng.choice(list(edges))
            text.append(byte)
            state = edges[byte]
        self._left -= len(text)
        return bytes(text)

    def _object(self, shape: ObjectShape) -> bytes:
        written: list[bytes] = []
        progress = shape.start()
        while True:
            self._left -= 1
            keys = shape.keys(progress)
            if shape.can_close(progress):
                assert shape.shortest(progress) == 1
                if keys is None or self._left <= 0 or self._rng.random() < 0.3:
                    return b"{" + b",".join(written) + b"}"
            assert keys is not None, "an object that cannot go on"
            if self._left <= 0:
                key, option = self._shortest_member(shape, progress, keys, bool(written))
            else:
                key = self.scalar(keys)
                option = self._rng.choice(shape.after_key(progress, label_of(keys, key)))
            text, label = self.value(option.value)
            progress = shape.after_value(option.progress, label)
            written.append(key + b":" + text)

    def _shortest_member(
        self, shape: ObjectShape, progress: Hashable, keys: Leaf, comma: bool
    ) -> tuple[bytes, Option]:
        """The member that keeps the promise of `shortest`."""
        sizes = [
            (comma + len(key) + 1 + option.value.shortest + shape.shortest(option.progress), key, option)
            for label, key in shortest_texts(keys).items()
            for option in shape.after_key(progress, label)
        ]
        size, key, option = min(sizes, key=lambda way: way[0])
        if not isinstance(keys, DistinctLeaf):  # of those not all keys have been tried
            assert size == shape.shortest(progress), "not the fewest bytes"
        return key, option

    def _array(self, shape: ArrayShape) -> bytes:
        written: list[bytes] = []
        progress = shape.start()
        while True:
            self._left -= 1
            options = shape.items(progress)
            if shape.can_close(progress):
                assert shape.shortest(progress) == 1
                if not options or self._left <= 0 or self._rng.random() < 0.3:
                    return b"[" + b",".join(written) + b"]"
            assert options, "an array that cannot go on"
            option = self._rng.choice(options)
            if self._left <= 0:
                sizes = [bool(written) + size_of_rest(shape, way) for way in options]
                assert min(sizes) == shape.shortest(progress), "not the fewest bytes"
                option = options[sizes.index(min(sizes))]
            text, label = self.value(option.value)
            progress = shape.after_value(option.progress, label)
            written.append(text)


def size_of_rest(shape: ArrayShape, option: Option) -> int:
    """Fewest bytes of a value and of what then closes the array, which may depend on the value."""
    sizes = [
        len(text) + shape.shortest(shape.after_value(option.progress, label))
        for leaf in option.value.leaves
        for label, text in shortest_texts(leaf).items()
    ]
    if option.value.arrays or option.value.objects:
        sizes.append(option.value.shortest + shape.shortest(option.progress))
    return min(sizes)


def shortest_texts(leaf: Leaf) -> dict[int, bytes]:
    """A shortest text of each label; of a leaf that tells texts apart, of each kind of text, and of all."""
    if isinstance(leaf, DistinctLeaf):
        texts = [*shortest_texts(leaf.writings.base).values(), leaf.shortest(0)]
        return {label: text for text in texts if (label := label_of(leaf, text)) >= 0}
    found: dict[int, bytes] = {}
    for state, text in shortest_ways(leaf).items():
        if leaf.label(state) >= 0:
            found.setdefault(leaf.label(state), text)
    return found


def _size(way: Leaf | ArrayShape | ObjectShape) -> int:
    if hasattr(way, "can_close"):
        return way.shortest(way.start()) + 1
    return len(way.shortest(0))


def random_value(node: ValueNode, rng: random.Random, size: int = 300) -> object:
    """A random value of a node, read back from the JSON that was written."""
    return json.loads(RandomWriter(rng, size).value(node)[0])
