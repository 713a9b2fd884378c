"""Parallel prefix verification as the paper has it, put right and batched: what ours is measured against.

Whole prefixes are searched for in the matrix of all rows. The printed routine adds up the signs of the
columns, which is no order, and reads past the last row; here the first column that differs decides, and one
search serves all branches and candidates. Columns behind the deepest prefix are never looked at and are left
out, which only makes it faster.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genret.retrieval.index.reader import Index

_PADDING = -1  # behind a row's end; sorts before every token


def row_matrix(index: Index, width: int) -> Tensor:
    """Return the first tokens of all rows in the order of rank. Shape: (R, width), int32."""
    tokens, offsets = index.rows.flat()
    starts, lengths = offsets[:-1], np.diff(offsets)
    matrix = np.full((len(starts), width), _PADDING, dtype=np.int32)
    for column in range(width):
        there = lengths > column
        matrix[there, column] = tokens[starts[there] + column]
    return torch.from_numpy(matrix)


class FullRowPPV:
    """Verification of candidates by binary search over all rows.

    Args:
        rows: Sorted rows, padded with -1. Shape: (R, W), int32.
    """

    def __init__(self, rows: Tensor) -> None:
        self._prefixes = [rows[:, :width].contiguous() for width in range(1, rows.shape[1] + 1)]
        # Of a difference, only the sign of the first column that differs may count.
        self._weights = [2.0 ** torch.arange(width).flip(0) for width in range(1, rows.shape[1] + 1)]

    def verify(self, prefixes: Tensor, token_ids: Tensor) -> Tensor:
        """Return which candidates continue their prefix to the prefix of some row.

        Args:
            prefixes: Shape: (n, d), int32.
            token_ids: Shape: (n, M), int32.

        Returns:
            Shape: (n, M), bool.
        """
        (branches, depth), candidates = prefixes.shape, token_ids.shape[1]
        rows, weights = self._prefixes[depth], self._weights[depth]
        repeated = prefixes.unsqueeze(1).expand(branches, candidates, depth)
        wanted = torch.cat([repeated, token_ids.unsqueeze(2)], dim=2).view(-1, depth + 1)
        low = torch.zeros(len(wanted), dtype=torch.int64)
        high = torch.full_like(low, len(rows))
        for _ in range(len(rows).bit_length()):
            middle = (low + high) // 2
            found = rows.index_select(0, middle.clamp(max=len(rows) - 1))
            smaller = torch.mv(torch.sign(found - wanted).float(), weights) < 0
            is_open = low < high
            low = torch.where(is_open & smaller, middle + 1, low)
            high = torch.where(is_open & ~smaller, middle, high)
        there = rows.index_select(0, low.clamp(max=len(rows) - 1)) == wanted
        return ((low < len(rows)) & there.all(dim=1)).view(branches, candidates)
