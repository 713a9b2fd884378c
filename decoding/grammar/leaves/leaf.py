"""Defines leaves, the deterministic automata over bytes of scalar values and keys, quotes included.

`Leaf` is the contract. `SparseLeaf` is the leaf of a few given texts; a `TitleSlotLeaf` takes its strings
from a set outside the schema, such as the titles of an index, which a `TitleSlotOpener` finds by name.
`TokenCache` keeps the tokens that leaves have found.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from decoding.bounded_cache import BoundedCache
from decoding.grammar.token_trie import TokenNode


class Exit(NamedTuple):
    """Tokens that end a leaf's text and go on behind it.

    Attributes:
        label: Label of the text that has ended.
        rest: What the tokens write behind it, as a trie of its own: `Vocabulary.rest`. Its root is the place
            right behind the text and has no tokens itself.
    """

    label: int
    rest: TokenNode


class LeafTokens(NamedTuple):
    """The tokens that a leaf lets through from one of its states, below one node of the trie.

    All of whose bytes belong to the leaf, those that end its text exactly among them, are in `few` or in
    `many`, never in both.

    Attributes:
        few: Ids of such tokens, ascending, where they are few (at most `FEW_TOKENS`).
        many: A packed mask of them where they are many, laid out as `Vocabulary.empty_mask`; read-only.
            Shape: (ceil(V / 32),), uint32.
        exits: Tokens that write at least one byte of the leaf and then more than its text, by the label
            it ends with; at most one exit for a label, ascending.
    """

    few: tuple[int, ...]
    many: NDArray[np.uint32] | None
    exits: tuple[Exit, ...]


# So many tokens are set bit by bit; more come as a packed mask.
FEW_TOKENS = 64


class Leaf(Protocol):
    """A regular language of byte strings. Equal languages should be one object: masks are kept by leaf.

    States are non-negative ints, 0 the start, possibly made on demand; -1 is "no such state". Every state
    can reach a final one (an automaton is trimmed). Safe to use from several threads.
    """

    @property
    def key(self) -> Hashable:
        """Equal for leaves that are the same language with the same labels and the same state numbers."""

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton itself, in bytes, as far as this leaf alone holds it."""

    @property
    def is_shared(self) -> bool:
        """Whether it belongs to no single grammar (all strings, all numbers, an index's titles)."""

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to; None where there are too many to list cheaply."""

    def label(self, state: int) -> int:
        """What the text written so far is: 0 or more where it is a whole text, -1 where it is not.

        Labels of values are 0 unless the shape that asked for the leaf wants to know which text it was.
        """

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state; a final state that does not go on has ended."""

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node of the vocabulary's trie that the leaf lets through.

        Where the state itself is final, what may follow the text that has already ended is not among them:
        the caller knows that from `label`, and goes on with the node.

        Args:
            state: Where the leaf stands when the node has been reached.
            node: The bytes of a token so far; tokens ending at the node itself are not meant.

        Returns:
            None where `edges` lists all bytes, and the tokens are to be found by following them.
        """


# A dict with an entry or two, measured with tracemalloc.
_STATE_BYTES = 280


class SparseLeaf:
    """A labelled trie of byte strings (`decoding.grammar.leaves.leaf.Leaf`); its tokens are found by `edges`.

    Args:
        key: Equal for equal languages with equal labels.
        texts: Byte strings with their labels; at least one, none of them empty or given twice.
        is_shared: Whether it belongs to no single grammar.

    Attributes:
        rows: By state, the bytes that may follow and the states they lead to; not to be changed.
        labels: By state, that of the text that ends there, -1 where none does; not to be changed.

    Raises:
        ValueError: there is no text, an empty one, or one twice with different labels.
    """

    def __init__(self, key: Hashable, texts: Mapping[bytes, int], is_shared: bool = False) -> None:
        self.key = key
        self.is_shared = is_shared
        edges: list[dict[int, int]] = [{}]
        labels = [-1]
        for text, label in texts.items():
            state = 0
            for byte in text:
                row = edges[state]
                after = row.get(byte, -1)
                if after < 0:
                    after = row[byte] = len(edges)
                    edges.append({})
                    labels.append(-1)
                state = after
            labels[state] = label
        if not texts or labels[0] >= 0:
            raise ValueError("texts: expected at least one, and none that is empty")
        self.rows = edges
        self.labels = labels

    @property
    def num_bytes(self) -> int:
        """Memory of the trie."""
        return _STATE_BYTES * len(self.rows)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        return self.rows[state].get(byte, -1)

    def edges(self, state: int) -> Mapping[int, int]:
        """All allowed bytes and the states they lead to."""
        return self.rows[state]

    def label(self, state: int) -> int:
        """What the text written so far is, -1 where it is not a whole text."""
        return self.labels[state]

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return bool(self.rows[state])

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """None: `edges` lists all bytes of every state."""
        return None

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""
        written = bytearray()
        distance = self._distance
        while distance[state]:
            byte, state = min(
                (byte, after)
                for byte, after in self.rows[state].items()
                if distance[after] == distance[state] - 1
            )
            written.append(byte)
        return bytes(written)

    @cached_property
    def _distance(self) -> list[int]:
        """Fewest bytes from each state to a final one; a state's successors have higher numbers."""
        distance = [0] * len(self.rows)
        for state in range(len(self.rows) - 1, -1, -1):
            if self.labels[state] < 0:
                distance[state] = 1 + min(distance[after] for after in self.rows[state].values())
        return distance


@dataclass(frozen=True, slots=True)
class TitleSlotName:
    """Which set a schema asks for.

    Attributes:
        index: `x-genret-index`: name of the index.
        predicate: `x-genret-filter`: which of its entities, as the filter was written; None: all.
    """

    index: str
    predicate: str | None = None


@runtime_checkable
class TitleSlotLeaf(Leaf, Protocol):
    """A leaf whose texts are the members of a set."""

    @property
    def name(self) -> TitleSlotName:
        """What the schema asked for."""

    @property
    def is_empty(self) -> bool:
        """Whether the set has no member; then nothing else may be asked of the leaf."""

    def members(self, state: int) -> tuple[int, ...]:
        """Numbers of the members that a final state stands for, ascending; of an index: its entities."""


class TitleSlotOpener(Protocol):
    """Knows the sets that schemas may name."""

    def __call__(self, name: TitleSlotName) -> TitleSlotLeaf:
        """Return the leaf of a set; the same object for the same name.

        Raises:
            HoleError: there is no such set, or the filter cannot be read; the message says which and why.
        """


class TitleSlotError(Exception):
    """A schema names a set that is not there, or a filter that cannot be read.

    Args:
        message: Which, and why.
        keyword: What is wrong: `x-genret-index` or `x-genret-filter`.
    """

    def __init__(self, message: str, keyword: str = "x-genret-index") -> None:
        super().__init__(message)
        self.keyword = keyword


# A dict's entry, its key, and a named tuple with a few numbers, measured with tracemalloc.
_ENTRY_BYTES = 450
_TOKEN_BYTES = 36
_EXIT_BYTES = 120


class TokenCache(BoundedCache[Hashable, LeafTokens]):
    """What `Leaf.tokens` has found, by state and place in the trie.

    Every mask reads it. Reading therefore takes no lock and moves nothing: the oldest entries leave first.

    Args:
        max_bytes: Most memory of all entries, about; the last one stays whatever its size.
    """

    __slots__ = ()

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        super().__init__(max_bytes, _size, max_value_size=math.inf)

    @property
    def num_bytes(self) -> int:
        """Memory of all entries, about."""
        return self.size

    def get(self, place: Hashable) -> LeafTokens | None:
        """Return what was put there; counts nothing."""
        entry = self._entries.get(place)
        return None if entry is None else entry[0]


def _size(place: Hashable, tokens: LeafTokens) -> int:
    """Memory of one entry, the nodes behind ended texts included."""
    size = _ENTRY_BYTES + _TOKEN_BYTES * len(tokens.few)
    size += sum(_EXIT_BYTES + 40 * len(exit.rest.positions) for exit in tokens.exits)
    return size + (tokens.many.nbytes if tokens.many is not None else 0)
