"""A node of a trie over token bytes, made on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decoding.grammar.vocabulary.flat_trie import FlatTrie


class TokenNode:
    """The bytes some tokens begin with: one place of the vocabulary's trie, or several laid over each other.

    Places are laid over each other where tokens go on behind different texts that have ended: all that
    matters is what they write next. `tokens` and `children` are made when first read; two threads that do
    so at once make the same and keep either.

    Args:
        trie: Whose places.
        positions: One or more, ascending.
        has_tokens: Whether tokens that end here count; behind an ended text they do not.

    Attributes:
        trie: Whose places.
        positions: One or more, ascending.
        tokens: Ids of the tokens that end here, ascending. Several tokens may have the same bytes.
        children: The next byte of longer tokens, and the node it leads to, ascending by byte.
        gaps: What grammars have found of the whitespace behind the node, by its rules.
    """

    __slots__ = ("__weakref__", "children", "gaps", "positions", "tokens", "trie")

    tokens: tuple[int, ...]
    children: Mapping[int, TokenNode]
    gaps: dict[Any, Any]

    def __init__(self, trie: FlatTrie, positions: tuple[int, ...], has_tokens: bool = True) -> None:
        self.trie = trie
        self.positions = positions
        if not has_tokens:
            self.tokens = ()

    # Called only for a slot that is still empty, so that every later reading is a plain attribute.
    def __getattr__(self, name: str) -> Any:
        if name == "children":
            children = self._find_children()
            self.children = children
            return children
        if name == "tokens":
            tokens = self._find_tokens()
            self.tokens = tokens
            return tokens
        if name == "gaps":
            gaps: dict[Any, Any] = {}
            self.gaps = gaps
            return gaps
        raise AttributeError(name)

    @property
    def num_below(self) -> int:
        """Longer prefixes below the node, each counted as often as it stands there."""
        end = self.trie.end_view
        return sum(end[position] - position - 1 for position in self.positions)

    def _find_tokens(self) -> tuple[int, ...]:
        begin, tokens = self.trie.token_begin_view, self.trie.tokens_view
        if len(self.positions) == 1:
            (position,) = self.positions
            return tuple(tokens[begin[position] : begin[position + 1]])
        found: list[int] = []
        for position in self.positions:
            found += tokens[begin[position] : begin[position + 1]]
        return tuple(sorted(found))

    def _find_children(self) -> dict[int, TokenNode]:
        trie = self.trie
        byte, end = trie.byte_view, trie.end_view
        if len(self.positions) == 1:
            (position,) = self.positions
            stop = end[position]
            position += 1
            children = {}
            while position < stop:
                children[byte[position]] = TokenNode(trie, (position,))
                position = end[position]
            return children
        by_byte: dict[int, list[int]] = {}
        for position in self.positions:
            stop = end[position]
            position += 1
            while position < stop:
                by_byte.setdefault(byte[position], []).append(position)
                position = end[position]
        return {byte: TokenNode(trie, tuple(by_byte[byte])) for byte in sorted(by_byte)}
