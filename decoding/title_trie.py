"""The title trie: the constraint "one of these rows", batched, on CPU or CUDA.

Two ways to ask what may come next, both exact: `children` lists every continuation, `verify` checks given
candidates by parallel binary search (PPV, "Efficient and Asymptotically Unbiased Constrained Decoding for
Large Language Models", section 3.2). The paper's listing compares whole prefixes against the row matrix
at every step and sums column signs, which is no lexicographic comparison; here a prefix is one integer
and a step compares one token.

A state is `row_end << 31 | position`. The position is that of the last edge in the trie's tokens, in a
node or in a tail (0: the root); the rows below it end before rank row_end. Inside a tail row_end - 1 is the
row itself, so a state never looks for the row it is in.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from decoding.trie_arrays import MAX_POSITIONS, IntArray, TrieArrays, derive_trie
from decoding.types import Children

_POSITION_BITS = 31
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_TOKEN_VIEWS: dict[np.dtype[np.integer], np.dtype[np.integer]] = {
    np.dtype(np.uint8): np.dtype(np.uint8),
    np.dtype(np.uint16): np.dtype(np.int16),
    np.dtype(np.uint32): np.dtype(np.int32),
}


class TrieEdges(NamedTuple):
    """Edges out of a batch of places, ragged, grouped by place.

    Attributes:
        owner: Index of the place each edge leaves. Shape: (E,), int64, non-decreasing.
        position: Of the edge in the trie's tokens. Shape: (E,), int64.
        row_end: One past the rank of the last row below the edge; where its next sibling begins. Shape: (E,),
            int64.
        first: First edge of each place, E for a place without any. Shape: (n,), int64.
    """

    owner: Tensor
    position: Tensor
    row_end: Tensor
    first: Tensor


class TitleTrie:
    """A set of token rows as a batched state machine; -1 is "no such state".

    Args:
        arrays: The transitions, e.g. from an index; zero-copy on CPU.
        vocab_size: Every token of the rows is below it.
        device: Where states live.

    Raises:
        ValueError: a token is outside the vocabulary, or the arrays are too long for a state.
    """

    def __init__(self, arrays: TrieArrays, vocab_size: int, device: torch.device | str | None = None) -> None:
        device = torch.device(device or "cpu")
        if len(arrays.token) > MAX_POSITIONS:
            raise ValueError(
                f"the trie has {len(arrays.token)} nodes and tail tokens; at most {MAX_POSITIONS} fit"
            )
        largest = int(arrays.token.max())
        if arrays.num_rows and largest >= vocab_size:
            raise ValueError(f"token id {largest} is outside the vocabulary of {vocab_size}")
        # Torch computes little with wide unsigned types, so their bits are read as signed and masked.
        token = arrays.token if arrays.token.dtype in _TOKEN_VIEWS else arrays.token.astype(np.uint32)
        self._token_mask = int(np.iinfo(token.dtype).max)
        self._token = _to_tensor(token.view(_TOKEN_VIEWS[token.dtype]), device)
        self._child_begin = _to_tensor(arrays.child_begin, device)
        self._row_begin = _to_tensor(arrays.row_begin, device)
        self._tail_begin = _to_tensor(arrays.tail_begin, device)
        self.device = device
        self.vocab_size = vocab_size
        self.num_rows = arrays.num_rows
        self.num_nodes = arrays.num_nodes
        self.max_depth = arrays.depth
        self.max_children = arrays.max_children
        # Halvings needed to empty the widest run of siblings: fixed, so that `verify` never asks the device.
        self._search_steps = max(arrays.max_children, 1).bit_length()

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[int]], vocab_size: int, device: torch.device | str | None = None
    ) -> TitleTrie:
        """Build a trie in memory from rows in any order; duplicates count once.

        Ranks are positions among the sorted distinct rows.

        Raises:
            ValueError: a row is empty, a prefix of another, or holds a token outside the vocabulary.
        """
        ordered = sorted({tuple(row) for row in rows})
        flat = np.fromiter((token for row in ordered for token in row), dtype=np.int64)
        if len(flat) and flat.min() < 0:
            raise ValueError(f"token id {flat.min()} is negative")
        if len(flat) and flat.max() >= vocab_size:
            raise ValueError(f"token id {flat.max()} is outside the vocabulary of {vocab_size}")
        offsets = np.zeros(len(ordered) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in ordered], out=offsets[1:])
        small = np.min_scalar_type(max(vocab_size - 1, 0))
        return cls(derive_trie(flat.astype(small), offsets), vocab_size, device)

    @property
    def num_bytes(self) -> int:
        """Memory of the transitions."""
        arrays = (self._token, self._child_begin, self._row_begin, self._tail_begin)
        return sum(array.numel() * array.element_size() for array in arrays)

    def start(self, queries: Tensor) -> Tensor:
        """Return the root once per entry of `queries`, whichever they are. Shape: (n,), int64."""
        return torch.full_like(queries, pack_root(self.num_rows), dtype=torch.int64, device=self.device)

    def children(self, states: Tensor) -> Children:
        """Return every continuation of every state, exactly; state -1 has none.

        The answer is ragged, so its size is data dependent: on CUDA this waits for the device once.

        Args:
            states: Shape: (n,), int64.
        """
        owner, position, row_end, _ = self.edges(*unpack(states))
        return Children(owner, self.token_at(position), pack(position, row_end))

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidates per state by parallel binary search among the state's children.

        Static shapes and a fixed number of steps: no host synchronisation on CUDA.

        Args:
            states: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.

        Returns:
            Next state, -1 where the candidate does not continue the prefix. Shape: (n, M), int64.
        """
        hit, position, row_end = self.find(*unpack(states), token_ids)
        return torch.where(hit, pack(position, row_end), -1)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state; -1 where it leads nowhere. Shapes: (n,), int64."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole row, end token included, has been written. Shape: (n,), bool."""
        return self.ends_row(*unpack(states))

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of the last row below each state, which for a final state is its row.

        State -1 has rank -1. Shape: (n,), int64.
        """
        _, row_end = unpack(states)
        return row_end - 1

    # What follows speaks of positions and ranks, for constraints that narrow a trie down.

    def edges(self, position: Tensor, row_end: Tensor) -> TrieEdges:
        """Return every edge out of each place, grouped by place, siblings ascending by token.

        Args:
            position: Shape: (n,), int64.
            row_end: Shape: (n,), int64.
        """
        begin, end = self._child_run(position, row_end)
        counts = (end - begin).clamp(min=0)
        past = counts.cumsum(0)  # one past each place's last edge
        owner = torch.repeat_interleave(counts)
        child = (begin - past + counts).index_select(0, owner)
        child += torch.arange(len(owner), device=self.device)
        # Rows below an edge end where its next sibling's begin, those of a last edge where the place's own
        # do. That is written into its slot; places without edges write into one more at the end.
        has_edges, num_edges = counts > 0, len(owner)
        ends = torch.empty(num_edges + 1, dtype=torch.int64, device=self.device)
        ends[:-1] = look_up(self._row_begin, (child + 1).clamp_(max=self.num_nodes))
        ends.scatter_(0, torch.where(has_edges, past - 1, num_edges), row_end)
        return TrieEdges(owner, child, ends[:-1], torch.where(has_edges, past - counts, num_edges))

    def find(self, position: Tensor, row_end: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look for M tokens among the edges out of each place.

        Args:
            position: Shape: (n,), int64.
            row_end: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.

        Returns:
            Whether there is such an edge; its position and one past its last rank, in range but
            meaningless where there is none. Shapes: (n, M).
        """
        begin, end = (bound.unsqueeze(1) for bound in self._child_run(position, row_end))
        low, high = begin.expand(token_ids.shape), end.expand(token_ids.shape)
        last = len(self._token) - 1
        for _ in range(self._search_steps):
            middle = (low + high) // 2
            open_ = low < high
            smaller = self.token_at(middle.clamp(max=last)) < token_ids
            low = torch.where(open_ & smaller, middle + 1, low)
            high = torch.where(open_ & ~smaller, middle, high)
        child = low.clamp(max=last)
        hit = (low < end) & (self.token_at(child) == token_ids)
        sibling = child + 1
        ends = look_up(self._row_begin, sibling.clamp(max=self.num_nodes)).long()
        return hit, child, torch.where(sibling < end, ends, row_end.unsqueeze(1))

    def ends_row(self, position: Tensor, row_end: Tensor) -> Tensor:
        """Whether nothing follows a place that is not the root. Shapes: (n,)."""
        begin, end = self._child_run(position, row_end)
        return (begin == end) & (position > 0)

    def token_at(self, position: Tensor) -> Tensor:
        """Return the tokens at positions within the trie. Any shape, int64."""
        return look_up(self._token, position).long() & self._token_mask

    def row_begin(self, position: Tensor, row_end: Tensor) -> Tensor:
        """Return the rank of the first row below each place that has rows. Any shape, int64."""
        # Behind the nodes this reads R, and a place in a tail has one row.
        begin = look_up(self._row_begin, position.clamp(max=self.num_nodes)).long()
        return torch.minimum(begin, row_end - 1)

    def _child_run(self, position: Tensor, row_end: Tensor) -> tuple[Tensor, Tensor]:
        """Return the run of positions where the children of each place are, end < begin for no place."""
        # The last node is a leaf (or a root without rows), so a position in a tail reads "no child nodes".
        node = position.clamp(max=self.num_nodes - 1)
        begin = self._child_begin.index_select(0, node)
        end = self._child_begin.index_select(0, node + 1)
        single = begin == end
        tail_end = self._tail_begin.index_select(0, row_end)
        tail_begin = self._tail_begin.index_select(0, (row_end - 1).clamp_(min=0))
        following = torch.where(position < self.num_nodes, tail_begin, position + 1)
        begin = torch.where(single, following, begin)
        return begin, torch.where(single, torch.minimum(following + 1, tail_end), end)


def pack(position: Tensor, row_end: Tensor) -> Tensor:
    """Return states. Any shape, int64."""
    return (row_end << _POSITION_BITS) | position


def pack_root(row_end: int) -> int:
    """Return the state of the root of rows that end before rank `row_end`."""
    return row_end << _POSITION_BITS


def unpack(states: Tensor) -> tuple[Tensor, Tensor]:
    """Return (position, row_end) of states. Shapes: (n,), int64.

    State -1 gives a position behind every trie, which has no children, and row_end 0.
    """
    return states & _POSITION_MASK, (states >> _POSITION_BITS).clamp_(min=0)


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """Return table[index]. Shape: that of `index`."""
    # `take` and indexing cost eight to ten times as much on a CPU (180,000 of 6 M entries, torch 2.13).
    if index.ndim == 1:
        return table.index_select(0, index)
    return table.index_select(0, index.flatten()).view(index.shape)


def _to_tensor(array: IntArray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        # A memory-mapped index is read-only and torch has no read-only tensors, so it warns. Nothing here
        # writes to the transitions: the pages stay clean and shared between processes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.as_tensor(array)
    if device.type != "cuda":
        return tensor.to(device)
    # Pinned memory goes to the device in one piece, by DMA, and is given back at once.
    return tensor.pin_memory().to(device, non_blocking=True)
