"""The compiled loops that walk a trie under the table of an automaton.

Most states of strings treat nearly all characters alike: one state comes behind them, often the state itself.
From there whole subtrees of the trie pass without being walked, if all that they write are characters of that
kind. What a subtree writes is kept as *classes*, one bit each: some ranges of ASCII, every punctuation mark
by itself, and the characters of two, three and four bytes.
"""

import numpy as np
import numpy.typing as npt

from decoding.grammar.leaves.leaf import FEW_TOKENS
from decoding.kernels.compiling import compiled

Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]
Classes = npt.NDArray[np.uint64]

# The same in every process: the loop is kept compiled, and kept code does not notice another file's change.
_FEW = 64
if _FEW != FEW_TOKENS:
    raise ImportError(f"the compiled loop has room for {_FEW} tokens, leaves call {FEW_TOKENS} tokens few")

_TWO, _THREE, _FOUR, _NO_CHARACTER = 60, 61, 62, 63


def _class_bits() -> Classes:
    """By byte, the bit of its class; all bytes beyond ASCII have that of no character. Shape: (256,)."""
    bits = np.full(256, 1 << _NO_CHARACTER, np.uint64)
    names: dict[str, int] = {}
    for byte in range(128):
        text = chr(byte)
        if byte < 32:
            name = "control"
        elif text.isdigit():
            name = "digit"
        elif text.isalpha():
            name = f"{text.isupper()} {text.lower() > 'f'}"
        else:
            name = text
        bits[byte] = 1 << names.setdefault(name, len(names))
    return bits


_CLASS = _class_bits()
_UNKNOWN = -2


@compiled
def classify(nodes: Ints, max_depth: int, below: Classes, height: Ints) -> None:
    """Find what is written below every node, as characters that begin right behind it.

    Args:
        nodes: As of `walk`.
        max_depth: Of all nodes.
        below: Gets the classes; the last one for bytes that no characters begin or go on with. Shape: (N,).
        height: Gets the bytes of the longest text below. Shape: (N,).
    """
    # By depth of the node we are below: what is written there as characters; as the rest of a character of
    # which one, two or three bytes are missing; and behind e0, ed, f0 and f4, which have rules of their own.
    found = np.zeros((max_depth + 2, 8), np.uint64)
    heights = np.zeros(max_depth + 2, np.int32)
    open_nodes = np.zeros(max_depth + 2, np.int32)
    two, three = np.uint64(1) << np.uint64(_TWO), np.uint64(1) << np.uint64(_THREE)
    four, no = np.uint64(1) << np.uint64(_FOUR), np.uint64(1) << np.uint64(_NO_CHARACTER)
    depth = 0
    for position in range(1, len(nodes)):
        # The row behind the last node has depth 0 and closes all that are open but the root.
        next_depth = max(nodes[position, 1], 1)
        while depth >= next_depth:
            node = open_nodes[depth]
            here, above = found[depth], found[depth - 1]
            below[node] = here[0]
            height[node] = heights[depth]
            heights[depth - 1] = max(heights[depth - 1], heights[depth] + 1)
            byte = nodes[node, 0]
            if byte < 0x80:
                above[0] |= _CLASS[byte] | here[0]
            elif 0xC2 <= byte <= 0xDF:
                above[0] |= two | here[1]
            elif 0xE0 <= byte <= 0xEF:
                above[0] |= three | (here[4] if byte == 0xE0 else here[5] if byte == 0xED else here[2])
            elif 0xF0 <= byte <= 0xF4:
                above[0] |= four | (here[6] if byte == 0xF0 else here[7] if byte == 0xF4 else here[3])
            else:
                above[0] |= no
            goes_on = 0x80 <= byte <= 0xBF
            above[1] |= here[0] if goes_on else no
            above[2] |= here[1] if goes_on else no
            above[3] |= here[2] if goes_on else no
            above[4] |= here[1] if goes_on and byte >= 0xA0 else no
            above[5] |= here[1] if goes_on and byte < 0xA0 else no
            above[6] |= here[2] if goes_on and byte >= 0x90 else no
            above[7] |= here[2] if goes_on and byte < 0x90 else no
            depth -= 1
        if position == len(nodes) - 1:
            break
        depth = next_depth
        open_nodes[depth] = position
        found[depth] = 0
        heights[depth] = 0
    below[0] = found[0, 0]
    height[0] = heights[0]


@compiled
def _led_to(next_state: Ints, label: Ints, state: int, first: int, last: int) -> int:
    """The state that all bytes of a range lead to, where no text ends; -1: there is none."""
    target = next_state[state, first] if state >= 0 else -1
    if target < 0 or label[target] >= 0:
        return -1
    for byte in range(first + 1, last + 1):
        if next_state[state, byte] != target:
            return -1
    return target


@compiled
def _behind_most(next_state: Ints, label: Ints, state: int, passes: Classes, following: Ints) -> None:
    """Find the state that comes behind most characters, and the classes of characters it comes behind.

    Args:
        next_state: As of `walk`.
        label: As of `walk`.
        state: Whose.
        passes: Gets the classes, none where a text may end behind the characters. Shape: (S,).
        following: Gets the state. Shape: (S,).
    """
    target, votes = -1, 0
    for byte in range(32, 127):
        after = next_state[state, byte]
        if after >= 0:
            if votes == 0:
                target = after
            votes += 1 if after == target else -1
    found = np.uint64(0)
    if target >= 0 and label[target] < 0:
        refused = np.uint64(0)
        for byte in range(128):
            if next_state[state, byte] == target:
                found |= _CLASS[byte]
            else:
                refused |= _CLASS[byte]
        found &= ~refused
        # Characters as UTF-8 has them: neither longer than need be nor surrogates.
        last = _led_to(next_state, label, state, 0xC2, 0xDF)
        if _led_to(next_state, label, last, 0x80, 0xBF) == target:
            found |= np.uint64(1) << np.uint64(_TWO)
        middle = _led_to(next_state, label, state, 0xE1, 0xEC)
        small = _led_to(next_state, label, state, 0xE0, 0xE0)
        large = _led_to(next_state, label, state, 0xED, 0xED)
        last = _led_to(next_state, label, middle, 0x80, 0xBF)
        if (
            _led_to(next_state, label, last, 0x80, 0xBF) == target
            and _led_to(next_state, label, state, 0xEE, 0xEF) == middle
            and _led_to(next_state, label, small, 0xA0, 0xBF) == last
            and _led_to(next_state, label, large, 0x80, 0x9F) == last
        ):
            found |= np.uint64(1) << np.uint64(_THREE)
        first = _led_to(next_state, label, state, 0xF1, 0xF3)
        small = _led_to(next_state, label, state, 0xF0, 0xF0)
        large = _led_to(next_state, label, state, 0xF4, 0xF4)
        middle = _led_to(next_state, label, first, 0x80, 0xBF)
        last = _led_to(next_state, label, middle, 0x80, 0xBF)
        if (
            _led_to(next_state, label, last, 0x80, 0xBF) == target
            and _led_to(next_state, label, small, 0x90, 0xBF) == middle
            and _led_to(next_state, label, large, 0x80, 0x8F) == middle
        ):
            found |= np.uint64(1) << np.uint64(_FOUR)
    passes[state] = found
    following[state] = target  # last: whoever reads it finds the classes, too


@compiled
def _all_pass(
    next_state: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    passes: Classes,
    following: Ints,
    state: int,
    written: int,
    length: int,
) -> bool:
    """Whether all texts of some classes of characters, of so many bytes at most, pass from a state on."""
    for _ in range(length):
        if following[state] == _UNKNOWN:
            _behind_most(next_state, label, state, passes, following)
        after = following[state]
        if written & ~passes[state] or not alive[after]:
            return False
        if after == state:
            return True
        state = after
    return True


@compiled
def walk(
    next_state: Ints,
    label: Ints,
    alive: npt.NDArray[np.bool_],
    passes: Classes,
    following: Ints,
    state: int,
    nodes: Ints,
    below: Classes,
    height: Ints,
    tokens: Ints,
    max_depth: int,
    roots: Ints,
    mask: Words,
    found: Ints,
) -> None:
    """Mark the tokens below some nodes that the table lets through, and list where texts have ended.

    Args:
        next_state: By state and byte, -1 where there is none. Shape: (S, 256).
        label: By state, -1 where no text ends. Shape: (S,).
        alive: Whether a state may be reached. Shape: (S,).
        passes: By state, classes of characters, as far as they have been found. Shape: (S,).
        following: The state behind those characters; -2 where they have not been found yet. Shape: (S,).
        state: At each root.
        nodes: (byte, depth, end of the subtree, first token) in depth-first order, and a last row for the
            end of the tokens. Shape: (N + 1, 4).
        below: Of `classify`.
        height: Of `classify`.
        tokens: Ids by node. Shape: (T,).
        max_depth: Of all nodes.
        roots: Positions of nodes.
        mask: Gets a bit for each token.
        found: Gets the number of tokens; the number of exits; the first 64 tokens; and for each exit, as
            long as there is room, its position and its label.
    """
    states = np.empty(max_depth + 1, np.int32)
    num_tokens = 0
    num_exits = 0
    for r in range(len(roots)):
        root = roots[r]
        end = nodes[root, 2]
        states[nodes[root, 1]] = state
        position = root + 1
        while position < end:
            depth = nodes[position, 1]
            behind = nodes[position, 2]
            after = next_state[states[depth - 1], nodes[position, 0]]
            if after < 0 or not alive[after]:
                position = behind
                continue
            states[depth] = after
            last = position + 1
            if behind > last and label[after] < 0:
                if following[after] == _UNKNOWN:
                    _behind_most(next_state, label, after, passes, following)
                # Most states say no here, which a call would take longer for.
                if not below[position] & ~passes[after] and _all_pass(
                    next_state, label, alive, passes, following, after, below[position], height[position]
                ):
                    last = behind
            for t in range(nodes[position, 3], nodes[last, 3]):
                token = tokens[t]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                if num_tokens < _FEW:
                    found[2 + num_tokens] = token
                num_tokens += 1
            if label[after] >= 0 and behind > position + 1:
                room = 2 + _FEW + 2 * num_exits
                if room + 1 < len(found):
                    found[room] = position
                    found[room + 1] = label[after]
                num_exits += 1
            position = last
    found[0] = num_tokens
    found[1] = num_exits


@compiled
def trace(
    next_state: Ints,
    state: int,
    nodes: Ints,
    max_depth: int,
    roots: Ints,
    counted: int,
    except_byte: int,
    found: Ints,
) -> int:
    """List the nodes below some that the table lets through.

    Args:
        next_state: As of `walk`, like `state`, `nodes`, `max_depth` and `roots`.
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
    for r in range(len(roots)):
        root = roots[r]
        end = nodes[root, 2]
        states[nodes[root, 1]] = state
        counts[nodes[root, 1]] = 0
        position = root + 1
        while position < end:
            depth = nodes[position, 1]
            before = states[depth - 1]
            byte = nodes[position, 0]
            after = next_state[before, byte]
            if after < 0:
                position = nodes[position, 2]
                continue
            states[depth] = after
            counts[depth] = counts[depth - 1] + (before == counted and byte != except_byte)
            found[0, num_found] = position
            found[1, num_found] = after
            found[2, num_found] = counts[depth]
            num_found += 1
            position += 1
    return num_found
