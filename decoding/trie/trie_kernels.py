"""Defines the contract of the trie's kernels: their tables, their answers, and how states are packed.

A state is one integer, `row_end << 31 | position`. The position is that of the last edge in the trie's
tokens, in a node or in a tail (0: the root); the rows below it end before rank row_end. Inside a tail row_end
- 1 is the row itself, so a state never searches for its row. Under row filters lane n counts its ranks from n
* (R + 1) on. State -1 is "no such state".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from genret.decoding.constraints import Children, PaddedChildren
from genret.decoding.trie.trie_arrays import IntArray, TrieArrays

_TOKEN_VIEWS: dict[np.dtype[np.integer], np.dtype[np.integer]] = {
    np.dtype(np.uint8): np.dtype(np.uint8),
    np.dtype(np.uint16): np.dtype(np.int16),
    np.dtype(np.uint32): np.dtype(np.int32),
}


@dataclass(frozen=True, slots=True, eq=False)
class TrieTables:
    """A trie's arrays (`trie_arrays.TrieArrays`) as tensors on one device; never written to."""

    token: Tensor  # The bits of unsigned tokens, read as signed. Shape: (N + T,), uint8, int16 or int32
    token_mask: int  # What takes the sign off again
    child_begin: Tensor  # Shape: (N + 1,), int32
    row_begin: Tensor  # Shape: (N + 1,), int32
    tail_begin: Tensor  # Shape: (R + 1,), int32
    search_steps: int  # Halvings needed to empty the widest run of siblings

    @classmethod
    def of(cls, arrays: TrieArrays, device: torch.device) -> TrieTables:
        """Put a trie's arrays on a device; zero-copy on the CPU."""
        # Torch has few operations on wide unsigned types, so their bits are read as signed and masked.
        token = arrays.token if arrays.token.dtype in _TOKEN_VIEWS else arrays.token.astype(np.uint32)
        return cls(
            token=_to_tensor(token.view(_TOKEN_VIEWS[token.dtype]), device),
            token_mask=int(np.iinfo(token.dtype).max),
            child_begin=_to_tensor(arrays.child_begin, device),
            row_begin=_to_tensor(arrays.row_begin, device),
            tail_begin=_to_tensor(arrays.tail_begin, device),
            search_steps=max(arrays.max_children, 1).bit_length(),
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes N, root included."""
        return len(self.child_begin) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows R."""
        return len(self.tail_begin) - 1

    @property
    def num_bytes(self) -> int:
        """Memory of the tables."""
        tables = (self.token, self.child_begin, self.row_begin, self.tail_begin)
        return sum(table.numel() * table.element_size() for table in tables)


class TrieKernels(Protocol):
    """The questions a decoder asks of a trie, or of a trie under row filters, at every step."""

    name: str

    def children(self, states: Tensor) -> Children:
        """List every continuation of every state. `states` shape: (n,)."""

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """List every continuation in `width` columns: static shapes, no host synchronisation.

        Column j is child j of the node, so under a filter there are gaps for children that are not allowed.
        Raises ValueError if a state needs more columns, unless that check would wait for a device or break a
        trace.
        """

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the next state per candidate, -1 for none. Shapes: (n,), (n, M), (n, M)."""

    def is_final(self, states: Tensor) -> Tensor:
        """Return whether a whole row has been written. Shapes: (n,), int64 and bool."""

    def under(self, prefixes: Sequence[Tensor | None]) -> TrieKernels:
        """Return the kernels of this trie under row filters, one lane each; nothing is copied.

        Args:
            prefixes: Per lane the `RowFilter.prefix`, (R + 1,), int32; None allows every row.
        """


def _to_tensor(array: IntArray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        # Torch has no read-only tensors, so it warns about a memory-mapped index. Nothing here writes to the
        # transitions: the pages stay clean and shared between processes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.as_tensor(array)
    if device.type != "cuda":
        return tensor.to(device)
    # Pinned memory goes to the device in one piece, by DMA, and is given back at once.
    return tensor.pin_memory().to(device, non_blocking=True)


POSITION_BITS = 31
POSITION_MASK = (1 << POSITION_BITS) - 1


def pack(position: Tensor, row_end: Tensor) -> Tensor:
    """Return states. Any shape, int64."""
    return (row_end << POSITION_BITS) | position


def pack_root(row_end: int) -> int:
    """Return the state of the root of rows that end before rank `row_end`."""
    return row_end << POSITION_BITS


def unpack(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return (position, row_end) of states. Shapes: (n,), int64.

    State -1 gives a position behind every trie, which has no children, and row_end 0.
    """
    return states & POSITION_MASK, (states >> POSITION_BITS).clamp_(min=0)
