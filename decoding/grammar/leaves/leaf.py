"""Defines leaves, the deterministic automata over bytes of scalar values and keys, quotes included.

`Leaf` is the contract; `SparseLeaf` holds a few given texts; a `TitleSlotLeaf` takes its strings from a set
outside the schema, such as the titles of an index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from genret.decoding.bounded_cache import BoundedCache
from genret.decoding.grammar.token_trie import TokenNode

if TYPE_CHECKING:
    from genret.decoding.grammar.vocabulary import Vocabulary


class Exit(NamedTuple):
    """Tokens that end a leaf's text and go on behind it."""

    label: int  # Label of the ended text
    # Bytes that the tokens write behind the text, as a trie (`Vocabulary.rest`). Its root is the place right
    # behind the text and has no tokens itself.
    rest: TokenNode


class LeafTokens(NamedTuple):
    """The tokens that a leaf lets through from one of its states, below one node of the trie.

    Tokens all of whose bytes belong to the leaf, also those that end its text exactly, are in `few` or in
    `many`, never in both.
    """

    few: tuple[int, ...]  # Ids of at most `FEW_TOKENS` such tokens, ascending
    many: NDArray[np.uint32] | None  # Mask of them, as of `Vocabulary.packed`. Shape: (ceil(V / 32),), uint32
    # Tokens that write at least one byte of the leaf and then more than its text, by label, ascending.
    exits: tuple[Exit, ...]


FEW_TOKENS = 64
"""Most tokens that are listed; more come as a packed mask."""


class TokenWalk(NamedTuple):
    """The tokens and positions of the vocabulary's trie that a walk has met."""

    tokens: Sequence[int] | None  # Ids of the tokens that pass, in any order; None if `mask` holds them
    mask: NDArray[np.uint32] | None  # The same as a packed mask. Shape: (ceil(V / 32),), uint32
    exits: dict[int, list[int]]  # Positions with longer tokens at which a text has ended, by its label

    def leaf_tokens(self, vocabulary: Vocabulary) -> LeafTokens:
        """The result in the form that leaves return."""
        exits = tuple([Exit(label, vocabulary.rest(self.exits[label])) for label in sorted(self.exits)])
        if self.tokens is None:
            return LeafTokens((), self.mask, exits)
        if len(self.tokens) <= FEW_TOKENS:
            return LeafTokens(tuple(sorted(self.tokens)), None, exits)
        return LeafTokens((), vocabulary.packed(self.tokens), exits)


class Leaf(Protocol):
    """A regular language of byte strings. Equal languages should be one object: masks are kept by leaf.

    States are non-negative ints, 0 the start, possibly made on demand; -1 is "no such state". Every state can
    reach a final one (an automaton is trimmed). Safe to use from several threads.
    """

    @property
    def key(self) -> Hashable:
        """Equal for leaves of the same language with the same labels and state numbers."""

    @property
    def num_bytes(self) -> int:
        """Memory of the automaton, in bytes, as far as this leaf alone holds it."""

    @property
    def is_shared(self) -> bool:
        """Whether it belongs to no single grammar (all strings, all numbers, an index's titles)."""

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to; None if there are too many to list cheaply."""

    def label(self, state: int) -> int:
        """Label of the text written so far, 0 or more; -1 if it is no whole text.

        Labels of values are 0 unless the shape that asked for the leaf tells texts apart.
        """

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state; a final state that does not go on has ended."""

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node of the vocabulary's trie that the leaf lets through.

        If the state itself is final, tokens behind the ended text are not among them: the caller knows the
        end from `label`, and goes on with the node.

        Args:
            state: State of the leaf at the node.
            node: Bytes of a token so far; tokens that end at the node itself are left out.

        Returns:
            None if `edges` lists all bytes: tokens are then found by following them.
        """


# A dict with an entry or two, measured with tracemalloc.
_STATE_BYTES = 280


class SparseLeaf:
    """A labelled trie of byte strings (`Leaf`); its tokens are found by `edges`.

    Raises ValueError if there is no text, or an empty one.
    """

    def __init__(self, key: Hashable, texts: Mapping[bytes, int], is_shared: bool = False) -> None:
        if not texts or b"" in texts:
            raise ValueError("texts: expected at least one, and none that is empty")
        self.key = key
        self.is_shared = is_shared
        self._rows: list[dict[int, int]] = [{}]
        self._labels = [-1]
        for text, label in texts.items():
            state = 0
            for byte in text:
                after = self._rows[state].setdefault(byte, len(self._rows))
                if after == len(self._rows):
                    self._rows.append({})
                    self._labels.append(-1)
                state = after
            self._labels[state] = label

    @property
    def num_bytes(self) -> int:
        """Memory of the trie."""
        return _STATE_BYTES * len(self._rows)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        return self._rows[state].get(byte, -1)

    def edges(self, state: int) -> Mapping[int, int]:
        """All allowed bytes and the states they lead to; not to be changed."""
        return self._rows[state]

    def label(self, state: int) -> int:
        """Label of the text written so far, -1 if it is no whole text."""
        return self._labels[state]

    def goes_on(self, state: int) -> bool:
        """Whether any byte is allowed in the state."""
        return bool(self._rows[state])

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
                for byte, after in self._rows[state].items()
                if distance[after] == distance[state] - 1
            )
            written.append(byte)
        return bytes(written)

    @cached_property
    def _distance(self) -> list[int]:
        """Fewest bytes from each state to a final one; a state's successors have higher numbers."""
        distance = [0] * len(self._rows)
        for state in range(len(self._rows) - 1, -1, -1):
            if self._labels[state] < 0:
                distance[state] = 1 + min(distance[after] for after in self._rows[state].values())
        return distance


@dataclass(frozen=True, slots=True)
class TitleSlotName:
    """The set that a schema asks for."""

    index: str  # Name of the index, `x-genret-index`
    predicate: str | None = None  # Filter of its entities as it was written, `x-genret-filter`; None: all


@runtime_checkable
class TitleSlotLeaf(Leaf, Protocol):
    """A leaf whose texts are the members of a set."""

    @property
    def name(self) -> TitleSlotName:
        """The set that the schema asked for."""

    @property
    def is_empty(self) -> bool:
        """Whether the set has no member; then nothing else may be asked of the leaf."""

    def members(self, state: int) -> tuple[int, ...]:
        """Numbers of the members that a final state stands for, ascending; for an index, entities."""


TitleSlotOpener = Callable[[TitleSlotName], TitleSlotLeaf]
"""Finds the sets that schemas name, the same object for the same name.

Raises TitleSlotError, whose message says what is missing or unreadable.
"""


class TitleSlotError(Exception):
    """A schema names a set that does not exist, or a filter that cannot be read: the keyword at fault."""

    def __init__(self, message: str, keyword: str = "x-genret-index") -> None:
        super().__init__(message)
        self.keyword = keyword


# A dict's entry, its key, and a named tuple with a few numbers, measured with tracemalloc.
_ENTRY_BYTES = 450
_TOKEN_BYTES = 36
_EXIT_BYTES = 120


class TokenCache(BoundedCache[Hashable, LeafTokens]):
    """Keeps the results of `Leaf.tokens` by state and place in the trie, in about `max_bytes`.

    Every mask reads it, so reading takes no lock and moves nothing: the oldest entries leave first. The last
    one stays whatever its size.
    """

    __slots__ = ()

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        super().__init__(max_bytes, _size, max_value_size=math.inf)

    get = BoundedCache.peek


def _size(place: Hashable, tokens: LeafTokens) -> int:
    size = _ENTRY_BYTES + _TOKEN_BYTES * len(tokens.few)
    size += sum(_EXIT_BYTES + 40 * len(exit.rest.positions) for exit in tokens.exits)
    return size + (tokens.many.nbytes if tokens.many is not None else 0)
