"""The title trie: the constraint "one of these rows", batched, on CPU or CUDA.

Two ways to ask what may come next, both exact: `children` lists every continuation, `verify` checks given
candidates by parallel binary search (PPV, "Efficient and Asymptotically Unbiased Constrained Decoding for
Large Language Models", section 3.2). The paper's listing compares whole prefixes against the row matrix
at every step and sums column signs, which is no lexicographic comparison; here a prefix is one integer,
its node, and a step compares one token.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.trie_arrays import IntArray, TrieArrays, derive_trie
from decoding.types import Children


class TitleTrie:
    """A set of token rows as a batched state machine. A state is a node number; -1 is "no such state".

    Args:
        arrays: The transitions, e.g. from an index; zero-copy on CPU.
        vocab_size: Every token of the rows is below it.
        device: Where states live.

    Raises:
        ValueError: a token is outside the vocabulary.
    """

    def __init__(self, arrays: TrieArrays, vocab_size: int, device: torch.device | str | None = None) -> None:
        device = torch.device(device or "cpu")
        largest = int(arrays.token.max(initial=-1))
        if largest >= vocab_size:
            raise ValueError(f"token id {largest} is outside the vocabulary of {vocab_size}")
        self._token = _to_tensor(arrays.token, device)
        self._child_begin = _to_tensor(arrays.child_begin, device)
        self._row_begin = _to_tensor(arrays.row_begin, device)
        self.device = device
        self.vocab_size = vocab_size
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
        offsets = np.zeros(len(ordered) + 1, dtype=np.int64)
        np.cumsum([len(row) for row in ordered], out=offsets[1:])
        return cls(derive_trie(flat, offsets), vocab_size, device)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, root included."""
        return len(self._token)

    @property
    def num_bytes(self) -> int:
        """Memory of the transitions."""
        arrays = (self._token, self._child_begin, self._row_begin)
        return sum(array.numel() * array.element_size() for array in arrays)

    def start(self, n: int) -> Tensor:
        """Return the root, n times. Shape: (n,), int64."""
        return torch.zeros(n, dtype=torch.int64, device=self.device)

    def children(self, states: Tensor) -> Children:
        """Return every continuation of every state, exactly; state -1 has none.

        The answer is ragged, so its size is data dependent: on CUDA this waits for the device once.

        Args:
            states: Shape: (n,), int64.
        """
        begin, end = self._child_run(states)
        counts = end - begin
        owner = torch.repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        position = torch.arange(len(owner), device=self.device)
        next_state = begin[owner] + position - before[owner]
        return Children(owner, self._token[next_state].long(), next_state)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidates per state by parallel binary search among the state's children.

        Static shapes and a fixed number of steps: no host synchronisation on CUDA.

        Args:
            states: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.

        Returns:
            Next state, -1 where the candidate does not continue the prefix. Shape: (n, M), int64.
        """
        begin, end = self._child_run(states)
        low = begin.unsqueeze(1).expand(token_ids.shape).clone()
        high = end.unsqueeze(1).expand(token_ids.shape).clone()
        last = self.num_nodes - 1
        for _ in range(self._search_steps):
            middle = (low + high) // 2
            open_ = low < high
            smaller = self._token[middle.clamp(max=last)] < token_ids
            low = torch.where(open_ & smaller, middle + 1, low)
            high = torch.where(open_ & ~smaller, middle, high)
        hit = (low < end.unsqueeze(1)) & (self._token[low.clamp(max=last)] == token_ids)
        return torch.where(hit, low, -1)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state; -1 where it leads nowhere. Shapes: (n,), int64."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole row, end token included, has been written. Shape: (n,), bool."""
        begin, end = self._child_run(states)
        return (begin == end) & (states > 0)

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of the (first) row below each state; -1 for state -1. Shape: (n,), int64."""
        rows = self._row_begin[states.clamp(min=0)].long()
        return torch.where(states >= 0, rows, -1)

    def _child_run(self, states: Tensor) -> tuple[Tensor, Tensor]:
        alive = states >= 0
        node = states.clamp(min=0)
        begin = self._child_begin[node].long()
        end = torch.where(alive, self._child_begin[node + 1].long(), begin)
        return begin, end


def _to_tensor(array: IntArray, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        # A memory-mapped index is read-only and torch has no read-only tensors, so it warns. Nothing here
        # writes to the transitions: the pages stay clean and shared between processes.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(np.asarray(array, dtype=np.int32)).to(device)
