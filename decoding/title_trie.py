"""The title trie: the constraint "one of these rows", batched, on CPU or CUDA.

Two ways to ask what may come next, both exact: `children` lists every continuation, `verify` checks given
candidates by parallel binary search (PPV, "Efficient and Asymptotically Unbiased Constrained Decoding for
Large Language Models", section 3.2). The paper's listing compares whole prefixes against the row matrix
at every step and sums column signs, which is no lexicographic comparison; here a prefix is one integer
and a step compares one token.

`decoding.kernels.states` says what a state is; `decoding.kernels` does the walking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.kernels.choice import choose_kernels
from decoding.kernels.contract import TrieTables
from decoding.kernels.states import pack_root, unpack
from decoding.level_widths import LevelWidths
from decoding.trie_arrays import MAX_POSITIONS, TrieArrays, derive_trie
from decoding.types import Children, PaddedChildren


class TitleTrie:
    """A set of token rows as a batched state machine; -1 is "no such state".

    Args:
        arrays: The transitions, e.g. from an index; zero-copy on CPU.
        vocab_size: Every token of the rows is below it.
        device: Where states live.
        kernels: What walks the trie (`decoding.kernels.choice.choose_kernels`).

    Attributes:
        kernels: The same.
        num_bytes: Memory of the transitions.

    Raises:
        KernelsError: the kernels cannot be had here.
        ValueError: a token is outside the vocabulary, the arrays are too long for a state, or there are no
            such kernels.
    """

    def __init__(
        self,
        arrays: TrieArrays,
        vocab_size: int,
        device: torch.device | str | None = None,
        kernels: str = "auto",
    ) -> None:
        device = torch.device(device or "cpu")
        if len(arrays.token) > MAX_POSITIONS:
            raise ValueError(
                f"the trie has {len(arrays.token)} nodes and tail tokens; at most {MAX_POSITIONS} fit"
            )
        largest = int(arrays.token.max())
        if arrays.num_rows and largest >= vocab_size:
            raise ValueError(f"token id {largest} is outside the vocabulary of {vocab_size}")
        tables = TrieTables.of(arrays, device)
        self.kernels = choose_kernels(device, kernels)(tables)
        self.num_bytes = tables.num_bytes
        self._level_widths = LevelWidths(arrays)
        self.device = device
        self.vocab_size = vocab_size
        self.num_rows = arrays.num_rows
        self.num_nodes = arrays.num_nodes
        self.max_depth = arrays.depth

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Sequence[int]],
        vocab_size: int,
        device: torch.device | str | None = None,
        kernels: str = "auto",
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
        return cls(derive_trie(flat.astype(small), offsets), vocab_size, device, kernels)

    @property
    def kernels_name(self) -> str:
        """What walks the trie: "numba" or "torch"."""
        return self.kernels.name

    def start(self, queries: Tensor) -> Tensor:
        """Return the root once per entry of `queries`, whichever they are. Shape: (n,), int64."""
        return torch.full_like(queries, pack_root(self.num_rows), dtype=torch.int64, device=self.device)

    def children(self, states: Tensor) -> Children:
        """Return every continuation of every state, exactly; state -1 has none.

        The answer is ragged, so its size is data dependent: on CUDA this waits for the device once.

        Args:
            states: Shape: (n,), int64.
        """
        return self.kernels.children(states)

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """Return every continuation of every state in `width` columns: static shapes, no waiting.

        Args:
            states: Shape: (n,), int64.
            width: At least the children of every state, which `width_at` bounds by depth. Children behind it
                would be left out, so the caller answers for it.

        Raises:
            ValueError: a state has more children. Only where looking costs no waiting: on the CPU, outside
                of `torch.compile`.
        """
        return self.kernels.padded_children(states, width)

    def width_at(self, depth: int) -> int:
        """Return the most children of any state after `depth` tokens, without asking the device.

        Reckoned on first use, in tens of milliseconds for millions of titles.

        Raises:
            ValueError: the depth is negative.
        """
        return self._level_widths.at(depth)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidates per state by parallel binary search among the state's children.

        Static shapes and a fixed number of steps: no host synchronisation on CUDA.

        Args:
            states: Shape: (n,), int64.
            token_ids: Shape: (n, M), int64.

        Returns:
            Next state, -1 where the candidate does not continue the prefix. Shape: (n, M), int64.
        """
        return self.kernels.verify(states, token_ids)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state; -1 where it leads nowhere. Shapes: (n,), int64."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole row, end token included, has been written. Shape: (n,), bool."""
        return self.kernels.is_final(states)

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of the last row below each state, which for a final state is its row.

        State -1 has rank -1. Shape: (n,), int64.
        """
        _, row_end = unpack(states)
        return row_end - 1
