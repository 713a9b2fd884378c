"""Follows the rows of a set as a constraint: the title trie, batched, on CPU or CUDA.

Two ways to ask what may come next, both exact: `children` lists every continuation, `verify` checks given
candidates by parallel binary search (PPV, "Efficient and Asymptotically Unbiased Constrained Decoding for
Large Language Models", section 3.2). The paper's listing compares whole prefixes against the row matrix at
every step and sums column signs, which is no lexicographic comparison; here a prefix is one integer and a
step compares one token.

`decoding.trie.trie_kernels` says what a state is; the backend that `choose_kernels` picks does the walking.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from decoding.constraints import Children, PaddedChildren
from decoding.errors import KernelsError
from decoding.trie.torch_kernels import TorchKernels
from decoding.trie.trie_arrays import MAX_POSITIONS, TrieArrays, derive_trie
from decoding.trie.trie_kernels import TrieKernels, TrieTables, pack_root, unpack


class TitleTrie:
    """A set of token rows as a batched state machine; -1 is "no such state".

    Args:
        arrays: The transitions, e.g. from an index; zero-copy on CPU.
        vocab_size: Every token of the rows is below it.
        device: Where states live.
        kernels: What walks the trie (`decoding.trie.title_trie.choose_kernels`).

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
        self._level_widths = DepthWidths(arrays)
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


logger = logging.getLogger(__name__)

KERNEL_NAMES = ("auto", "numba", "torch")


def choose_kernels(device: torch.device, name: str = "auto") -> Callable[[TrieTables], TrieKernels]:
    """Return what makes a trie's kernels.

    Args:
        device: Of the trie.
        name: "numba": compiled loops, on the CPU only; "torch": tensor operations, on any device; "auto":
            numba on the CPU where it is installed and works, else torch.

    Raises:
        KernelsError: numba is asked for by name and not installed, or for another device. What is returned
            raises it where numba is asked for by name and cannot compile.
        ValueError: there is no such backend.
    """
    if name not in KERNEL_NAMES:
        raise ValueError(f"kernels: expected one of {', '.join(KERNEL_NAMES)}, got {name!r}")
    installed = _numba_is_installed()
    if name == "numba":
        if device.type != "cpu":
            raise KernelsError(f"kernels: numba runs on the CPU only, and the trie is on {device}; use torch")
        if not installed:
            raise KernelsError(
                "kernels: numba is not installed; install generative-retrieval[numba], or use torch"
            )
    if name == "torch" or not installed or device.type != "cpu":
        return TorchKernels
    return _numba_kernels if name == "numba" else _numba_or_torch_kernels


def _numba_is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


def _numba_or_torch_kernels(tables: TrieTables) -> TrieKernels:
    try:
        return _numba_kernels(tables)
    except KernelsError as error:
        logger.warning("%s; it is done without numba, which takes longer", error)
        return TorchKernels(tables)


def _numba_kernels(tables: TrieTables) -> TrieKernels:
    # Imported on first use: numba takes half a second, which commands without a trie need not wait for.
    try:
        from decoding.trie.numba_kernels import NumbaKernels

        kernels = NumbaKernels(tables)
        kernels.warm_up()
    except Exception as error:  # an installation that does not fit together fails in ways of its own
        raise KernelsError(f"kernels: numba is installed but does not work: {error!r}") from error
    return kernels


class DepthWidths:
    """Most children of any state after a number of tokens; known to the host, reckoned on first use.

    Nodes are numbered in level order, so the children of one level are the next level, and a pass over
    the runs of children is enough (6 M titles: 20 ms).

    Args:
        arrays: Of the trie; only `child_begin` is kept.
    """

    def __init__(self, arrays: TrieArrays) -> None:
        self._child_begin = arrays.child_begin
        self._depth = arrays.depth

    def at(self, depth: int) -> int:
        """Return the most children of any state `depth` tokens deep, 0 from the longest row's end on.

        Raises:
            ValueError: the depth is negative.
        """
        if depth < 0:
            raise ValueError(f"depth: expected 0 or more, got {depth}")
        if depth >= self._depth:
            return 0
        # A row that goes on below the nodes does so in its tail, one token at a time.
        return max(self._of_nodes[depth], 1) if depth < len(self._of_nodes) else 1

    @cached_property
    def _of_nodes(self) -> list[int]:
        """Most child nodes of a node, by level."""
        widths, begin, end = [], 0, 1
        while begin < end:
            widths.append(int(np.diff(self._child_begin[begin : end + 1]).max()))
            begin, end = end, int(self._child_begin[end])
        return widths
