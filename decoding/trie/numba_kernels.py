"""Runs the trie's hot loops on the CPU, compiled by numba.

A call costs a few microseconds; a dozen tensor operations, the alternative for a step of one branch, cost a
hundred. Under a trace (`torch.compile`, fake tensors) the tensor operations take over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from genret.decoding.constraints import Children, PaddedChildren
from genret.decoding.numba_compiling import keep_nothing
from genret.decoding.trie import numba_loops
from genret.decoding.trie.numba_loops import Longs, Tokens
from genret.decoding.trie.torch_kernels import TorchKernels
from genret.decoding.trie.trie_kernels import TrieKernels, TrieTables

logger = logging.getLogger(__name__)

_LONG = np.dtype(np.int64)  # NumPy would convert the type at every call


class NumbaKernels:
    """Compiled loops over a trie's tables (`decoding.trie.trie_kernels.TrieKernels`).

    `tables`: tables on the CPU. `prefixes`: `RowFilter.prefix` of each lane, (R + 1,), int32; None allows all
    rows.
    """

    name = "numba"

    def __init__(self, tables: TrieTables, prefixes: Sequence[Tensor | None] = (None,)) -> None:
        self._tables = tables
        self._prefixes = [None if prefix is None else prefix.contiguous() for prefix in prefixes]
        self._traced = TorchKernels(tables) if prefixes == (None,) else TorchKernels(tables).under(prefixes)
        token = tables.token.numpy()
        self._token: Tokens = token.view(f"u{token.itemsize}")
        self._child_begin = tables.child_begin.numpy()
        self._row_begin = tables.row_begin.numpy()
        self._tail_begin = tables.tail_begin.numpy()
        addresses = [0 if prefix is None else prefix.data_ptr() for prefix in self._prefixes]
        self._filters: Longs = np.array(addresses, dtype=np.int64)

    def children(self, states: Tensor) -> Children:
        """List every continuation: one pass counts them, one writes them."""
        there = _readable(states)
        if there is None:
            return self._traced.children(states)
        at, count = there.data_ptr(), there.shape[0]
        room = numba_loops.count_children(at, count, self._child_begin, self._tail_begin)
        # Three arrays are cheaper than one and views of it. Room for edges that a filter leaves out is never
        # touched, so it takes no memory.
        owner, token, next_state = np.empty(room, _LONG), np.empty(room, _LONG), np.empty(room, _LONG)
        num_edges = numba_loops.fill_children(
            at,
            count,
            self._token,
            self._child_begin,
            self._row_begin,
            self._tail_begin,
            self._filters,
            owner,
            token,
            next_state,
        )
        if num_edges < room:
            owner, token, next_state = owner[:num_edges], token[:num_edges], next_state[:num_edges]
        return Children(torch.from_numpy(owner), torch.from_numpy(token), torch.from_numpy(next_state))

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every continuation in `width` columns."""
        there = _readable(states)
        if there is None:
            return self._traced.padded_children(states, width)
        padded = np.full((2, there.shape[0], width), -1, _LONG)
        most = numba_loops.pad_children(
            there.data_ptr(),
            there.shape[0],
            self._token,
            self._child_begin,
            self._row_begin,
            self._tail_begin,
            self._filters,
            padded,
        )
        if most > width:
            raise ValueError(f"width: expected at least {most}, the children of one state, got {width}")
        return PaddedChildren(torch.from_numpy(padded[0]), torch.from_numpy(padded[1]))

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check candidates by binary search among the state's children."""
        there, candidates = _readable(states), _readable(token_ids)
        if there is None or candidates is None:
            return self._traced.verify(states, token_ids)
        shape = candidates.shape
        if len(shape) != 2 or shape[0] != there.shape[0]:
            raise ValueError(
                f"token_ids: expected a row for each of {len(there)} states, got shape {tuple(shape)}"
            )
        next_states = np.empty(shape, _LONG)
        numba_loops.verify(
            there.data_ptr(),
            shape[0],
            candidates.data_ptr(),
            self._token,
            self._child_begin,
            self._row_begin,
            self._tail_begin,
            self._filters,
            next_states,
        )
        return torch.from_numpy(next_states)

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether nothing follows a place other than the root."""
        there = _readable(states)
        if there is None:
            return self._traced.is_final(states)
        final = np.empty(there.shape[0], np.bool_)
        numba_loops.find_finals(there.data_ptr(), there.shape[0], self._child_begin, self._tail_begin, final)
        return torch.from_numpy(final)

    def under(self, prefixes: Sequence[Tensor | None]) -> TrieKernels:
        """Return the kernels of the whole trie under row filters."""
        return NumbaKernels(self._tables, prefixes)

    def warm_up(self) -> None:
        """Compile for this type of tokens, or load compiled code, so that no request pays for it."""
        try:
            self._ask_nothing()
        except Exception as error:
            # Cached code may be cut short, another user's or on a full disk, each with its own error.
            keep_nothing()
            self._ask_nothing()
            logger.warning("compiled loops are neither found nor kept for the next process: %r", error)

    def _ask_nothing(self) -> None:
        nothing = torch.empty(0, dtype=torch.int64)
        self.children(nothing)
        self.padded_children(nothing, 1)
        self.verify(nothing, nothing.view(0, 1))
        self.is_final(nothing)


def _readable(tensor: Tensor) -> Tensor | None:
    """Return a tensor that loops can read at its address: int64, contiguous and on the CPU; ValueError
    elsewhere.

    None means a traced graph or a fake tensor, which have no values.
    """
    if type(tensor) is not Tensor or is_compiling():
        return None
    if not tensor.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, where the trie is, got one on {tensor.device}")
    if tensor.dtype is torch.int64 and tensor.is_contiguous():
        return tensor
    return tensor.long().contiguous()
