"""Runs the trie's hot loops on the CPU, compiled by numba.

A call costs a few microseconds; a dozen tensor operations, the alternative for a step of one branch, cost a
hundred. Under a trace (`torch.compile`, fake tensors) the tensor operations take over.

Arguments that change with every call come as the address of contiguous values, because making an array of a
tensor costs more than the loop of a small step; the caller holds the tensor meanwhile.

Loops run in one thread and release the GIL. A trie without filters is one lane that allows all rows. States
are as `decoding.trie.trie_kernels` defines; `begin` and `end` are runs of positions. The loops called from
outside share these arguments:

    address: Address of the states, int64.
    num_states: Their number, n.
    token: Shape: (N + T,).
    child_begin: Shape: (N + 1,).
    row_begin: Shape: (N + 1,).
    tail_begin: Shape: (R + 1,).
    filters: Per lane the address of R + 1 counts, int32; 0: all rows. Shape: (L,).

A state under none of the filters raises ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.compiler import is_compiling

from genret.decoding.constraints import Children, PaddedChildren
from genret.decoding.numba_compiling import compiled, pointer
from genret.decoding.trie.trie_kernels import POSITION_BITS, POSITION_MASK, TorchKernels, TrieTables

_LONG = np.dtype(np.int64)  # NumPy would convert the type at every call
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Tokens = npt.NDArray[np.unsignedinteger]
# An index that may be negative costs one more test, which slows wide steps.
_Index = np.uint64


@compiled
def _place(state: int, stride: int) -> tuple[int, int, int]:
    """Return (position, row_end, lane) of a state that is not -1."""
    row_end = state >> POSITION_BITS
    lane = row_end // stride
    return state & POSITION_MASK, row_end - lane * stride, lane


@compiled
def _state(position: int, row_end: int, shift: int) -> int:
    """Return the state of a place, its ranks shifted to its lane."""
    return ((int(row_end) + shift) << POSITION_BITS) | position


@compiled
def _check_lane(lane: int, filters: Longs) -> None:
    """Refuse a state under a filter that this constraint does not have."""
    if lane >= len(filters):
        raise ValueError("a state stands under a filter that this constraint does not have")


@compiled
def _child_run(position: int, row_end: int, child_begin: Ints, tail_begin: Ints) -> tuple[int, int]:
    """Return the run of positions of a place's children."""
    num_nodes = len(child_begin) - 1
    following = position + 1  # in a tail
    if position < num_nodes:
        begin, end = int(child_begin[position]), int(child_begin[position + 1])
        if begin < end or row_end == 0:  # without rows, the root has no tail either
            return begin, end
        following = int(tail_begin[row_end - 1])
    return following, min(following + 1, int(tail_begin[row_end]))


@compiled
def _first_row(position: int, row_end: int, row_begin: Ints) -> int:
    """Return the rank of the first row below a place that has rows: in a tail, of its only row."""
    return int(row_begin[position]) if position < len(row_begin) - 1 else row_end - 1


@compiled
def count_children(address: int, num_states: int, child_begin: Ints, tail_begin: Ints) -> int:
    """Return the number of edges out of all states, allowed or not."""
    states = numba.carray(pointer(address), (num_states,), np.int64)
    total = 0
    for at in range(num_states):
        if states[at] >= 0:
            position, row_end, _ = _place(states[at], len(tail_begin))
            begin, end = _child_run(position, row_end, child_begin, tail_begin)
            total += max(end - begin, 0)
    return total


@compiled
def fill_children(
    address: int,
    num_states: int,
    token: Tokens,
    child_begin: Ints,
    row_begin: Ints,
    tail_begin: Ints,
    filters: Longs,
    owner: Longs,
    tokens: Longs,
    next_state: Longs,
) -> int:
    """Write the allowed edges out of all states and return their number.

    There must be room for all edges, allowed or not, in `owner`, `tokens` and `next_state`, each (E,).
    """
    states = numba.carray(pointer(address), (num_states,), np.int64)
    stride = len(tail_begin)
    edge = 0
    for at in range(num_states):
        if states[at] < 0:
            continue
        position, row_end, lane = _place(states[at], stride)
        begin, end = _child_run(position, row_end, child_begin, tail_begin)
        if begin >= end:
            continue
        _check_lane(lane, filters)
        shift = lane * stride
        if filters[lane] == 0:
            edge = _write_all(
                at, begin, end, row_end, shift, token, row_begin, edge, owner, tokens, next_state
            )
        else:
            counts = numba.carray(pointer(filters[lane]), (stride,), np.int32)
            before = counts[_first_row(position, row_end, row_begin)]
            edge = _write_allowed(
                at,
                begin,
                end,
                row_end,
                shift,
                token,
                row_begin,
                edge,
                owner,
                tokens,
                next_state,
                counts,
                before,
            )
    return edge


@compiled
def _write_all(
    at: int,
    begin: int,
    end: int,
    row_end: int,
    shift: int,
    token: Tokens,
    row_begin: Ints,
    edge: int,
    owner: Longs,
    tokens: Longs,
    next_state: Longs,
) -> int:
    """Write the edges to children [begin, end) of state `at` from `edge` on; return the one behind the last.

    Plain loops, which become vector code.
    """
    ahead = edge - begin
    for child in range(begin, end):
        owner[_Index(ahead + child)] = at
        tokens[_Index(ahead + child)] = token[_Index(child)]
    for child in range(begin, end - 1):
        next_state[_Index(ahead + child)] = _state(child, row_begin[_Index(child + 1)], shift)
    next_state[_Index(ahead + end - 1)] = _state(end - 1, row_end, shift)
    return ahead + end


@compiled
def _write_allowed(
    at: int,
    begin: int,
    end: int,
    row_end: int,
    shift: int,
    token: Tokens,
    row_begin: Ints,
    edge: int,
    owner: Longs,
    tokens: Longs,
    next_state: Longs,
    counts: Ints,
    before: int,
) -> int:
    """Write the edges that lead to an allowed row; see `_write_all`.

    Each edge is written and then kept or not: a branch on the filter would be mispredicted too often.
    `before` is the filter's count at the first row of the first child.
    """
    for child in range(begin, end - 1):
        last = int(row_begin[_Index(child + 1)])
        owner[_Index(edge)] = at
        tokens[_Index(edge)] = token[_Index(child)]
        next_state[_Index(edge)] = _state(child, last, shift)
        upto = counts[_Index(last)]
        edge += upto > before
        before = upto
    owner[_Index(edge)] = at
    tokens[_Index(edge)] = token[_Index(end - 1)]
    next_state[_Index(edge)] = _state(end - 1, row_end, shift)
    return int(edge + (counts[_Index(row_end)] > before))


@compiled
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
    """Write edges to `padded`, token and next state, (2, n, width); return how many columns were needed."""
    states = numba.carray(pointer(address), (num_states,), np.int64)
    stride, width, most = len(tail_begin), padded.shape[2], 0
    for at in range(num_states):
        if states[at] < 0:
            continue
        position, row_end, lane = _place(states[at], stride)
        begin, end = _child_run(position, row_end, child_begin, tail_begin)
        if begin >= end:
            continue
        _check_lane(lane, filters)
        most = max(most, end - begin)
        filtered = filters[lane] != 0
        counts = numba.carray(pointer(filters[lane]), (stride,), np.int32)
        before = counts[_first_row(position, row_end, row_begin)] if filtered else np.int32(0)
        for child in range(begin, min(end, begin + width)):
            last = int(row_begin[child + 1]) if child + 1 < end else row_end
            if filtered:
                upto = counts[last]
                grows, before = upto > before, upto
                if not grows:
                    continue
            padded[0, at, child - begin] = token[child]
            padded[1, at, child - begin] = _state(child, last, lane * stride)
    return most


@compiled
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
    """Write the state behind every candidate (`token_address`, (n, M), int64), -1 for none."""
    states = numba.carray(pointer(address), (num_states,), np.int64)
    token_ids = numba.carray(pointer(token_address), next_states.shape, np.int64)
    stride = len(tail_begin)
    for at in range(num_states):
        next_states[at, :] = -1
        if states[at] < 0:
            continue
        position, row_end, lane = _place(states[at], stride)
        begin, end = _child_run(position, row_end, child_begin, tail_begin)
        if begin >= end:
            continue
        _check_lane(lane, filters)
        counts = numba.carray(pointer(filters[lane]), (stride,), np.int32)
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
                next_states[at, column] = _state(child, last, lane * stride)


@compiled
def find_finals(
    address: int, num_states: int, child_begin: Ints, tail_begin: Ints, final: npt.NDArray[np.bool_]
) -> None:
    """Write to `final`, (n,), whether nothing follows a place other than the root."""
    states = numba.carray(pointer(address), (num_states,), np.int64)
    for at in range(num_states):
        final[at] = False
        if states[at] >= 0:
            position, row_end, _ = _place(states[at], len(tail_begin))
            begin, end = _child_run(position, row_end, child_begin, tail_begin)
            final[at] = begin == end and position > 0


class NumbaKernels(TorchKernels):
    """Compiled loops over a trie's tables on the CPU; under a trace the tensor operations."""

    name = "numba"

    def __init__(self, tables: TrieTables, prefixes: Sequence[Tensor | None] = (None,)) -> None:
        super().__init__(tables, [None if prefix is None else prefix.contiguous() for prefix in prefixes])
        token = tables.token.numpy()
        unsigned: Tokens = token.view(f"u{token.itemsize}")
        addresses = [0 if prefix is None else prefix.data_ptr() for prefix in self._prefixes]
        filters: Longs = np.array(addresses, dtype=np.int64)
        # What the loops share: tokens of edges, runs of children, first rows, tails and filters.
        self._arrays: tuple[Tokens, Ints, Ints, Ints, Longs] = (
            unsigned,
            tables.child_begin.numpy(),
            tables.row_begin.numpy(),
            tables.tail_begin.numpy(),
            filters,
        )

    def children(self, states: Tensor) -> Children:
        """List every continuation: one pass counts them, one writes them."""
        there = _readable(states)
        if there is None:
            return super().children(states)
        at, count = there.data_ptr(), there.shape[0]
        edges, child_begin, row_begin, tail_begin, filters = self._arrays
        room = count_children(at, count, child_begin, tail_begin)
        # Three arrays are cheaper than one and views of it. Room for edges that a filter leaves out is never
        # touched, so it takes no memory.
        owner, token, next_state = np.empty(room, _LONG), np.empty(room, _LONG), np.empty(room, _LONG)
        num_edges = fill_children(
            at, count, edges, child_begin, row_begin, tail_begin, filters, owner, token, next_state
        )
        if num_edges < room:
            owner, token, next_state = owner[:num_edges], token[:num_edges], next_state[:num_edges]
        return Children(torch.from_numpy(owner), torch.from_numpy(token), torch.from_numpy(next_state))

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every continuation in `width` columns."""
        there = _readable(states)
        if there is None:
            return super().padded_children(states, width)
        padded = np.full((2, there.shape[0], width), -1, _LONG)
        at, count = there.data_ptr(), there.shape[0]
        edges, child_begin, row_begin, tail_begin, filters = self._arrays
        most = pad_children(at, count, edges, child_begin, row_begin, tail_begin, filters, padded)
        if most > width:
            raise ValueError(f"width: expected at least {most}, the children of one state, got {width}")
        return PaddedChildren(torch.from_numpy(padded[0]), torch.from_numpy(padded[1]))

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check candidates by binary search among the state's children."""
        there, candidates = _readable(states), _readable(token_ids)
        if there is None or candidates is None:
            return super().verify(states, token_ids)
        shape = candidates.shape
        if len(shape) != 2 or shape[0] != there.shape[0]:
            raise ValueError(
                f"token_ids: expected a row for each of {len(there)} states, got shape {tuple(shape)}"
            )
        next_states = np.empty(shape, _LONG)
        at, tokens = there.data_ptr(), candidates.data_ptr()
        edges, child_begin, row_begin, tail_begin, filters = self._arrays
        verify(at, shape[0], tokens, edges, child_begin, row_begin, tail_begin, filters, next_states)
        return torch.from_numpy(next_states)

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether a whole row has been written."""
        there = _readable(states)
        if there is None:
            return super().is_final(states)
        final = np.empty(there.shape[0], np.bool_)
        _, child_begin, _, tail_begin, _ = self._arrays
        find_finals(there.data_ptr(), there.shape[0], child_begin, tail_begin, final)
        return torch.from_numpy(final)

    def warm_up(self) -> None:
        """Compile for this type of tokens, or load compiled code, so that no request pays for it."""
        nothing = torch.empty(0, dtype=torch.int64)
        self.children(nothing)
        self.padded_children(nothing, 1)
        self.verify(nothing, nothing.view(0, 1))
        self.is_final(nothing)


def _readable(tensor: Tensor) -> Tensor | None:
    """Return a tensor that loops can read: int64, contiguous and on the CPU; ValueError elsewhere.

    None means a traced graph or a fake tensor, which have no values.
    """
    if type(tensor) is not Tensor or is_compiling():
        return None
    if not tensor.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, where the trie is, got one on {tensor.device}")
    if tensor.dtype is torch.int64 and tensor.is_contiguous():
        return tensor
    return tensor.long().contiguous()
