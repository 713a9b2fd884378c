"""Runs chains over stock transformers models: one branch per query, several tokens a pass, with rewinding.

Prompts, cache and attention are the token tree's; only visibility and the use of slots
differ. Exact for every architecture that the token tree is exact for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genret.decoding.constraints import at_least_float32
from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.token_tree import BranchStep

_Ints = NDArray[np.int64]


class TreeChains:
    """The chains of one batch of prompts (`decoding.language_model.ChainSession`); owns the session.

    The tail has one column of slots per token of the longest chunk of every pass. A slot is dead if its query
    had no token for it, or has taken the token back; dead slots are hidden until a collection frees them. The
    host keeps all of this, so nothing waits for the device.
    """

    def __init__(self, session: TreeSession) -> None:
        self._session = session
        self.root_logits = session.root_logits  # Next-token logits after each prompt. Shape: (Q, V), float32
        queries = len(session.prompts.lengths)
        self._lengths: _Ints = np.zeros(queries, dtype=np.int64)  # of every chain
        # Depth of the token in every slot, 0 for dead ones, here and on the device, where tokens that were
        # taken back die with the next pass. Shapes: (Q, n).
        self._depths: _Ints = np.zeros((queries, 0), dtype=np.int64)
        self._on_device = self._shipped(self._depths)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that every query has written and not taken back."""
        return tuple(self._lengths.tolist())

    @property
    def usage(self) -> KvUsage:
        """Key/value memory; see `ChainSession.usage`."""
        return self._session.usage

    @torch.no_grad()
    def extend(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Write tokens behind each query's chain; see `ChainSession.extend`. Never waits for the device."""
        self._check(token_ids)
        self._make_room(max(len(tokens) for tokens in token_ids))
        return at_least_float32(self._session.run_chains(*self._take_slots(token_ids)))

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget everything behind some written tokens; see `ChainSession.rewind`."""
        wanted = np.array(lengths, dtype=np.int64)
        if wanted.shape != self._lengths.shape or (wanted < 0).any() or (wanted > self._lengths).any():
            raise ValueError(f"lengths must be in [0, {self._lengths.tolist()}], got {list(lengths)}")
        self._lengths = wanted
        self._depths[self._depths > wanted[:, None]] = 0

    @torch.no_grad()
    def select(self, queries: Sequence[int]) -> TreeChains:
        """Return the chains of some queries; see `ChainSession.select`."""
        chosen = list(queries)
        other = TreeChains(self._session.select(queries, branches=True))
        other._lengths, other._depths = self._lengths[chosen], self._depths[chosen]
        other._on_device = other._shipped(other._depths.copy())
        return other

    def _shipped(self, values: NDArray[np.integer]) -> Tensor:
        """Values on the device, which may share the memory of an array on the CPU."""
        return torch.from_numpy(values).to(self._session.prompts.lengths_on_device.device)

    def _check(self, token_ids: Sequence[Sequence[int]]) -> None:
        prompts, limit = self._session.prompts.lengths, self._session.model.position_limit
        if len(token_ids) != len(prompts):
            raise ValueError(f"token_ids must have one list per query, {len(prompts)}, got {len(token_ids)}")
        if not any(token_ids):
            raise ValueError("a pass needs at least one token, got none for any query")
        if limit is None:
            return
        for prompt, written, tokens in zip(prompts, self.lengths, token_ids, strict=True):
            if prompt + written + len(tokens) > limit:
                raise PromptTooLongError(
                    f"the next tokens need position {prompt + written + len(tokens)} of {limit}: the prompt "
                    f"has {prompt} tokens and {written} were written after it"
                )

    def _make_room(self, width: int) -> None:
        """Reserve room for one more pass, freeing dead slots before the cache would have to grow."""
        num_slots, most_living = self._depths.shape[1], int(self._lengths.max())
        if num_slots + width > self._session.cache.capacity and most_living < num_slots:
            # Living slots first, in order; shorter chains keep some dead ones.
            order = np.argsort(self._depths == 0, axis=1, kind="stable")[:, :most_living]
            self._depths = np.take_along_axis(self._depths, order, axis=1)
            self._on_device = self._shipped(self._depths.copy())
            self._session.compact(self._shipped(order), width)
        self._session.cache.make_room(width)

    def _take_slots(self, token_ids: Sequence[Sequence[int]]) -> tuple[Tensor, BranchStep]:
        """Take slots for the new tokens of every query, possibly none.

        Returns the tokens, padded on the right, of shape (Q, L), int64, and their visibility.
        """
        counts = np.array([len(tokens) for tokens in token_ids], dtype=np.int64)
        longest = int(counts.max())
        columns = np.arange(longest)
        given = columns < counts[:, None]
        tokens = np.zeros(given.shape, dtype=np.int64)
        tokens[given] = np.fromiter((token for row in token_ids for token in row), dtype=np.int64)
        kept, self._lengths = self._lengths, self._lengths + counts
        depths = np.minimum(kept[:, None] + columns + 1, self._lengths[:, None])
        written = np.where(given, depths, 0)
        self._depths = np.concatenate([self._depths, written], axis=1)
        # One transfer for all of it.
        packed = self._shipped(np.concatenate([tokens, depths, written, kept[:, None]], axis=1))
        device_tokens, device_depths, device_written = torch.split(packed[:, :-1], longest, dim=1)
        living = self._on_device.masked_fill(self._on_device > packed[:, -1:], 0)
        self._on_device = torch.cat([living, device_written], dim=1)
        slots = self._on_device[:, None]
        unrelated = (slots == 0) | (slots > device_depths[..., None])
        bounds = int(depths.min()), int(depths.max())
        prompts = self._session.prompts
        last = int((self._lengths + np.array(prompts.lengths)).max()) - 1
        return device_tokens, BranchStep(prompts, device_depths, self._on_device, unrelated, bounds, last)
