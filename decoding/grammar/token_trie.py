"""Holds the trie of a vocabulary's tokens: nodes made on demand, over arrays in depth-first order.

The tokens below a node are one run of positions, so that a walk skips a refused branch by one assignment.
Compiled loops and NumPy read the arrays; Python reads memory views of them, which hand out plain ints at a
third of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.errors import VocabularyError


class TokenNode:
    """The bytes some tokens begin with: one place of the vocabulary's trie, or several laid over each other.

    Places are laid over each other where tokens go on behind different texts that have ended: all that
    matters is what they write next. `tokens` and `children` are made when first read; two threads that do
    so at once make the same and keep either.

    Args:
        trie: The vocabulary's trie.
        positions: One or more places, ascending.
        has_tokens: Whether tokens that end here count; behind an ended text they do not.

    Attributes:
        tokens: Ids of the tokens that end here, ascending. Several tokens may have the same bytes.
        children: The next byte of longer tokens, and the node it leads to, ascending by byte.
    """

    __slots__ = ("__weakref__", "children", "positions", "tokens", "trie")

    tokens: tuple[int, ...]
    children: Mapping[int, TokenNode]

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


class FlatTrie:
    """Every prefix of every token, in byte order; position 0 is the empty one.

    Tokens without bytes are left out: they would be a step that writes nothing.

    Args:
        token_bytes: By token id; None for tokens that stand for no text.

    Attributes:
        byte: The last byte of each prefix; 0 for the root. Shape: (N,), uint8.
        depth: Its length. Shape: (N,), int32.
        end: The first position behind it and all longer prefixes. Shape: (N,), int32.
        token_begin: Begin in `tokens` of the tokens that are exactly this prefix; those of a whole subtree
            are `tokens[token_begin[i]:token_begin[end[i]]]`. Shape: (N + 1,), int32.
        tokens: Ids in byte order, equal bytes by id. Shape: (T,), int32.
    """

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        ids = [token for token, text in enumerate(token_bytes) if text]
        ids.sort(key=token_bytes.__getitem__)  # type: ignore[arg-type]
        texts: list[bytes] = [token_bytes[token] for token in ids]  # type: ignore[misc]
        flat = np.frombuffer(b"".join(texts), dtype=np.uint8)
        length = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        begin = np.cumsum(length) - length
        shared = _shared_prefixes(flat, begin, length)

        new = length - shared
        last = np.cumsum(new)  # position of each token's last byte, behind the root
        num_nodes = int(last[-1]) if len(last) else 0
        owner = np.repeat(np.arange(len(texts)), new)
        depth = np.arange(1, num_nodes + 1) - (last - new - shared)[owner]

        self.byte = np.zeros(num_nodes + 1, dtype=np.uint8)
        self.byte[1:] = flat[begin[owner] + depth - 1]
        self.depth = np.zeros(num_nodes + 1, dtype=np.int32)
        self.depth[1:] = depth
        self.end = _subtree_ends(self.depth)
        self.tokens = np.array(ids, dtype=np.int32)
        self.token_begin = np.zeros(num_nodes + 2, dtype=np.int32)
        np.cumsum(np.bincount(last, minlength=num_nodes + 1), out=self.token_begin[1:])
        for array in (self.byte, self.depth, self.end, self.tokens, self.token_begin):
            array.flags.writeable = False
        self.byte_view = self.byte.data
        self.depth_view = self.depth.data
        self.end_view = self.end.data
        self.token_begin_view = self.token_begin.data
        self.tokens_view = self.tokens.data

    @property
    def max_depth(self) -> int:
        """Bytes of the longest token."""
        return int(self.depth.max())

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        arrays = (self.byte, self.depth, self.end, self.tokens, self.token_begin)
        return sum(array.nbytes for array in arrays)

    @cached_property
    def children(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Children by parent, for walks by levels: begin, of shape (N + 1,), and child, of shape (N - 1,)."""
        parent = np.zeros(len(self.depth), dtype=np.int32)
        for above, level, owner in _levels(self.depth):
            parent[level] = above[owner]
        child = (np.argsort(parent[1:], kind="stable") + 1).astype(np.int32)
        begin = np.zeros(len(self.depth) + 1, dtype=np.int32)
        np.cumsum(np.bincount(parent[1:], minlength=len(self.depth)), out=begin[1:])
        return begin, child


def _shared_prefixes(
    flat: NDArray[np.uint8], begin: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The number of first bytes that each text shares with the one before it. Shape: (T,), int64."""
    shared = np.zeros(len(length), dtype=np.int64)
    shorter = np.minimum(length[1:], length[:-1])
    alike = np.arange(1, len(length))
    depth = 0
    while len(alike):
        alike = alike[shorter[alike - 1] > depth]
        alike = alike[flat[begin[alike] + depth] == flat[begin[alike - 1] + depth]]
        depth += 1
        shared[alike] = depth
    return shared


def _levels(depth: NDArray[np.int32]) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """By level: positions a level above, its own, and the index of each one's parent among those above."""
    order = np.argsort(depth, kind="stable")
    bounds = np.cumsum(np.bincount(depth))
    levels = []
    above = order[: bounds[0]]
    for first, behind in pairwise(bounds.tolist()):
        level = order[first:behind]
        levels.append((above, level, np.searchsorted(above, level) - 1))
        above = level
    return levels


def _subtree_ends(depth: NDArray[np.int32]) -> NDArray[np.int32]:
    """The end of each subtree: the next node of its level, or the end of its parent's."""
    end = np.full(len(depth), len(depth), dtype=np.int32)
    for above, level, owner in _levels(depth):
        following = np.empty_like(level)
        following[:-1] = level[1:]
        following[-1] = len(depth)
        end[level] = np.minimum(following, end[above][owner])
    return end


def fewest_tokens(text: bytes, root: TokenNode) -> int:
    """Return the fewest tokens below a trie's root that write a text; VocabularyError if none do."""
    fewest = fewest_tokens_from(text, root)[0]
    if fewest > len(text):
        raise VocabularyError(f"no tokens write {text[:80]!r}, which every answer under the schema needs")
    return fewest


def fewest_tokens_from(text: bytes, root: TokenNode) -> list[int]:
    """Return the fewest tokens that write the text from each place on, len(text) + 1 for none. Length
    len(text) + 1.
    """
    impossible = len(text) + 1
    fewest = [impossible] * len(text) + [0]
    for begin in range(len(text) - 1, -1, -1):
        node, best = root, impossible
        for place in range(begin, len(text)):
            child = node.children.get(text[place])
            if child is None:
                break
            node = child
            if node.tokens and fewest[place + 1] < best:
                best = fewest[place + 1]
        fewest[begin] = min(best + 1, impossible)
    return fewest
