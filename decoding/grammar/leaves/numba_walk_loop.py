"""The compiled loops that walk a trie under the table of an automaton."""

import numpy as np
import numpy.typing as npt

from decoding.grammar.leaves.leaf import FEW_TOKENS
from decoding.kernels.compiling import compiled

Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]

# The same in every process: the loop is kept compiled, and kept code does not notice another file's change.
_FEW = 64
if _FEW != FEW_TOKENS:
    raise ImportError(f"the compiled loop has room for {_FEW} tokens, leaves call {FEW_TOKENS} tokens few")


@compiled
def walk(
    next_state: Ints,
    label: Ints,
    state: int,
    nodes: Ints,
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
        state: At each root.
        nodes: (byte, depth, end of the subtree, first token) in depth-first order, and a last row for the
            end of the tokens. Shape: (N + 1, 4).
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
            if after < 0:
                position = behind
                continue
            states[depth] = after
            for t in range(nodes[position, 3], nodes[position + 1, 3]):
                token = tokens[t]
                mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
                if num_tokens < _FEW:
                    found[2 + num_tokens] = token
                num_tokens += 1
            if behind > position + 1 and label[after] >= 0:
                room = 2 + _FEW + 2 * num_exits
                if room + 1 < len(found):
                    found[room] = position
                    found[room + 1] = label[after]
                num_exits += 1
            position += 1
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
