"""Which slots of a cache hold the tokens of a batch of chains, and which hold nothing any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.chain_step import ChainStep
from decoding.prompt_layout import PromptLayout

_Ints = NDArray[np.int64]


class ChainSlots:
    """The tail slots of Q queries: one column per token of the longest chunk of every pass.

    A slot is dead when its query had no token for it, or has taken the token back; dead slots are never seen
    and wait for a collection. The host knows everything here, so nothing ever waits for the device.

    Args:
        prompts: The prompts.

    Attributes:
        prompts: As given.
        lengths: Tokens that every query has written and not taken back. Shape: (Q,), int64.
    """

    def __init__(self, prompts: PromptLayout) -> None:
        self.prompts = prompts
        self.lengths: _Ints = np.zeros(len(prompts.lengths), dtype=np.int64)
        # Depth of the token in every slot, 0 where it is dead, here and on the device; tokens that were taken
        # back die there with the next pass only. Shapes: (Q, n).
        self._depths: _Ints = np.zeros((len(prompts.lengths), 0), dtype=np.int64)
        self._on_device = torch.zeros(
            self._depths.shape, dtype=torch.int64, device=prompts.lengths_on_device.device
        )

    @property
    def num_slots(self) -> int:
        """Slots per query, dead ones included."""
        return int(self._depths.shape[1])

    @property
    def most_living(self) -> int:
        """Slots that the longest chain needs."""
        return int(self.lengths.max())

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget what every query has written behind a number of tokens.

        Raises:
            ValueError: a query has written fewer.
        """
        wanted = np.array(lengths, dtype=np.int64)
        if wanted.shape != self.lengths.shape or (wanted < 0).any() or (wanted > self.lengths).any():
            raise ValueError(f"lengths must be in [0, {self.lengths.tolist()}], got {list(lengths)}")
        self.lengths = wanted
        self._depths[self._depths > wanted[:, None]] = 0

    def extend(self, token_ids: Sequence[Sequence[int]]) -> tuple[Tensor, ChainStep]:
        """Take slots for new tokens.

        Args:
            token_ids: Of every query, some of them none. Length Q.

        Returns:
            The tokens, padded on the right, of shape (Q, L), int64, and what they may look at.
        """
        counts = np.array([len(tokens) for tokens in token_ids], dtype=np.int64)
        longest = int(counts.max())
        columns = np.arange(longest)
        given = columns < counts[:, None]
        tokens = np.zeros(given.shape, dtype=np.int64)
        tokens[given] = np.fromiter((token for row in token_ids for token in row), dtype=np.int64)
        kept, self.lengths = self.lengths, self.lengths + counts
        depths = np.minimum(kept[:, None] + columns + 1, self.lengths[:, None])
        written = np.where(given, depths, 0)
        self._depths = np.concatenate([self._depths, written], axis=1)
        # One transfer for all of it.
        packed = torch.from_numpy(np.concatenate([tokens, depths, written, kept[:, None]], axis=1))
        packed = packed.to(self._on_device.device)
        device_tokens, device_depths, device_written = torch.split(packed[:, :-1], longest, dim=1)
        living = self._on_device.masked_fill(self._on_device > packed[:, -1:], 0)
        self._on_device = torch.cat([living, device_written], dim=1)
        last = self.lengths + np.array(self.prompts.lengths) - 1
        step = ChainStep(
            self.prompts, device_depths, self._on_device, int(depths.min()), largest_position=int(last.max())
        )
        return device_tokens, step

    def collect(self) -> Tensor:
        """Drop dead slots, as many as every query has.

        Returns:
            For every slot that is left, which it was before. Shape: (Q, m), int64.
        """
        # Living slots first, in order; queries with fewer keep dead ones besides.
        order = np.argsort(self._depths == 0, axis=1, kind="stable")[:, : self.most_living]
        self._depths = np.take_along_axis(self._depths, order, axis=1)
        device = self._on_device.device
        self._on_device = torch.from_numpy(self._depths.copy()).to(device)
        return torch.from_numpy(order).to(device)

    def select(self, queries: Sequence[int]) -> ChainSlots:
        """The slots of some queries, in that order."""
        other = ChainSlots(self.prompts.select(queries))
        chosen = list(queries)
        other.lengths = self.lengths[chosen]
        other._depths = self._depths[chosen]
        other._on_device = torch.from_numpy(other._depths.copy()).to(self._on_device.device)
        return other
