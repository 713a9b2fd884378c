"""Follows sorted texts in compiled loops. Importing this needs numba.

Texts lie in pieces of a mapped file, so loops take addresses. Their common arguments:

    order: Numbers of the texts, sorted. Shape: (n,), int32.
    batches: Per batch the addresses of its offsets, int32, and of its bytes. Shape: (b, 2), int64.
    shift: A batch holds 1 << shift texts.

The loops pass each other the addresses of both arrays: an array as an argument is seven words that are copied
in every call. Modes of places are numbered as in `text_places`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

import numba
import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.holes.text_places import ESCAPED_BYTES, SPELLINGS, WRITTEN, TextRange
from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, TokenWalk
from genret.decoding.grammar.leaves.numba_walk import marked
from genret.decoding.numba_compiling import compiled, pointer
from genret.decoding.sorted_texts import SortedTexts

if TYPE_CHECKING:
    from genret.decoding.grammar.token_trie import FlatTrie
    from genret.decoding.grammar.vocabulary import Vocabulary

Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Words = NDArray[np.uint32]

_PLAIN, _ESCAPE, _UNICODE, _ZERO, _ZEROS, _LOW, _HIGH, _FINAL, _START = range(9)
_FEW = 64
if _FEW != FEW_TOKENS:
    raise ImportError(f"the compiled loop has room for {_FEW} tokens, leaves call {FEW_TOKENS} tokens few")
_NONE = 256  # beyond every byte
# The columns of a level of a walk.
_BEGIN, _END, _DEPTH, _MODE, _ENDED, _CURSOR, _NEXT, _LAST, _CHILD, _STOP = range(10)
# The columns of the trie's nodes: the first holds the byte, and above it how many tokens end at the node.
_BYTE, _CHILDREN, _TOKEN, _POSITION = range(4)


@compiled
def _byte(order: int, batches: int, shift: int, position: int, depth: int) -> int:
    """Return a byte of the text at a position of the order, -1 behind its end."""
    number = np.int64(numba.carray(pointer(order), (position + 1,), np.int32)[position])
    batch = number >> shift
    row = number - (batch << shift)
    places = numba.carray(pointer(batches), (batch + 1, 2), np.int64)
    offsets = numba.carray(pointer(places[batch, 0]), ((1 << shift) + 1,), np.int32)
    at = np.int64(offsets[row]) + depth
    if at >= offsets[row + 1]:
        return -1
    return int(numba.carray(pointer(places[batch, 1]), (at + 1,), np.uint8)[at])


@compiled
def _lower(order: int, batches: int, shift: int, begin: int, end: int, depth: int, byte: int) -> int:
    """Return the first text of a run that goes on with this byte or a greater one."""
    at, step = begin, 1
    while at < end and _byte(order, batches, shift, at, depth) < byte:
        begin = at + 1
        at += step
        step *= 2
    end = min(at, end)
    while begin < end:
        middle = (begin + end) >> 1
        if _byte(order, batches, shift, middle, depth) < byte:
            begin = middle + 1
        else:
            end = middle
    return begin


@compiled
def _has(order: int, batches: int, shift: int, begin: int, end: int, depth: int, byte: int) -> bool:
    """Return whether a text of a run goes on with a byte."""
    at = _lower(order, batches, shift, begin, end, depth, byte)
    return at < end and _byte(order, batches, shift, at, depth) == byte


def _escape_tables() -> tuple[Longs, NDArray[np.bool_]]:
    """Return `_ESCAPE_STEPS` and `_LEADS_ON`."""
    steps = np.full((len(WRITTEN), 256), -1, dtype=np.int64)
    leads_on = np.zeros((len(WRITTEN), 256), dtype=np.bool_)
    for mode, written in list(enumerate(WRITTEN))[1:]:
        for byte in ESCAPED_BYTES:
            if SPELLINGS[byte].startswith(written):
                leads_on[mode, byte] = True
                following = SPELLINGS[byte][: len(written) + 1]
                ends = following == SPELLINGS[byte]
                steps[mode, following[-1]] = byte if ends else -2 - WRITTEN.index(following)
    return steps, leads_on


# By the mode within an escape and a byte of JSON: the byte of a text that the escape stands for, if it ends
# there; else -2 less the mode behind the byte; -1 for no escape. By mode: the bytes whose escapes begin so.
_ESCAPE_STEPS, _LEADS_ON = _escape_tables()


@compiled
def _leads_on(order: int, batches: int, shift: int, begin: int, end: int, depth: int, mode: int) -> bool:
    """Return whether a text of a run goes on with a byte whose escape begins as the mode says."""
    for byte in range(256):
        if _LEADS_ON[mode, byte] and _has(order, batches, shift, begin, end, depth, byte):
            return True
    return False


@compiled
def _narrow(
    order: int, batches: int, shift: int, begin: int, end: int, depth: int, mode: int, byte: int
) -> tuple[int, int, int, int]:
    """Return the place behind a byte of JSON; its mode is -1 for none."""
    if mode == _FINAL or (mode == _START and byte != 34):
        return 0, 0, 0, -1
    if mode == _START:
        return begin, end, 0, _PLAIN
    wanted, following, after = byte, _PLAIN, depth + 1
    if mode == _PLAIN:
        if byte == 92:
            escapes = _leads_on(order, batches, shift, begin, end, depth, _ESCAPE)
            return begin, end, depth, _ESCAPE if escapes else -1
        if byte < 32:
            return 0, 0, 0, -1
        if byte == 34:
            wanted, following, after = -1, _FINAL, depth
    else:
        wanted = _ESCAPE_STEPS[mode, byte]
        if wanted < 0:
            inside = -2 - wanted
            if inside >= 0 and not _leads_on(order, batches, shift, begin, end, depth, inside):
                inside = -1
            return begin, end, depth, inside
    first = _lower(order, batches, shift, begin, end, depth, wanted)
    if first == end or _byte(order, batches, shift, first, depth) != wanted:
        return 0, 0, 0, -1
    behind = end
    if _byte(order, batches, shift, end - 1, depth) != wanted:
        behind = _lower(order, batches, shift, first, end, depth, wanted + 1)
    return first, behind, after, following


@compiled
def _enter(
    order: int, batches: int, shift: int, levels: Longs, n: int, begin: int, end: int, depth: int, mode: int
) -> None:
    """Fill in level n of the walk: the run, and the next bytes of its texts."""
    levels[n, _BEGIN], levels[n, _END], levels[n, _DEPTH], levels[n, _MODE] = begin, end, depth, mode
    if mode != _PLAIN:
        return
    first = _byte(order, batches, shift, begin, depth)
    levels[n, _ENDED] = 1 if first < 0 else 0
    if first < 0:
        begin = _lower(order, batches, shift, begin, end, depth, 0)
        first = _byte(order, batches, shift, begin, depth) if begin < end else _NONE
    levels[n, _CURSOR], levels[n, _NEXT] = begin, first
    levels[n, _LAST] = -1 if first == _NONE else _byte(order, batches, shift, end - 1, depth)


@compiled
def _move(order: int, batches: int, shift: int, levels: Longs, n: int, cursor: int) -> None:
    """Set the cursor of level n to a text of its run, or behind it, which only a damaged order does."""
    levels[n, _CURSOR] = cursor
    levels[n, _NEXT] = _NONE
    if cursor < levels[n, _END]:
        levels[n, _NEXT] = _byte(order, batches, shift, cursor, levels[n, _DEPTH])


@compiled
def _descend(order: int, batches: int, shift: int, levels: Longs, n: int, byte: int, is_last: bool) -> int:
    """Go from level n to the one below by a byte of JSON; return the mode there, -1 for none.

    Bytes must come in ascending order: the search goes on from the cursor. If nothing follows in the trie
    (`is_last`), the level below is not filled in.
    """
    end, depth, mode = levels[n, _END], levels[n, _DEPTH], levels[n, _MODE]
    if mode != _PLAIN or byte == 92:
        begin = levels[n, _BEGIN]
        first, behind, after, following = _narrow(order, batches, shift, begin, end, depth, mode, byte)
        if following >= 0 and not is_last:
            _enter(order, batches, shift, levels, n + 1, first, behind, after, following)
        return following
    if byte == 34:
        return _FINAL if levels[n, _ENDED] else -1
    if byte < 32 or byte > levels[n, _LAST]:
        return -1
    if levels[n, _NEXT] < byte:
        cursor = _lower(order, batches, shift, levels[n, _CURSOR], end, depth, byte)
        _move(order, batches, shift, levels, n, cursor)
    if levels[n, _NEXT] != byte:
        return -1
    if is_last:
        return _PLAIN
    first = levels[n, _CURSOR]
    behind = end
    if byte != levels[n, _LAST]:
        behind = _lower(order, batches, shift, first, end, depth, byte + 1)
        _move(order, batches, shift, levels, n, behind)
    _enter(order, batches, shift, levels, n + 1, first, behind, depth + 1, _PLAIN)
    return _PLAIN


@compiled
def _children(nodes: Ints, levels: Longs, n: int, node: int) -> None:
    """Let level n of the walk go through the children of a node."""
    levels[n, _CHILD], levels[n, _STOP] = nodes[node, _CHILDREN], nodes[node + 1, _CHILDREN]


@compiled
def narrow(
    order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int, mode: int, byte: int
) -> tuple[int, int, int, int]:
    """Return the place behind a byte of JSON; its mode is -1 for none."""
    return _narrow(order.ctypes.data, batches.ctypes.data, shift, begin, end, depth, mode, byte)


@compiled
def walk(
    order: Ints,
    batches: Longs,
    shift: int,
    begin: int,
    end: int,
    depth: int,
    mode: int,
    nodes: Ints,
    tokens: Ints,
    levels: Longs,
    roots: Ints,
    mask: Words,
    found: Ints,
) -> tuple[int, int]:
    """Find the tokens below some positions of a trie that go on with some text.

    * `nodes`: by depth, so that the children of a node lie side by side: the byte and, from bit 8 on, the
      number of tokens; the first child; the token, or the index of the first of several in `tokens`; the
      position in the trie. A last row ends the children. Shape: (N + 1, 4).
    * `tokens`: ids by node. Shape: (T,).
    * `levels`: room for the walk. Shape: (depth of the trie + 1, 10).
    * `roots`: nodes to begin at.
    * `mask`: output, a bit for each token.
    * `found`: output, the first 64 tokens, and as many exits (a position where a text has ended within a
      token, and 0) as there is room for.

    Returns:
        The number of tokens and the number of exits.
    """
    order_at, batches_at = order.ctypes.data, batches.ctypes.data
    num_tokens, num_exits = 0, 0
    for root in roots:
        n = 0
        _enter(order_at, batches_at, shift, levels, n, begin, end, depth, mode)
        _children(nodes, levels, n, root)
        while n >= 0:
            node = levels[n, _CHILD]
            if node == levels[n, _STOP]:
                n -= 1
                continue
            levels[n, _CHILD] = node + 1
            is_last = nodes[node, _CHILDREN] == nodes[node + 1, _CHILDREN]
            byte = nodes[node, _BYTE] & 255
            following = _descend(order_at, batches_at, shift, levels, n, byte, is_last)
            if following < 0:
                continue
            count = nodes[node, _BYTE] >> 8
            for number in range(count):
                token = nodes[node, _TOKEN]
                if count > 1:
                    token = tokens[token + number]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                if num_tokens < _FEW:
                    found[num_tokens] = token
                num_tokens += 1
            if is_last:
                continue
            if following == _FINAL:
                room = _FEW + 2 * num_exits
                if room + 1 < len(found):
                    found[room] = nodes[node, _POSITION]
                    found[room + 1] = 0
                num_exits += 1
                continue
            n += 1
            _children(nodes, levels, n, node)
    return num_tokens, num_exits


_LEVEL = 10


class CompiledSearch:
    """The compiled loops over one vocabulary's trie; compiled, or read from numba's cache, when made."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        trie = vocabulary.trie
        self._nodes, self._begins = _by_depth(trie)
        self._positions = self._nodes[:, _POSITION].data
        self._depths = trie.depth_view
        self._tokens = trie.tokens
        self._depth = trie.max_depth
        self._num_words = vocabulary.num_words
        texts, place = SortedTexts.of([b"a"]), TextRange(0, 1, 0, 0)
        self.narrow(texts, place, 0)
        self.walk(texts, place, (0,))

    @property
    def num_bytes(self) -> int:
        """Memory of the trie's copy for the loops."""
        return self._nodes.nbytes

    def narrow(self, texts: SortedTexts, place: TextRange, byte: int) -> TextRange | None:
        """The place behind one byte of JSON, None if no text goes on with it."""
        found = narrow(texts.order, texts.batches.addresses, texts.batches.shift, *place, byte)
        return TextRange(*found) if found[3] >= 0 else None

    def walk(self, texts: SortedTexts, place: TextRange, positions: tuple[int, ...]) -> TokenWalk:
        """Find the tokens below some positions of the trie that go on with some text."""
        roots = np.array([self._node(position) for position in positions], dtype=np.int32)
        levels = np.empty((self._depth + 1, _LEVEL), dtype=np.int64)
        where = (texts.order, texts.batches.addresses, texts.batches.shift, *place)
        trie = (self._nodes, self._tokens)
        return marked(self._num_words, lambda mask, found: walk(*where, *trie, levels, roots, mask, found))

    def _node(self, position: int) -> int:
        """The row of a position of the trie; those of one depth are in the trie's order."""
        depth = self._depths[position]
        return bisect_left(self._positions, position, self._begins[depth], self._begins[depth + 1])


def _by_depth(trie: FlatTrie) -> tuple[NDArray[np.int32], list[int]]:
    """Return the nodes as `walk` takes them, and the index at which each depth begins and the last ends.

    Children side by side share cache lines, and one array is a cheaper argument than four.
    """
    positions = np.argsort(trie.depth, kind="stable")
    begins = np.searchsorted(trie.depth[positions], np.arange(trie.max_depth + 2)).tolist()
    nodes = np.zeros((len(positions) + 1, 4), dtype=np.int32)
    nodes[-1, _CHILDREN] = len(positions)
    first = trie.token_begin[positions]
    counts = trie.token_begin[positions + 1] - first
    nodes[:-1, _BYTE] = trie.byte[positions] + (counts << 8)
    nodes[:-1, _POSITION] = positions
    nodes[:-1, _TOKEN] = first
    only = np.flatnonzero(counts == 1)
    nodes[only, _TOKEN] = trie.tokens[first[only]]
    levels = [positions[begin:end] for begin, end in pairwise(begins)]
    for end, level, below in zip(begins[1:], levels, [*levels[1:], levels[0][:0]], strict=True):
        nodes[end - len(level) : end, _CHILDREN] = end + np.searchsorted(below, level)
    return nodes, begins
