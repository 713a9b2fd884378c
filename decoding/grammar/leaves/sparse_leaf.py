"""A leaf over a few given byte strings: literal keys, short enums, true, false, null."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property

from decoding.grammar.leaves.leaf import LeafTokens
from decoding.grammar.vocabulary.token_node import TokenNode

# A dict with an entry or two, measured with tracemalloc.
_STATE_BYTES = 280
_NUMBER_STARTS = frozenset(b"-0123456789")


class SparseLeaf:
    """A labelled trie of byte strings (`decoding.grammar.leaves.leaf.Leaf`); its tokens are found by `edges`.

    Args:
        key: Equal for equal languages with equal labels.
        texts: Byte strings with their labels; at least one, none of them empty or given twice.
        is_shared: Whether it belongs to no single grammar.

    Attributes:
        rows: By state, the bytes that may follow and the states they lead to; not to be changed.
        labels: By state, that of the text that ends there, -1 where none does; not to be changed.
        has_numbers: Whether some text may be a number, by its first byte.
        only: The text, where there is one; its states are then the numbers of bytes that lead to them.

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
        self.has_numbers = not _NUMBER_STARTS.isdisjoint(edges[0])
        self.only = next(iter(texts)) if len(texts) == 1 else None

    @property
    def num_bytes(self) -> int:
        """Memory of the trie."""
        return _STATE_BYTES * len(self.rows)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        return self.rows[state].get(byte, -1)

    def within(self, state: int, text: bytes) -> int:
        """The state after bytes that end within the only text; -1 where they do not, or there are more."""
        only = self.only
        if only is None or not only.startswith(text, state):
            return -1
        after = state + len(text)
        return after if after < len(only) else -1

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
