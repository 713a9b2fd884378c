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

from genret.decoding.errors import PromptTooLongError
from genret.decoding.language_model import KvUsage, at_least_float32
from genret.decoding.model.hf_session import TreeSession
from genret.decoding.model.token_tree import BranchStep, PromptLayout


class TreeChains:
    """The chains of one batch of prompts (`decoding.language_model.ChainSession`); owns the session."""

    def __init__(self, session: TreeSession) -> None:
        self._session = session
        self._slots = ChainSlots(session.prompts)

    @property
    def root_logits(self) -> Tensor:
        """Next-token logits after each prompt. Shape: (Q, V), float32."""
        return self._session.root_logits

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens that every query has written and not taken back."""
        return tuple(self._slots.lengths.tolist())

    @property
    def usage(self) -> KvUsage:
        """Key/value memory; see `ChainSession.usage`."""
        return self._session.usage

    @torch.no_grad()
    def extend(self, token_ids: Sequence[Sequence[int]]) -> Tensor:
        """Write tokens behind each query's chain; see `ChainSession.extend`. Never waits for the device."""
        self._check(token_ids)
        width = max(len(tokens) for tokens in token_ids)
        self._make_room(width)
        tokens, step = self._slots.extend(token_ids)
        return at_least_float32(self._session.run_chains(tokens, step))

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget everything behind some written tokens; see `ChainSession.rewind`."""
        self._slots.rewind(lengths)

    @torch.no_grad()
    def select(self, queries: Sequence[int]) -> TreeChains:
        """Return the chains of some queries; see `ChainSession.select`."""
        other = TreeChains.__new__(TreeChains)
        other._session = self._session.select(queries, branches=True)
        other._slots = self._slots.select(queries)
        return other

    def _check(self, token_ids: Sequence[Sequence[int]]) -> None:
        prompts, limit = self._slots.prompts.lengths, self._session.model.position_limit
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
        slots = self._slots
        if slots.num_slots + width > self._session.cache.capacity and slots.most_living < slots.num_slots:
            self._session.compact(slots.collect(), width)
        self._session.cache.make_room(width)


_Ints = NDArray[np.int64]


class ChainSlots:
    """The tail slots of Q queries: one column per token of the longest chunk of every pass.

    A slot is dead if its query had no token for it, or has taken the token back; dead slots are hidden until
    a collection frees them. The host keeps all of this, so nothing waits for the device. `lengths`, (Q,), are
    the tokens that every query has written and not taken back.
    """

    def __init__(self, prompts: PromptLayout) -> None:
        self.prompts = prompts
        self.lengths: _Ints = np.zeros(len(prompts.lengths), dtype=np.int64)
        # Depth of the token in every slot, 0 for dead ones, here and on the device, where tokens that were
        # taken back die with the next pass. Shapes: (Q, n).
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
        """Length of the longest chain."""
        return int(self.lengths.max())

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget everything behind `lengths` tokens of each query; ValueError for more than written."""
        wanted = np.array(lengths, dtype=np.int64)
        if wanted.shape != self.lengths.shape or (wanted < 0).any() or (wanted > self.lengths).any():
            raise ValueError(f"lengths must be in [0, {self.lengths.tolist()}], got {list(lengths)}")
        self.lengths = wanted
        self._depths[self._depths > wanted[:, None]] = 0

    def extend(self, token_ids: Sequence[Sequence[int]]) -> tuple[Tensor, BranchStep]:
        """Take slots for the new tokens of every query, possibly none.

        Returns the tokens, padded on the right, of shape (Q, L), int64, and their visibility.
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
        slots = self._on_device[:, None]
        unrelated = (slots == 0) | (slots > device_depths[..., None])
        bounds = int(depths.min()), int(depths.max())
        last = int((self.lengths + np.array(self.prompts.lengths)).max()) - 1
        step = BranchStep(self.prompts, device_depths, self._on_device, unrelated, bounds, last)
        return device_tokens, step

    def collect(self) -> Tensor:
        """Free dead slots down to the longest chain; return the old slot of each left, (Q, m), int64."""
        # Living slots first, in order; shorter chains keep some dead ones.
        order = np.argsort(self._depths == 0, axis=1, kind="stable")[:, : self.most_living]
        self._depths = np.take_along_axis(self._depths, order, axis=1)
        device = self._on_device.device
        self._on_device = torch.from_numpy(self._depths.copy()).to(device)
        return torch.from_numpy(order).to(device)

    def select(self, queries: Sequence[int]) -> ChainSlots:
        """Return the slots of some queries, in that order."""
        other = ChainSlots(self.prompts.select(queries))
        chosen = list(queries)
        other.lengths = self.lengths[chosen]
        other._depths = self._depths[chosen]
        other._on_device = torch.from_numpy(other._depths.copy()).to(self._on_device.device)
        return other
