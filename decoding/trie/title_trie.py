"""Follows the rows of a set as a constraint: the title trie, batched, on CPU or CUDA.

Two exact queries: `children` lists every continuation, `verify` checks given candidates by parallel binary
search (PPV, "Efficient and Asymptotically Unbiased Constrained Decoding for Large Language Models", section
3.2). The paper's listing compares whole prefixes against the row matrix at every step and sums column signs,
which is no lexicographic comparison; here a prefix is one integer and a step compares one token.

`decoding.trie.trie_kernels` defines states; the backend that `make_kernels` picks walks the trie.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from genret.decoding.constraints import Children, PaddedChildren
from genret.decoding.errors import KernelsError
from genret.decoding.trie.trie_arrays import MAX_POSITIONS, TrieArrays, derive_trie
from genret.decoding.trie.trie_kernels import POSITION_BITS, TorchKernels, TrieTables


class WalkedTrie:
    """The part of a trie's constraint that its kernels answer, for a whole trie and for a filtered one."""

    kernels: TorchKernels  # the backend that walks the trie
    num_rows: int  # number of the trie's rows, allowed or not, R

    def children(self, states: Tensor) -> Children:
        """Return every allowed continuation of every state, exactly; state -1 has none.

        The size of the answer depends on the data, so on CUDA this waits for the device once (under filters
        twice, and once more if lanes differ). States of one lane are best neighbours. Shape: (n,), int64.
        """
        return self.kernels.children(states)

    def padded_children(self, states: Tensor, width: int) -> PaddedChildren:
        """Return every allowed continuation in columns; see `StaticConstraint.padded_children`.

        Columns are those of the whole trie, with gaps (-1) for children that a filter does not allow; `width`
        must hold them. Only on the CPU and outside of `torch.compile` does a state with more children raise
        ValueError.
        """
        return self.kernels.padded_children(states, width)

    def verify(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Check M candidates per state by binary search among its children; see `Constraint.verify`.

        Static shapes and a fixed number of steps: no host synchronisation. Under filters it costs a look-up
        per candidate and lane. Shapes: (n,), (n, M) and (n, M), int64.
        """
        return self.kernels.verify(states, token_ids)

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Follow one token per state; -1 if it leads nowhere. Shapes: (n,), int64."""
        return self.verify(states, token_ids.unsqueeze(1)).squeeze(1)

    def is_final(self, states: Tensor) -> Tensor:
        """Whether a whole row, end token included, has been written. Shape: (n,), bool."""
        return self.kernels.is_final(states)

    def row(self, states: Tensor) -> Tensor:
        """Return the rank of the last row below each state, of a final one its row; -1 for -1. (n,)."""
        row_end = (states >> POSITION_BITS).clamp_(min=0)
        return row_end % (self.num_rows + 1) - 1


class TitleTrie(WalkedTrie):
    """A set of token rows as a batched state machine; -1 is "no such state".

    Args:
        arrays: The transitions, e.g. from an index; zero-copy on CPU.
        vocab_size: Every token of the rows is below it.
        device: Device of the states.
        kernels: Name of the backend (`make_kernels`).

    Attributes:
        kernels: The backend itself.
        num_bytes: Memory of the transitions.

    Raises:
        KernelsError: the kernels cannot run here.
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
        self.kernels = make_kernels(tables, kernels)
        self.num_bytes = tables.num_bytes
        self._child_begin = arrays.child_begin
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
        """Build a trie in memory from rows in any order; duplicates count once. Ranks follow the sorted rows.

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

    def start(self, queries: Tensor) -> Tensor:
        """Return the root for every query. Shape: (n,), int64."""
        root = self.num_rows << POSITION_BITS
        return torch.full_like(queries, root, dtype=torch.int64, device=self.device)

    def width_at(self, depth: int) -> int:
        """Return the most children of any state after `depth` tokens, without asking the device.

        Computed on first use (6 M titles: 20 ms). Raises ValueError for a
        negative depth.
        """
        if depth < 0:
            raise ValueError(f"depth: expected 0 or more, got {depth}")
        if depth >= self.max_depth:
            return 0
        # Below the nodes a row continues in its tail, one token at a time.
        return max(self._node_widths[depth], 1) if depth < len(self._node_widths) else 1

    @cached_property
    def _node_widths(self) -> list[int]:
        """Most child nodes of a node, by level: nodes are numbered in level order, so one pass will do."""
        widths, begin, end = [], 0, 1
        while begin < end:
            widths.append(int(np.diff(self._child_begin[begin : end + 1]).max()))
            begin, end = end, int(self._child_begin[end])
        return widths


logger = logging.getLogger(__name__)

KERNEL_NAMES = ("auto", "numba", "torch")


def make_kernels(tables: TrieTables, name: str = "auto") -> TorchKernels:
    """Return the kernels of a trie's tables.

    Args:
        tables: The tables, on the device of the states.
        name: "numba": compiled loops, on the CPU only; "torch": tensor operations, on any device; "auto":
            numba on the CPU if it is installed and works, else torch.

    Raises:
        KernelsError: numba is asked for by name and not installed, cannot compile, or for another device.
        ValueError: there is no such backend.
    """
    if name not in KERNEL_NAMES:
        raise ValueError(f"kernels: expected one of {', '.join(KERNEL_NAMES)}, got {name!r}")
    device, installed = tables.token.device, _numba_is_installed()
    if name == "numba" and device.type != "cpu":
        raise KernelsError(f"kernels: numba runs on the CPU only, and the trie is on {device}; use torch")
    if name == "numba" and not installed:
        raise KernelsError(
            "kernels: numba is not installed; install generative-retrieval[numba], or use torch"
        )
    if name == "torch" or not installed or device.type != "cpu":
        return TorchKernels(tables)
    # Imported on first use: numba takes half a second, which commands without a trie should not pay.
    try:
        from genret.decoding.trie.numba_kernels import NumbaKernels

        kernels = NumbaKernels(tables)
        kernels.warm_up()
    except Exception as error:  # an installation that does not fit together fails in ways of its own
        broken = KernelsError(f"kernels: numba is installed but does not work: {error!r}")
        if name == "numba":
            raise broken from error
        logger.warning("%s; it is done without numba, which takes longer", broken)
        return TorchKernels(tables)
    return kernels


def _numba_is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None
