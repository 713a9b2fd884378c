"""What a scalar value or a key may be: a deterministic automaton over bytes, quotes included."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.vocabulary.token_node import TokenNode


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
