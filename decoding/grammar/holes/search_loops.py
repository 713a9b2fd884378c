"""Following sorted texts in compiled loops. Importing this needs numba.

Texts lie in pieces of the file that is mapped, so they come as addresses. Arguments that all share:

    order: Numbers of the texts, sorted. Shape: (n,), int32.
    batches: Per batch the addresses of its offsets, int32, and of its bytes. Shape: (b, 2), int64.
    shift: A batch holds 1 << shift texts.

Modes of places are numbered as in `decoding.grammar.holes.place`.
"""

import numba
import numpy as np
import numpy.typing as npt

from decoding.kernels.compiling import compiled, pointer

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]

_PLAIN, _ESCAPE, _UNICODE, _ZERO, _ZEROS, _LOW, _HIGH, _FINAL, _START = range(9)
_FEW = 64  # decoding.grammar.leaves.leaf.FEW_TOKENS
_NONE = 256  # beyond every byte
# The columns of a level of a walk.
_BEGIN, _END, _DEPTH, _MODE, _ENDED, _CURSOR, _NEXT, _LAST = range(8)


@compiled
def _byte(order: Ints, batches: Longs, shift: int, position: int, depth: int) -> int:
    """Return a byte of the text at a position of the order, -1 behind its end."""
    number = np.int64(order[position])
    batch = number >> shift
    row = number - (batch << shift)
    offsets = numba.carray(pointer(batches[batch, 0]), ((1 << shift) + 1,), np.int32)
    at = np.int64(offsets[row]) + depth
    if at >= offsets[row + 1]:
        return -1
    return int(numba.carray(pointer(batches[batch, 1]), (at + 1,), np.uint8)[at])


@compiled
def _lower(order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int, byte: int) -> int:
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
def _has(order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int, byte: int) -> bool:
    """Return whether a text of a run goes on with a byte."""
    at = _lower(order, batches, shift, begin, end, depth, byte)
    return at < end and _byte(order, batches, shift, at, depth) == byte


@compiled
def _is_long(byte: int) -> bool:
    """Return whether a control character has no short escape."""
    return byte < 8 or byte == 11 or byte > 13


@compiled
def _has_long(order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int, above: int) -> bool:
    """Return whether a text goes on with a control character of `above` << 4 … without a short escape.

    `above` -1: with any such.
    """
    first, last = (0, 31) if above < 0 else (above << 4, (above << 4) + 15)
    for byte in range(first, last + 1):
        if _is_long(byte) and _has(order, batches, shift, begin, end, depth, byte):
            return True
    return False


@compiled
def _has_escape(order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int) -> bool:
    """Return whether a text of a run goes on with a byte that is escaped."""
    at = _lower(order, batches, shift, begin, end, depth, 0)
    if at == end:
        return False
    if _byte(order, batches, shift, at, depth) < 32:
        return True
    return _has(order, batches, shift, at, end, depth, 34) or _has(order, batches, shift, at, end, depth, 92)


@compiled
def _escape_of(mode: int, byte: int) -> int:
    """Return the byte of a text whose escape a byte of JSON ends, -1 for none."""
    if mode == _ESCAPE:
        if byte == 34 or byte == 92:
            return byte
        if byte == 98:
            return 8
        if byte == 102:
            return 12
        if byte == 110:
            return 10
        if byte == 114:
            return 13
        if byte == 116:
            return 9
        return -1
    digit = -1
    if 48 <= byte <= 57:
        digit = byte - 48
    elif 97 <= byte <= 102:
        digit = byte - 87
    if digit < 0 or (mode != _LOW and mode != _HIGH):
        return -1
    whole = digit if mode == _LOW else digit + 16
    return whole if _is_long(whole) else -1


@compiled
def _within_escape(
    order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int, mode: int, byte: int
) -> int:
    """Return the mode behind a byte that an escape goes on with but does not end, -1 for none."""
    following, above = -1, -1
    if mode == _ESCAPE and byte == 117:
        following = _UNICODE
    elif mode == _UNICODE and byte == 48:
        following = _ZERO
    elif mode == _ZERO and byte == 48:
        following = _ZEROS
    elif mode == _ZEROS and byte == 48:
        following, above = _LOW, 0
    elif mode == _ZEROS and byte == 49:
        following, above = _HIGH, 1
    if following >= 0 and _has_long(order, batches, shift, begin, end, depth, above):
        return following
    return -1


@compiled
def narrow(
    order: Ints, batches: Longs, shift: int, begin: int, end: int, depth: int, mode: int, byte: int
) -> tuple[int, int, int, int]:
    """Return the place behind a byte of JSON; its mode is -1 where there is none."""
    if mode == _FINAL or (mode == _START and byte != 34):
        return 0, 0, 0, -1
    if mode == _START:
        return begin, end, 0, _PLAIN
    wanted, following, after = byte, _PLAIN, depth + 1
    if mode == _PLAIN:
        if byte == 92:
            escapes = _has_escape(order, batches, shift, begin, end, depth)
            return begin, end, depth, _ESCAPE if escapes else -1
        if byte < 32:
            return 0, 0, 0, -1
        if byte == 34:
            wanted, following, after = -1, _FINAL, depth
    else:
        wanted = _escape_of(mode, byte)
        if wanted < 0:
            return begin, end, depth, _within_escape(order, batches, shift, begin, end, depth, mode, byte)
    first = _lower(order, batches, shift, begin, end, depth, wanted)
    if first == end or _byte(order, batches, shift, first, depth) != wanted:
        return 0, 0, 0, -1
    behind = end
    if _byte(order, batches, shift, end - 1, depth) != wanted:
        behind = _lower(order, batches, shift, first, end, depth, wanted + 1)
    return first, behind, after, following


@compiled
def _enter(
    order: Ints, batches: Longs, shift: int, level: Longs, begin: int, end: int, depth: int, mode: int
) -> None:
    """Fill in a level of the walk: the run, and what its texts go on with."""
    level[_BEGIN], level[_END], level[_DEPTH], level[_MODE] = begin, end, depth, mode
    if mode != _PLAIN:
        return
    first = _byte(order, batches, shift, begin, depth)
    level[_ENDED] = 1 if first < 0 else 0
    if first < 0:
        begin = _lower(order, batches, shift, begin, end, depth, 0)
        first = _byte(order, batches, shift, begin, depth) if begin < end else _NONE
    level[_CURSOR], level[_NEXT] = begin, first
    level[_LAST] = -1 if first == _NONE else _byte(order, batches, shift, end - 1, depth)


@compiled
def _move(order: Ints, batches: Longs, shift: int, level: Longs, cursor: int) -> None:
    """Go on to a text of the level's run, or behind it, which only a damaged order does."""
    level[_CURSOR] = cursor
    level[_NEXT] = _NONE
    if cursor < level[_END]:
        level[_NEXT] = _byte(order, batches, shift, cursor, level[_DEPTH])


@compiled
def _descend(
    order: Ints, batches: Longs, shift: int, level: Longs, below: Longs, byte: int, is_last: bool
) -> int:
    """Go from a level to the one below by a byte of JSON; return the mode there, -1 for none.

    Asked with ascending bytes, so that what texts go on with is looked for from the last place on. Where
    nothing follows in the trie (`is_last`), the level below is not filled in.
    """
    begin, end, depth, mode = level[_BEGIN], level[_END], level[_DEPTH], level[_MODE]
    if mode != _PLAIN or byte == 92:
        first, behind, after, following = narrow(order, batches, shift, begin, end, depth, mode, byte)
        if following >= 0 and not is_last:
            _enter(order, batches, shift, below, first, behind, after, following)
        return following
    if byte == 34:
        return _FINAL if level[_ENDED] else -1
    if byte < 32 or byte > level[_LAST]:
        return -1
    if level[_NEXT] < byte:
        _move(order, batches, shift, level, _lower(order, batches, shift, level[_CURSOR], end, depth, byte))
    if level[_NEXT] != byte:
        return -1
    if is_last:
        return _PLAIN
    first = level[_CURSOR]
    behind = end
    if byte != level[_LAST]:
        behind = _lower(order, batches, shift, first, end, depth, byte + 1)
        _move(order, batches, shift, level, behind)
    _enter(order, batches, shift, below, first, behind, depth + 1, _PLAIN)
    return _PLAIN


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
) -> None:
    """Find the tokens below some positions of a trie that go on with some text.

    `nodes` are (byte, depth, end of the subtree, first token) in depth-first order and a last row for the end
    of the tokens, of shape (N + 1, 4); `tokens` ids by node, (T,); `roots` positions where to begin. `levels`
    is room for the walk, (the trie's depth + 1, 8). `mask` gets a bit for each token. `found` gets the number
    of tokens, that of exits, the first 64 tokens, and as many positions where a text has ended within a token
    as there is room for.
    """
    num_tokens, num_exits = 0, 0
    for root in roots:
        top = nodes[root, 1]
        _enter(order, batches, shift, levels[0], begin, end, depth, mode)
        position, stop = root + 1, nodes[root, 2]
        while position < stop:
            level = nodes[position, 1] - top
            behind = nodes[position, 2]
            following = _descend(
                order,
                batches,
                shift,
                levels[level - 1],
                levels[level],
                nodes[position, 0],
                behind == position + 1,
            )
            if following < 0:
                position = behind
                continue
            for at in range(nodes[position, 3], nodes[position + 1, 3]):
                token = tokens[at]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                if num_tokens < _FEW:
                    found[2 + num_tokens] = token
                num_tokens += 1
            if following != _FINAL:
                position += 1
                continue
            if behind > position + 1:
                if 2 + _FEW + num_exits < len(found):
                    found[2 + _FEW + num_exits] = position
                num_exits += 1
            position = behind
    found[0] = num_tokens
    found[1] = num_exits
