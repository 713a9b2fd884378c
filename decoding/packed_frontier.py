"""A frontier without its padding: only live branches go through the layers of a decoder-only model.

The queries of a batch have different numbers of live branches and finish at different steps, yet a frontier
is a rectangle. Everything in a decoder but attention works on one token at a time, so there the live branches
of all queries run as rows of a single sequence. Attention and cache have them in their rectangle.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from decoding.tree_cache import TreeCache

# A frontier is packed where at least one in so many of its branches is padding. Every layer moves rows to and
# fro, which less would not pay for.
_LEAST_PADDING = 8


class PackedFrontier:
    """Which branches of a frontier are live. P of Q * B.

    Args:
        cells: The live branches, numbered query by query. Shape: (P,), int64, ascending.
        num_queries: Q.
        branches: B.
    """

    __slots__ = ("_branches", "_cells", "_num_queries")

    def __init__(self, cells: Tensor, num_queries: int, branches: int) -> None:
        self._cells = cells
        self._num_queries = num_queries
        self._branches = branches

    @classmethod
    def of(cls, parents: Tensor) -> PackedFrontier | None:
        """Pack a frontier where that pays. Asks the device how many branches are live.

        Args:
            parents: -1 for padding branches. Shape: (Q, B), int64.

        Returns:
            None where few branches or all of them are padding.
        """
        cells = torch.nonzero(parents.flatten() >= 0).flatten()
        padding = parents.numel() - len(cells)
        if not len(cells) or padding * _LEAST_PADDING < parents.numel():
            return None
        return cls(cells, *parents.shape)

    def pack(self, rectangle: Tensor) -> Tensor:
        """Take one value per live branch. Shape: (1, P) of (Q, B)."""
        return rectangle.flatten().index_select(0, self._cells)[None]

    def unpack(self, rows: Tensor) -> Tensor:
        """Put rows back into the rectangle, zeros on padding. Shape: (Q, B, V) of (1, P, V)."""
        return self._spread(rows[0]).view(self._num_queries, self._branches, -1)

    def pack_heads(self, attended: Tensor) -> Tensor:
        """Take what live branches attended to. Shape: (1, H, P, D) of (Q, H, B, D)."""
        heads, size = attended.shape[1], attended.shape[3]
        rows = attended.transpose(1, 2).reshape(-1, heads * size).index_select(0, self._cells)
        return rows.view(1, -1, heads, size).transpose(1, 2)

    def unpack_heads(self, states: Tensor) -> Tensor:
        """Put queries, keys or values back. Shape: (Q, H, B, D) of (1, H, P, D)."""
        _, heads, count, size = states.shape
        rows = states[0].transpose(0, 1).reshape(count, heads * size)
        return self._spread(rows).view(self._num_queries, self._branches, heads, size).transpose(1, 2)

    def _spread(self, rows: Tensor) -> Tensor:
        """Rows of all branches, zeros on padding. Shape: (Q * B, n) of (P, n)."""
        return rows.new_zeros(self._num_queries * self._branches, rows.shape[1]).index_copy_(
            0, self._cells, rows
        )


class PackedWrites(Cache):
    """A tree's cache as one packed pass sees it: what is written goes into the rectangle.

    Args:
        cache: Where the layers are.
        frontier: What the pass computes.
    """

    def __init__(self, cache: TreeCache, frontier: PackedFrontier) -> None:
        super().__init__(layers=cache.layers)
        self._frontier = frontier

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the frontier to a layer; see `TreeLayer.update`.

        Args:
            key_states: Shape: (1, H_kv, P, D).
            value_states: Shape: (1, H_kv, P, D_v).
            layer_idx: Number of the model layer.
            *args: Passed on.
            **kwargs: Passed on.
        """
        unpack = self._frontier.unpack_heads
        super().update(unpack(key_states), unpack(value_states), layer_idx, *args, **kwargs)
        return key_states, value_states
