"""Token masks on the device that decodes, each uploaded once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FIRST_ROWS = 16
_WORD_BITS = 32


class MaskPool:
    """Packed masks as the rows of one tensor that grows. Row 0 allows nothing.

    Args:
        vocab_size: Logits of the model, V.
        device: Where the rows are.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._num_words = -(-vocab_size // _WORD_BITS)
        self._rows = torch.zeros(_FIRST_ROWS, self._num_words, dtype=torch.int32, device=device)
        self._shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=device)
        # The masks are kept, so that no other one can be at the same address.
        self._masks: list[NDArray[np.uint32] | None] = [None]
        self._by_address: dict[int, int] = {}
        self._tokens: dict[int, Tensor] = {}

    def row(self, mask: NDArray[np.uint32]) -> int:
        """The row of a mask, uploaded if it is not there. The mask must not be changed later.

        Args:
            mask: Shape: (ceil(V / 32),), uint32.
        """
        row = self._by_address.get(id(mask))
        if row is None:
            row = len(self._masks)
            if row == len(self._rows):
                self._rows = torch.cat([self._rows, torch.zeros_like(self._rows)])
            self._rows[row] = torch.from_numpy(mask.view(np.int32).copy()).to(self._device)
            self._by_address[id(mask)] = row
            self._masks.append(mask)
        return row

    def packed(self, rows: Tensor) -> Tensor:
        """Gather rows. Shape: (n, ceil(V / 32)), int32, from (n,), int64."""
        return self._rows.index_select(0, rows)

    def unpacked(self, rows: Tensor) -> Tensor:
        """Gather rows, one column for each token. Shape: (n, V), bool, from (n,), int64."""
        bits = (self.packed(rows).unsqueeze(2) >> self._shifts) & 1
        return bits.flatten(1)[:, : self._vocab_size].bool()

    def contains(self, rows: Tensor, token_ids: Tensor) -> Tensor:
        """Whether rows allow tokens. Shape: (n, M), bool.

        Args:
            rows: Shape: (n,), int64.
            token_ids: Any numbers; those that are no token are not allowed. Shape: (n, M), int64.
        """
        in_range = (token_ids >= 0) & (token_ids < self._vocab_size)
        token = torch.where(in_range, token_ids, 0)
        words = self._rows[rows.unsqueeze(1), token // _WORD_BITS]
        return in_range & ((words >> (token % _WORD_BITS).int()) & 1).bool()

    def tokens(self, row: int) -> Tensor:
        """The tokens that a row allows, ascending. Shape: (n,), int64."""
        tokens = self._tokens.get(row)
        if tokens is None:
            mask = self._masks[row]
            bits = np.unpackbits(
                (np.zeros(0, np.uint32) if mask is None else mask).view(np.uint8), bitorder="little"
            )
            tokens = torch.from_numpy(np.flatnonzero(bits)).to(self._device)
            self._tokens[row] = tokens
        return tokens
