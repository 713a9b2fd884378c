"""The trie's hot loops, compiled for the CPU: plain integers and arrays in, arrays filled.

What changes from call to call comes as the address of contiguous values, because making an array of a tensor
costs more than the loop of a small step; the caller holds the tensor meanwhile.

Loops run in one thread and do not hold Python's lock. A trie without filters is one lane that allows all
rows. All take a state apart as `decoding.kernels.states` says; `begin` and `end` are runs of positions.

Compiled code is kept beside this file or wherever NUMBA_CACHE_DIR says; where neither can be written, it is
compiled once per process.
"""

# numba reads the code of functions, not their annotations, and needs the types of its intrinsic as objects.

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core import cgutils, types
from numba.extending import intrinsic

from decoding.kernels.states import POSITION_BITS, POSITION_MASK

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Tokens = npt.NDArray[np.unsignedinteger]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Decorator(Protocol):
    def __call__(self, function: _Function) -> _Function: ...


# Every compiled function, those that only the others call included.
COMPILED: list[Callable[..., Any]] = []


def _compiled(function: _Function) -> _Function:
    try:
        keeping: _Decorator = numba.njit(cache=True, nogil=True)
        compiled = keeping(function)
    except RuntimeError:  # no place for compiled code can be written
        passing: _Decorator = numba.njit(nogil=True)
        compiled = passing(function)
    COMPILED.append(compiled)
    return compiled


def _to_pointer(typing_context: Any, address: Any) -> Any:
    """Say how an address, an integer, becomes a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


_pointer: Callable[[int], Any] = intrinsic(_to_pointer)


@_compiled
def _place(state: int, stride: int) -> tuple[int, int, int]:
    """Return (position, row_end, lane) of a state that is not -1."""
    row_end = state >> POSITION_BITS
    lane = row_end // stride
    return state & POSITION_MASK, row_end - lane * stride, lane


@_compiled
def _child_run(position: int, row_end: int, child_begin: Ints, tail_begin: Ints) -> tuple[int, int]:
    """Return the run of positions where the children of a place are."""
    num_nodes = len(child_begin) - 1
    following = position + 1  # in a tail
    if position < num_nodes:
        begin, end = int(child_begin[position]), int(child_begin[position + 1])
        if begin < end or row_end == 0:  # without rows, the root has no tail either
            return begin, end
        following = int(tail_begin[row_end - 1])
    return following, min(following + 1, int(tail_begin[row_end]))


@_compiled
def _first_row(position: int, row_end: int, row_begin: Ints) -> int:
    """Return the rank of the first row below a place that has rows: in a tail, of its only row."""
    return int(row_begin[position]) if position < len(row_begin) - 1 else row_end - 1


@_compiled
def count_children(address: int, num_states: int, child_begin: Ints, tail_begin: Ints) -> int:
    """Return the number of edges out of all states, allowed or not.

    Args:
        address: Of the states, int64.
        num_states: Their number, n.
        child_begin: Shape: (N + 1,).
        tail_begin: Shape: (R + 1,).
    """
    states = numba.carray(_pointer(address), (num_states,), np.int64)
    total = 0
    for at in range(num_states):
        if states[at] >= 0:
            position, row_end, _ = _place(states[at], len(tail_begin))
            begin, end = _child_run(position, row_end, child_begin, tail_begin)
            total += max(end - begin, 0)
    return total


@_compiled
def fill_children(
    address: int,
    num_states: int,
    token: Tokens,
    child_begin: Ints,
    row_begin: Ints,
    tail_begin: Ints,
    filters: Longs,
    edges: Longs,
) -> int:
    """Write the allowed edges out of all states and return their number.

    Args:
        address: Of the states, int64.
        num_states: Their number, n.
        token: Shape: (N + T,).
        child_begin: Shape: (N + 1,).
        row_begin: Shape: (N + 1,).
        tail_begin: Shape: (R + 1,).
        filters: Per lane the address of R + 1 counts, int32; 0: all rows. Shape: (L,).
        edges: Written to: owner, token and next state. Room for all edges, allowed or not. Shape: (3, E).
    """
    states = numba.carray(_pointer(address), (num_states,), np.int64)
    stride = len(tail_begin)
    edge = 0
    for at in range(num_states):
        if states[at] < 0:
            continue
        position, row_end, lane = _place(states[at], stride)
        begin, end = _child_run(position, row_end, child_begin, tail_begin)
        if begin >= end:
            continue
        filtered = filters[lane] != 0
        counts = numba.carray(_pointer(filters[lane]), (stride,), np.int32)
        before = counts[_first_row(position, row_end, row_begin)] if filtered else np.int32(0)
        for child in range(begin, end):
            last = int(row_begin[child + 1]) if child + 1 < end else row_end
            # Written in any case and kept or not: a branch on the filter would be guessed wrong too often.
            edges[0, edge] = at
            edges[1, edge] = token[child]
            edges[2, edge] = ((last + lane * stride) << POSITION_BITS) | child
            if filtered:
                upto = counts[last]
                edge += upto > before
                before = upto
            else:
                edge += 1
    return edge


@_compiled
def pad_children(
    address: int,
    num_states: int,
    token: Tokens,
    child_begin: Ints,
    row_begin: Ints,
    tail_begin: Ints,
    filters: Longs,
    padded: Longs,
) -> int:
    """Write the edges out of each state in as many columns as there are; return how many were needed.

    Args:
        address: Of the states, int64.
        num_states: Their number, n.
        token: Shape: (N + T,).
        child_begin: Shape: (N + 1,).
        row_begin: Shape: (N + 1,).
        tail_begin: Shape: (R + 1,).
        filters: Per lane the address of R + 1 counts, int32; 0: all rows. Shape: (L,).
        padded: Token and next state, written to where there is an edge. Shape: (2, n, width).
    """
    states = numba.carray(_pointer(address), (num_states,), np.int64)
    stride, width, most = len(tail_begin), padded.shape[2], 0
    for at in range(num_states):
        if states[at] < 0:
            continue
        position, row_end, lane = _place(states[at], stride)
        begin, end = _child_run(position, row_end, child_begin, tail_begin)
        if begin >= end:
            continue
        most = max(most, end - begin)
        filtered = filters[lane] != 0
        counts = numba.carray(_pointer(filters[lane]), (stride,), np.int32)
        before = counts[_first_row(position, row_end, row_begin)] if filtered else np.int32(0)
        for child in range(begin, min(end, begin + width)):
            last = int(row_begin[child + 1]) if child + 1 < end else row_end
            if filtered:
                upto = counts[last]
                grows = upto > before
                before = upto
                if not grows:
                    continue
            padded[0, at, child - begin] = token[child]
            padded[1, at, child - begin] = ((last + lane * stride) << POSITION_BITS) | child
    return most


@_compiled
def verify(
    address: int,
    num_states: int,
    token_address: int,
    token: Tokens,
    child_begin: Ints,
    row_begin: Ints,
    tail_begin: Ints,
    filters: Longs,
    next_states: Longs,
) -> None:
    """Write the next state of every candidate, -1 where there is none.

    Args:
        address: Of the states, int64.
        num_states: Their number, n.
        token_address: Of the candidates, (n, M), int64.
        token: Shape: (N + T,).
        child_begin: Shape: (N + 1,).
        row_begin: Shape: (N + 1,).
        tail_begin: Shape: (R + 1,).
        filters: Per lane the address of R + 1 counts, int32; 0: all rows. Shape: (L,).
        next_states: Written to. Shape: (n, M).
    """
    states = numba.carray(_pointer(address), (num_states,), np.int64)
    token_ids = numba.carray(_pointer(token_address), next_states.shape, np.int64)
    stride = len(tail_begin)
    for at in range(num_states):
        next_states[at, :] = -1
        if states[at] < 0:
            continue
        position, row_end, lane = _place(states[at], stride)
        begin, end = _child_run(position, row_end, child_begin, tail_begin)
        if begin >= end:
            continue
        counts = numba.carray(_pointer(filters[lane]), (stride,), np.int32)
        for column in range(token_ids.shape[1]):
            wanted = token_ids[at, column]
            child, left = begin, end - begin
            while left > 1:
                half = left >> 1
                if np.int64(token[child + half]) <= wanted:
                    child += half
                left -= half
            if np.int64(token[child]) != wanted:
                continue
            last = int(row_begin[child + 1]) if child + 1 < end else row_end
            if filters[lane] == 0 or counts[last] > counts[_first_row(child, last, row_begin)]:
                next_states[at, column] = ((last + lane * stride) << POSITION_BITS) | child


@_compiled
def find_finals(
    address: int, num_states: int, child_begin: Ints, tail_begin: Ints, final: npt.NDArray[np.bool_]
) -> None:
    """Write whether nothing follows a place that is not the root.

    Args:
        address: Of the states, int64.
        num_states: Their number, n.
        child_begin: Shape: (N + 1,).
        tail_begin: Shape: (R + 1,).
        final: Written to. Shape: (n,).
    """
    states = numba.carray(_pointer(address), (num_states,), np.int64)
    for at in range(num_states):
        final[at] = False
        if states[at] >= 0:
            position, row_end, _ = _place(states[at], len(tail_begin))
            begin, end = _child_run(position, row_end, child_begin, tail_begin)
            final[at] = begin == end and position > 0


@_compiled
def count_runs(address: int, num_states: int, child_begin: Ints, tail_begin: Ints, widths: Longs) -> None:
    """Write how many children each state has in the trie, whatever its filter.

    Args:
        address: Of the states, int64.
        num_states: Their number, n.
        child_begin: Shape: (N + 1,).
        tail_begin: Shape: (R + 1,).
        widths: Written to. Shape: (n,).
    """
    states = numba.carray(_pointer(address), (num_states,), np.int64)
    for at in range(num_states):
        widths[at] = 0
        if states[at] >= 0:
            position, row_end, _ = _place(states[at], len(tail_begin))
            begin, end = _child_run(position, row_end, child_begin, tail_begin)
            widths[at] = end - begin
