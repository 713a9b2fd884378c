"""What a scalar value or a key may be: a deterministic automaton over bytes, quotes included."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol

from decoding.grammar.vocabulary.token_node import TokenNode


class Exit(NamedTuple):
    """Tokens that end a leaf's text and go on behind it.

    Attributes:
        label: Label of the text that has ended.
        rest: What the tokens write behind it, as a trie of its own; its root is the place right behind the
            text and has no tokens itself.
    """

    label: int
    rest: TokenNode


class LeafTokens(NamedTuple):
    """The tokens that a leaf lets through from one of its states.

    Attributes:
        inside: Tokens all of whose bytes belong to the leaf, ascending; those that end the text exactly are
            among them. Shape: (n,), int32.
        exits: Tokens that write more than the leaf's text, by the label it ends with.
    """

    inside: tuple[int, ...]
    exits: tuple[Exit, ...]


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

        Args:
            state: Where the leaf stands when the node has been reached.
            node: The bytes of a token so far; tokens ending at the node itself are not meant.

        Returns:
            None where `edges` lists all bytes, and the tokens are to be found by following them.
        """
