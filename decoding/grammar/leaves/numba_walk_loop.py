"""The compiled loops that walk a trie under the table of an automaton.

A large automaton has far more states than a walk meets, so the table's rows are written as loops come by and
would read them more than a few times.

A call counts references to every array it hands on, which takes longer than a step. So what is done at every
node stands in the loops themselves.

Most states of strings treat nearly all characters alike: few states come behind them, often the state itself
among these. From there whole subtrees of the trie pass without being walked, if all that they write are
characters of such kinds. What a subtree writes is kept as *classes*, one bit each: every printable character
of ASCII; those of two bytes behind c2, and behind others; those of three bytes, by the first; those of four.
"""

import numpy as np
import numpy.typing as npt

from decoding.grammar.leaves.leaf import FEW_TOKENS
from decoding.numba_compiling import compiled

Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Classes = npt.NDArray[np.uint64]

# The same in every process: the loop is kept compiled, and kept code does not notice another file's change.
_FEW = 64
if _FEW != FEW_TOKENS:
    raise ImportError(f"the compiled loop has room for {_FEW} tokens, leaves call {FEW_TOKENS} tokens few")
# Kinds of characters, by the state behind them, that are told apart. Behind their rows are one of all and
# one of those that keep passing.
KINDS = 8
NUM_ROWS = KINDS + 2
_ANY, _KEEP = KINDS, KINDS + 1
# Below smaller subtrees a state is read as it is: writing its row, or telling characters apart, takes longer.
_SMALL_TREE = 24
# Runs of tokens that are kept before they are marked.
_MOST_RUNS = 4096
# States that are looked at before a subtree is walked all the same.
_MOST_STATES = 48
# Characters of the longest text below nearly every node; and where such a number is in a word of classes.
_SHORT = 11
_LENGTH = np.uint64(24)
_MOST_LENGTH = np.uint64(15)

# Where a node's classes are among its words of 64 bits.
_LOW, _HIGH = 2, 3

_ONE = np.uint64(1)
_CONTROL, _NO_CHARACTER, _LATIN, _TWO, _FOUR, _IS_KNOWN = [_ONE << np.uint64(place) for place in range(6)]
# Of three bytes, by the first: some of these have single characters that are treated in another way.
_THREE = np.array([1 << place for place in range(8, 24)], np.uint64)


def _class_bits() -> Classes:
    """By byte, the bit of the class of characters that it begins, in one of two words. Shape: (256, 2)."""
    bits = np.zeros((256, 2), np.uint64)
    bits[:32, 0] = _CONTROL
    for byte in range(32, 128):
        bits[byte, byte // 64] = 1 << byte % 64
    bits[128:, 0] = _NO_CHARACTER
    bits[0xC2, 0], bits[0xC3:0xE0, 0] = _LATIN, _TWO
    bits[0xE0:0xF0, 0], bits[0xF0:0xF5, 0] = _THREE, _FOUR
    return bits


_CLASS = _class_bits()


@compiled
def _add(found: Classes, depth: int, part: int, others: int) -> None:
    """Add what is written a level below; `others` -1: no character."""
    if others < 0:
        found[depth - 1, part, 0] |= _NO_CHARACTER
    else:
        found[depth - 1, part, 0] |= found[depth, others, 0]
        found[depth - 1, part, 1] |= found[depth, others, 1]


@compiled
def classify(nodes: Ints, max_depth: int, below: Classes) -> None:
    """Find what is written below every node, as characters that begin right behind it.

    Behind a first byte of several, they begin behind the character.

    Args:
        nodes: As of `walk`; gets the characters of the longest text below.
        max_depth: Of all nodes.
        below: As of `walk`; gets the classes, one of them for bytes that no characters begin or go on with.
    """
    # By depth of the node we are below: what is written there as characters; as the rest of a character of
    # which one, two or three bytes are missing; and behind e0, ed, f0 and f4, which have rules of their own.
    found = np.zeros((max_depth + 2, 8, 2), np.uint64)
    heights = np.zeros(max_depth + 2, np.int32)
    open_nodes = np.zeros(max_depth + 2, np.int32)
    depth = 0
    for position in range(1, len(nodes)):
        # The row behind the last node has depth 0 and closes all that are open but the root.
        next_depth = max(nodes[position, 1], 1)
        while depth >= next_depth:
            node = open_nodes[depth]
            byte = nodes[node, 0] & 255
            nodes[node, 0] = byte | heights[depth] << 8
            heights[depth - 1] = max(heights[depth - 1], heights[depth] + (not 0x80 <= byte <= 0xBF))
            part = 0
            if 0xC2 <= byte <= 0xDF:
                part = 1
            elif 0xE0 <= byte <= 0xEF:
                part = 4 if byte == 0xE0 else 5 if byte == 0xED else 2
            elif 0xF0 <= byte <= 0xF4:
                part = 6 if byte == 0xF0 else 7 if byte == 0xF4 else 3
            below[node, _LOW] = found[depth, part, 0]
            below[node, _HIGH] = found[depth, part, 1]
            found[depth - 1, 0, 0] |= _CLASS[byte, 0]
            found[depth - 1, 0, 1] |= _CLASS[byte, 1]
            _add(found, depth, 0, part)
            goes_on = 0x80 <= byte <= 0xBF
            _add(found, depth, 1, 0 if goes_on else -1)
            _add(found, depth, 2, 1 if goes_on else -1)
            _add(found, depth, 3, 2 if goes_on else -1)
            _add(found, depth, 4, 1 if goes_on and byte >= 0xA0 else -1)
            _add(found, depth, 5, 1 if goes_on and byte < 0xA0 else -1)
            _add(found, depth, 6, 2 if goes_on and byte >= 0x90 else -1)
            _add(found, depth, 7, 2 if goes_on and byte < 0x90 else -1)
            depth -= 1
        if position == len(nodes) - 1:
            break
        depth = next_depth
        open_nodes[depth] = position
        found[depth] = 0
        heights[depth] = 0


@compiled
def _write_row(next_state: Ints, is_written: Flags, edges: Ints, edge_begin: Ints, state: int) -> None:
    """Write a row of the table, if it has not been written."""
    if is_written[state]:
        return
    # Another thread may read what is written here twice, so nothing is ever written that does not stay.
    behind = 0
    for e in range(edge_begin[state], edge_begin[state + 1]):
        for byte in range(behind, edges[e, 0]):
            next_state[state, byte] = -1
        behind = edges[e, 1] + 1
        for byte in range(edges[e, 0], behind):
            next_state[state, byte] = edges[e, 2]
    for byte in range(behind, 256):
        next_state[state, byte] = -1
    is_written[state] = 1  # last: whoever reads it finds the row, too


@compiled
def _searched(edges: Ints, edge_begin: Ints, state: int, byte: int) -> int:
    """The state behind a byte, -1 where there is none, of a state whose row is not written."""
    low, high = edge_begin[state], edge_begin[state + 1]
    while low < high:
        middle = (low + high) // 2
        if edges[middle, 1] < byte:
            low = middle + 1
        else:
            high = middle
    return int(edges[low, 2]) if low < edge_begin[state + 1] and edges[low, 0] <= byte else -1


@compiled
def _led_to(edges: Ints, edge_begin: Ints, label: Ints, state: int, first: int, last: int) -> int:
    """The state that all bytes of a range lead to, where no text ends; -1: there is none."""
    if state < 0:
        return -1
    for e in range(edge_begin[state + 1] - 1, edge_begin[state] - 1, -1):
        if edges[e, 1] < last:
            return -1
        if edges[e, 0] <= first:  # edges that could be one are one
            target = edges[e, 2]
            return target if label[target] < 0 else -1
    return -1


@compiled
def _add_kind(
    label: Ints,
    passes: Classes,
    following: Ints,
    state: int,
    num_kinds: int,
    target: int,
    low: np.uint64,
    high: np.uint64,
) -> int:
    """Note that some classes lead to a state, if there is room; how many kinds there are now."""
    if target < 0 or label[target] >= 0:
        return num_kinds
    kind = 0
    while kind < num_kinds and following[state, kind] != target:
        kind += 1
    if kind == KINDS:
        return num_kinds
    following[state, kind] = target
    for place in (kind, _ANY):
        passes[state, place, 0] |= low
        passes[state, place, 1] |= high
    return max(num_kinds, kind + 1)


@compiled
def _bits(first: int, last: int) -> np.uint64:
    """The bits of some places of a word, the last one included; none if it is before the first."""
    if last < first:
        return np.uint64(0)
    return (~np.uint64(0) >> np.uint64(63 - last + first)) << np.uint64(first)


@compiled
def _find_kinds(
    edges: Ints,
    edge_begin: Ints,
    label: Ints,
    passes: Classes,
    following: Ints,
    num_kinds: Flags,
    state: int,
) -> None:
    """Find the states that come behind most characters, and the classes of characters they come behind.

    Args:
        edges: As of `walk`.
        edge_begin: As of `walk`.
        label: As of `walk`.
        passes: Gets the classes by state and kind, none where a text may end behind the characters; and
            behind them those of all kinds. Shape: (S, NUM_ROWS, 2).
        following: Gets the states, the commonest first. Shape: (S, KINDS).
        num_kinds: Gets one more than there are. Shape: (S,).
        state: Whose.
    """
    none = np.uint64(0)
    target, votes = -1, 0
    for e in range(edge_begin[state], edge_begin[state + 1]):
        if edges[e, 0] < 0x80:
            count = edges[e, 1] - edges[e, 0] + 1
            if edges[e, 2] == target:
                votes += count
            elif votes >= count:
                votes -= count
            else:
                target, votes = edges[e, 2], count - votes
    kinds = _add_kind(label, passes, following, state, 0, target, none, none)
    # Characters as UTF-8 has them: neither longer than need be nor surrogates.
    table = (edges, edge_begin, label)
    for lead, until, classes in ((0xC2, 0xC2, _LATIN), (0xC3, 0xDF, _TWO)):
        last = _led_to(*table, state, lead, until)
        target = _led_to(*table, last, 0x80, 0xBF)
        kinds = _add_kind(label, passes, following, state, kinds, target, classes, none)
    known = -1
    for lead in range(0xE0, 0xF0):
        middle = _led_to(*table, state, lead, lead)
        if middle != known or lead <= 0xE1 or lead == 0xED or lead == 0xEE:
            lowest = 0xA0 if lead == 0xE0 else 0x80
            highest = 0x9F if lead == 0xED else 0xBF
            last = _led_to(*table, middle, lowest, highest)
            target = _led_to(*table, last, 0x80, 0xBF)
            known = middle
        kinds = _add_kind(label, passes, following, state, kinds, target, _THREE[lead - 0xE0], none)
    first = _led_to(*table, state, 0xF1, 0xF3)
    small = _led_to(*table, state, 0xF0, 0xF0)
    large = _led_to(*table, state, 0xF4, 0xF4)
    middle = _led_to(*table, first, 0x80, 0xBF)
    last = _led_to(*table, middle, 0x80, 0xBF)
    if _led_to(*table, small, 0x90, 0xBF) == middle and _led_to(*table, large, 0x80, 0x8F) == middle:
        target = _led_to(*table, last, 0x80, 0xBF)
        kinds = _add_kind(label, passes, following, state, kinds, target, _FOUR, none)
    for e in range(edge_begin[state], edge_begin[state + 1]):
        first, last = max(edges[e, 0], 32), min(edges[e, 1], 127)
        if first <= last:
            low, high = _bits(first, min(last, 63)), _bits(max(first, 64) - 64, last - 64)
            kinds = _add_kind(label, passes, following, state, kinds, edges[e, 2], low, high)
    num_kinds[state] = kinds + 1  # last: whoever reads it finds the rest, too


@compiled
def _behind(passes: Classes, following: Ints, num_kinds: Flags, state: int, first: int) -> int:
    """The state behind all characters that begin with a byte, which is no character; -1: not known."""
    for kind in range(int(num_kinds[state]) - 1):
        if passes[state, kind, 0] & _CLASS[first, 0]:
            return int(following[state, kind])
    return -1


@compiled
def _count(low: np.uint64, high: np.uint64) -> int:
    """How many classes there are."""
    number = 0
    while low != 0:
        low &= low - _ONE
        number += 1
    while high != 0:
        high &= high - _ONE
        number += 1
    return number


@compiled
def _met(queue: Ints, num_met: int, state: int, left: int) -> int:
    """Put a state into a queue that it is not in, with the characters left there, and return how many are in.

    -1 where there is no room. `queue` is as of `_all_pass`.
    """
    for n in range(num_met):
        if queue[n, 0] == state:
            return num_met
    if num_met == _MOST_STATES:
        return -1
    queue[num_met, 0] = state
    queue[num_met, 1] = left
    return num_met + 1


@compiled
def _keeping(
    edges: Ints,
    edge_begin: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    passes: Classes,
    following: Ints,
    num_kinds: Flags,
    state: int,
    widest: int,
    length: int,
    queue: Ints,
) -> tuple[np.uint64, np.uint64]:
    """Find classes, among those of a kind, of which all texts of so many characters pass from a state on.

    They are not always all there are, and none where more states would have to be looked at than `queue`, as
    of `_all_pass`, has room for.
    """
    low, high = passes[state, widest, 0], passes[state, widest, 1]
    is_narrower = True
    while is_narrower and (low != 0 or high != 0):
        kept_low, kept_high = low, high
        queue[0, 0] = state
        queue[0, 1] = length
        num_met = 1
        n = 0
        while n < num_met and queue[n, 1] > 0:
            at, left = queue[n, 0], queue[n, 1]
            n += 1
            for kind in range(int(num_kinds[at]) - 1):
                by_low, by_high = low & passes[at, kind, 0], high & passes[at, kind, 1]
                if by_low == 0 and by_high == 0:
                    continue
                after = following[at, kind]
                if num_kinds[after] == 0:
                    _find_kinds(edges, edge_begin, label, passes, following, num_kinds, after)
                lost_low = lost_high = np.uint64(0)
                if left > 1:
                    lost_low, lost_high = low & ~passes[after, _ANY, 0], high & ~passes[after, _ANY, 1]
                if not alive[after]:
                    lost_low, lost_high = by_low, by_high
                elif _count(by_low, by_high) <= _count(lost_low, lost_high):
                    # Less is given up than where they lead to would not let through.
                    lost_low, lost_high = by_low, by_high
                if lost_low != 0 or lost_high != 0:
                    kept_low &= ~lost_low
                    kept_high &= ~lost_high
                    continue
                num_met = _met(queue, num_met, after, left - 1)
                if num_met < 0:
                    return np.uint64(0), np.uint64(0)
        is_narrower = kept_low != low or kept_high != high
        low, high = kept_low, kept_high
    return low, high


@compiled
def _find_keeping(
    edges: Ints,
    edge_begin: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    passes: Classes,
    following: Ints,
    num_kinds: Flags,
    state: int,
    queue: Ints,
) -> None:
    """Find classes of which all short texts pass from a state on, of all its kinds or of the commonest alone.

    Nearly every subtree is asked about in one of a few states, and these answer for most. `queue` is as of
    `_all_pass`.
    """
    table = (edges, edge_begin, label, alive, passes, following, num_kinds)
    low = high = np.uint64(0)
    length = _SHORT
    while length > 0:
        low, high = _keeping(*table, state, _ANY, length, queue)
        if low == 0 and high == 0:
            low, high = _keeping(*table, state, 0, length, queue)
        if low != 0 or high != 0:
            break
        length -= 1
    passes[state, _KEEP, 1] = high
    # Last: whoever reads it finds the rest, too.
    passes[state, _KEEP, 0] = low | _IS_KNOWN | np.uint64(length) << _LENGTH


@compiled
def _all_pass(
    edges: Ints,
    edge_begin: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    passes: Classes,
    following: Ints,
    num_kinds: Flags,
    state: int,
    low: np.uint64,
    high: np.uint64,
    length: int,
    queue: Ints,
) -> bool:
    """Whether all texts of some classes of characters, of so many at most, pass from a state on.

    `queue` is room for states and the characters that are left there, of shape (_MOST_STATES, 2).
    """
    queue[0, 0] = state
    queue[0, 1] = length
    num_met = 1
    n = 0
    # Breadth first: where a state is met again, no more characters are left than there were.
    while n < num_met:
        state, left = queue[n, 0], queue[n, 1]
        n += 1
        if left == 0:
            break
        if num_kinds[state] == 0:
            _find_kinds(edges, edge_begin, label, passes, following, num_kinds, state)
        if low & ~passes[state, _ANY, 0] or high & ~passes[state, _ANY, 1]:
            return False
        for kind in range(int(num_kinds[state]) - 1):
            if not low & passes[state, kind, 0] and not high & passes[state, kind, 1]:
                continue
            after = following[state, kind]
            if not alive[after]:
                return False
            num_met = _met(queue, num_met, after, left - 1)
            if num_met < 0:
                return False
    return True


@compiled
def _mark(tokens: Ints, runs: Ints, num_runs: int, mask: Words) -> None:
    """Set the bits of some runs of tokens."""
    for run in range(num_runs):
        for t in range(runs[run, 0], runs[run, 1]):
            token = tokens[t]
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@compiled
def walk(
    next_state: Ints,
    is_written: Flags,
    edges: Ints,
    edge_begin: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    passes: Classes,
    following: Ints,
    num_kinds: Flags,
    state: int,
    nodes: Ints,
    below: Classes,
    tokens: Ints,
    everything: Words,
    max_depth: int,
    roots: Ints,
    mask: Words,
    found: Ints,
) -> None:
    """Mark the tokens below some nodes that the table lets through, and list where texts have ended.

    Args:
        next_state: By state and byte, -1 where there is none, as far as rows are written. Shape: (S, 256).
        is_written: By state, whether its row is. Shape: (S,).
        edges: First byte, last byte and next state, by state. Shape: (E, 3).
        edge_begin: Where those of each state begin. Shape: (S + 1,).
        label: By state, -1 where no text ends. Shape: (S,).
        alive: Whether a state may be reached. Shape: (S,).
        passes: Of `_find_kinds`, as far as they have been found.
        following: Of `_find_kinds`.
        num_kinds: Of `_find_kinds`; 0 where they have not been found yet.
        state: At each root.
        nodes: Byte and, above it, the characters of the longest text below; depth; end of the subtree; first
            token; and what `classify` finds, in depth-first order; and a last row for the end of the tokens.
            What is read of a node is half a cache line. Shape: (N + 1, 8).
        below: The same as words of 64 bits. Shape: (N + 1, 4).
        tokens: Ids by node. Shape: (T,).
        everything: The mask of all tokens. Shape: (ceil(V / 32),).
        max_depth: Of all nodes.
        roots: Positions of nodes.
        mask: Gets a bit for each token, if they are more than 64.
        found: Gets the number of tokens; the number of exits; the first 64 tokens, if there are no more; and
            for each exit, as long as there is room, its position and its label.
    """
    states = np.empty(max_depth + 1, np.int32)
    queue = np.empty((_MOST_STATES, 2), np.int32)
    runs = np.empty((_MOST_RUNS, 2), np.int32)
    num_runs = 0
    is_marked = False
    num_tokens = 0
    num_exits = 0
    _write_row(next_state, is_written, edges, edge_begin, state)
    if num_kinds[state] == 0:
        _find_kinds(edges, edge_begin, label, passes, following, num_kinds, state)
    for r in range(len(roots)):
        root = roots[r]
        end = nodes[root, 2]
        states[nodes[root, 1]] = state
        position = root + 1
        begin = stop = nodes[position, 3]
        while position < end:
            depth = nodes[position, 1]
            behind = nodes[position, 2]
            byte = nodes[position, 0] & 255
            before = states[depth - 1]
            if is_written[before]:
                after = next_state[before, byte]
            else:
                after = _searched(edges, edge_begin, before, byte)
            if after < 0 or not alive[after]:
                position = behind
                continue
            last = position + 1
            if behind > last:
                states[depth] = after
                if label[after] >= 0:
                    room = 2 + _FEW + 2 * num_exits
                    if room + 1 < len(found):
                        found[room] = position
                        found[room + 1] = label[after]
                    num_exits += 1
                elif num_kinds[after] != 0 or behind - position > _SMALL_TREE:
                    if num_kinds[after] == 0:
                        _find_kinds(edges, edge_begin, label, passes, following, num_kinds, after)
                    at = after
                    if byte >= 0xC2:
                        # The whole character is written first; where it may not be, nothing is known.
                        at = _behind(passes, following, num_kinds, before, byte)
                        if at >= 0 and num_kinds[at] == 0:
                            _find_kinds(edges, edge_begin, label, passes, following, num_kinds, at)
                    low, high = below[position, _LOW], below[position, _HIGH]
                    length = nodes[position, 0] >> 8
                    # Most states say no here, which a call would take longer for.
                    if at >= 0 and not low & ~passes[at, _ANY, 0] and not high & ~passes[at, _ANY, 1]:
                        kept = passes[at, _KEEP, 0]
                        if kept == 0:
                            _find_keeping(
                                edges, edge_begin, label, alive, passes, following, num_kinds, at, queue
                            )
                            kept = passes[at, _KEEP, 0]
                        if (
                            not low & ~kept
                            and not high & ~passes[at, _KEEP, 1]
                            and length <= int(kept >> _LENGTH & _MOST_LENGTH)
                        ) or (
                            behind - position > _SMALL_TREE
                            and _all_pass(
                                edges,
                                edge_begin,
                                label,
                                alive,
                                passes,
                                following,
                                num_kinds,
                                at,
                                low,
                                high,
                                length,
                                queue,
                            )
                        ):
                            last = behind
                if last != behind and behind - position > _SMALL_TREE and not is_written[after]:
                    _write_row(next_state, is_written, edges, edge_begin, after)
            if nodes[position, 3] != stop:
                if stop > begin:
                    if num_runs == _MOST_RUNS:
                        _mark(tokens, runs, num_runs, mask)
                        num_runs = 0
                        is_marked = True
                    runs[num_runs, 0] = begin
                    runs[num_runs, 1] = stop
                    num_runs += 1
                    num_tokens += stop - begin
                begin = nodes[position, 3]
            stop = nodes[last, 3]
            position = last
        if stop > begin:
            if num_runs == _MOST_RUNS:
                _mark(tokens, runs, num_runs, mask)
                num_runs = 0
                is_marked = True
            runs[num_runs, 0] = begin
            runs[num_runs, 1] = stop
            num_runs += 1
            num_tokens += stop - begin
    found[0] = num_tokens
    found[1] = num_exits
    if num_tokens <= _FEW:
        place = 2
        for run in range(num_runs):
            for t in range(runs[run, 0], runs[run, 1]):
                found[place] = tokens[t]
                place += 1
    elif len(roots) == 1 and not is_marked and num_tokens > len(tokens) // 2:
        # The tokens that do not pass are fewer.
        mask[:] = everything
        stop = 0
        for run in range(num_runs + 1):
            begin = runs[run, 0] if run < num_runs else len(tokens)
            for t in range(stop, begin):
                token = tokens[t]
                mask[token >> 5] &= ~(np.uint32(1) << np.uint32(token & 31))
            if run < num_runs:
                stop = runs[run, 1]
    else:
        _mark(tokens, runs, num_runs, mask)


@compiled
def trace(
    next_state: Ints,
    is_written: Flags,
    edges: Ints,
    edge_begin: Ints,
    state: int,
    nodes: Ints,
    max_depth: int,
    roots: Ints,
    counted: int,
    except_byte: int,
    found: Ints,
) -> int:
    """List the positions below some nodes that the table lets through.

    Args:
        next_state: As of `walk`.
        is_written: As of `walk`.
        edges: As of `walk`.
        edge_begin: As of `walk`.
        state: As of `walk`.
        nodes: As of `walk`.
        max_depth: As of `walk`.
        roots: As of `walk`.
        counted: A state: what leads out of it is counted,
        except_byte: except by this byte.
        found: Gets the positions, the state at each, and the count on the way to each. Shape: (3, room).

    Returns:
        How many there are.
    """
    states = np.empty(max_depth + 1, np.int32)
    counts = np.zeros(max_depth + 1, np.int32)
    num_found = 0
    _write_row(next_state, is_written, edges, edge_begin, state)
    for r in range(len(roots)):
        root = roots[r]
        end = nodes[root, 2]
        states[nodes[root, 1]] = state
        counts[nodes[root, 1]] = 0
        position = root + 1
        while position < end:
            depth = nodes[position, 1]
            before = states[depth - 1]
            byte = nodes[position, 0] & 255
            if is_written[before]:
                after = next_state[before, byte]
            else:
                after = _searched(edges, edge_begin, before, byte)
            if after < 0:
                position = nodes[position, 2]
                continue
            if nodes[position, 2] - position > _SMALL_TREE and not is_written[after]:
                _write_row(next_state, is_written, edges, edge_begin, after)
            states[depth] = after
            counts[depth] = counts[depth - 1] + (before == counted and byte != except_byte)
            found[0, num_found] = position
            found[1, num_found] = after
            found[2, num_found] = counts[depth]
            num_found += 1
            position += 1
    return num_found
