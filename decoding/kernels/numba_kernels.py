"""The trie's hot loops on the CPU, compiled by numba.

A call costs a few microseconds, where a dozen tensor operations cost a hundred: what a step of one branch
spends. Under a trace (`torch.compile`, fake tensors) the tensor operations take over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.kernels import numba_loops
from decoding.kernels.contract import TrieKernels, TrieTables
from decoding.kernels.numba_loops import Longs, Tokens
from decoding.kernels.torch_kernels import TorchKernels
from decoding.types import Children, PaddedChildren

logger = logging.getLogger(__name__)


class NumbaKernels:
    """Compiled loops over a trie's tables (`decoding.kernels.contract.TrieKernels`).

    Args:
        tables: On the CPU.
        prefixes: Of each lane, None for all rows. Each of shape (R + 1,), int32.
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
        """List every continuation: one pass finds the room, one fills it."""
        if not _is_plain(states):
            return self._traced.children(states)
        states = _longs(states)
        at, count = states.data_ptr(), len(states)
        room = numba_loops.count_children(at, count, self._child_begin, self._tail_begin)
        # Room for edges that a filter then leaves out is never touched, so it takes no memory.
        edges = np.empty((3, room), dtype=np.int64)
        num_edges = numba_loops.fill_children(
            at,
            count,
            self._token,
            self._child_begin,
            self._row_begin,
            self._tail_begin,
            self._filters,
            edges,
        )
        if num_edges < room:
            edges = edges[:, :num_edges]
        owner, token, next_state = edges
        return Children(torch.from_numpy(owner), torch.from_numpy(token), torch.from_numpy(next_state))

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every continuation in `width` columns."""
        if not _is_plain(states):
            return self._traced.padded_children(states, width)
        states = _longs(states)
        padded = np.full((2, len(states), width), -1, dtype=np.int64)
        most = numba_loops.pad_children(
            states.data_ptr(),
            len(states),
            self._token,
            self._child_begin,
            self._row_begin,
            self._tail_begin,
            self._filters,
            padded,
        )
        if most > width:
            raise ValueError(f"width: expected at least {most}, the children of one state, got {width}")
        return PaddedChildren(*torch.from_numpy(padded).unbind())

    def widths(self, states: Tensor) -> Tensor:
        """Return the number of the trie's children of each state, allowed or not."""
        if not _is_plain(states):
            return self._traced.widths(states)
        states = _longs(states)
        widths = np.empty(len(states), dtype=np.int64)
        numba_loops.count_runs(states.data_ptr(), len(states), self._child_begin, self._tail_begin, widths)
        return torch.from_numpy(widths)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check candidates by binary search among the state's children."""
        if not _is_plain(states):
            return self._traced.verify(states, token_ids)
        states, token_ids = _longs(states), _longs(token_ids)
        if len(token_ids) != len(states):
            raise ValueError(
                f"token_ids: expected a row for each of {len(states)} states, got {len(token_ids)}"
            )
        next_states = np.empty(token_ids.shape, dtype=np.int64)
        numba_loops.verify(
            states.data_ptr(),
            len(states),
            token_ids.data_ptr(),
            self._token,
            self._child_begin,
            self._row_begin,
            self._tail_begin,
            self._filters,
            next_states,
        )
        return torch.from_numpy(next_states)

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether nothing follows a place that is not the root."""
        if not _is_plain(states):
            return self._traced.is_final(states)
        states = _longs(states)
        final = np.empty(len(states), dtype=np.bool_)
        numba_loops.find_finals(states.data_ptr(), len(states), self._child_begin, self._tail_begin, final)
        return torch.from_numpy(final)

    def under(self, prefixes: Sequence[Tensor | None]) -> TrieKernels:
        """Return the kernels of the whole trie under row filters."""
        return NumbaKernels(self._tables, prefixes)

    def warm_up(self) -> None:
        """Compile for this type of tokens, or read what was compiled before: no request pays for it."""
        failure: OSError | None = None
        for _ in numba_loops.COMPILED:
            try:
                self._ask_nothing()
                break
            except OSError as error:  # compiled, but not kept: every attempt gets at least one loop further
                failure = error
        else:
            self._ask_nothing()
        if failure is not None:
            logger.warning("compiled loops cannot be kept for the next process: %s", failure)

    def _ask_nothing(self) -> None:
        nothing = torch.empty(0, dtype=torch.int64)
        self.children(nothing)
        self.padded_children(nothing, 1)
        self.widths(nothing)
        self.verify(nothing, nothing.view(0, 1))
        self.is_final(nothing)


def _longs(tensor: Tensor) -> Tensor:
    """Return what a loop may read at its address: int64, contiguous and on the CPU."""
    if not tensor.is_cpu:
        raise ValueError(f"expected a tensor on the CPU, where the trie is, got one on {tensor.device}")
    if tensor.dtype is not torch.int64 or not tensor.is_contiguous():
        return tensor.long().contiguous()
    return tensor


def _is_plain(states: Tensor) -> bool:
    """Whether there are values to loop over: not while a graph is traced, nor in fake tensors."""
    return type(states) is Tensor and not torch.compiler.is_compiling()
