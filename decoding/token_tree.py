"""Who sees whom in a batch of token trees: positions and visibility, no model and no cache.

Every query owns one tree. Its root is the prompt; a frontier of B branches is written per step, each below
a branch of the frontier before it (Trie-based beam search with a token tree, Algorithms 2 and 3). All
written tokens lie in one sequence of *slots*; a token may look at its prompt, its ancestors and itself.
Visibility is kept up to date with one gather and one concatenation per step: a branch sees what its parent
saw, and itself. No tree is ever walked, and nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenTree:
    """The trees of Q queries over left-padded prompts of width T.

    Args:
        prompt_lengths: True length in tokens of every prompt, each at least 1. Length Q.
        device: Where positions and masks live.

    Attributes:
        prompt_positions: Position of every prompt slot, negative on padding. Shape: (Q, T), int64.
        depth: Tokens written on every branch so far.
    """

    def __init__(self, prompt_lengths: Sequence[int], device: torch.device) -> None:
        if not prompt_lengths or min(prompt_lengths) < 1:
            raise ValueError(
                f"prompt_lengths must hold at least one length, each >= 1, got {list(prompt_lengths)}"
            )
        self.prompt_lengths = tuple(prompt_lengths)
        self.longest_prompt = max(prompt_lengths)
        self._lengths = torch.tensor(prompt_lengths, dtype=torch.int64, device=device)
        slots = torch.arange(self.longest_prompt, device=device)
        self.prompt_positions = slots[None, :] - (self.longest_prompt - self._lengths)[:, None]
        self._prompt_padding = (
            self.prompt_positions < 0 if min(prompt_lengths) != self.longest_prompt else None
        )
        self.depth = 0
        # The frontier before the first step is the prompt itself: one branch that sees no tail slot.
        self._visible = torch.zeros(self.num_queries, 1, 0, dtype=torch.bool, device=device)
        self._tail_positions = torch.zeros(self.num_queries, 0, dtype=torch.int64, device=device)

    @property
    def num_queries(self) -> int:
        """Q."""
        return self._lengths.shape[0]

    def grow(self, parents: Tensor) -> TreeStep:
        """Add one frontier of B branches below the previous one.

        Args:
            parents: Index into the previous frontier, -1 for padding branches; ignored at the first step.
                A padding branch sees its prompt and itself only. Shape: (Q, B), int64.

        Returns:
            What the attention of the new frontier may look at.
        """
        queries, branches = parents.shape
        slots = self._visible.shape[2]
        # At the first step any index names the only branch there is, the prompt.
        source = parents.clamp(min=0) if self.depth else torch.zeros_like(parents)
        inherited = self._visible.gather(1, source[:, :, None].expand(queries, branches, slots))
        inherited &= (parents >= 0)[:, :, None]
        itself = torch.eye(branches, dtype=torch.bool, device=parents.device)
        self._visible = torch.cat([inherited, itself.expand(queries, branches, branches)], dim=2)
        positions = self._lengths + self.depth
        self._tail_positions = torch.cat(
            [self._tail_positions, positions[:, None].expand(queries, branches)], dim=1
        )
        step = TreeStep(
            positions=positions,
            largest_position=self.longest_prompt + self.depth,
            key_positions=torch.cat([self.prompt_positions, self._tail_positions], dim=1),
            prompt_padding=self._prompt_padding,
            invisible=~self._visible,
        )
        self.depth += 1
        return step


class TreeStep:
    """What one frontier may look at. All its branches stand at the same depth, hence at one position.

    Args:
        positions: Position of the new tokens. Shape: (Q,), int64.
        largest_position: `positions.max()`, known without asking the device.
        key_positions: Positions of prompt and tail slots, negative on padding. Shape: (Q, T + n), int64.
        prompt_padding: True where a prompt slot is padding, None without padding. Shape: (Q, T), bool.
        invisible: True where a tail slot is no ancestor. Shape: (Q, B, n), bool.
    """

    __slots__ = (
        "_by_window",
        "_invisible",
        "_key_positions",
        "_prompt_padding",
        "largest_position",
        "positions",
    )

    def __init__(
        self,
        positions: Tensor,
        largest_position: int,
        key_positions: Tensor,
        prompt_padding: Tensor | None,
        invisible: Tensor,
    ) -> None:
        self.positions = positions
        self.largest_position = largest_position
        self._key_positions = key_positions
        self._prompt_padding = prompt_padding
        self._invisible = invisible
        # Layers with the same window share their masks; there are one or two windows per model.
        self._by_window: dict[int | None, tuple[Tensor | None, Tensor]] = {}

    def hidden(self, window: int | None) -> tuple[Tensor | None, Tensor]:
        """Masks of prompt and tail, True where a branch may not look.

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.

        Returns:
            Mask of the prompt slots, None where all are visible, shape (Q, 1, T), bool; and of the tail
            slots, shape (Q, B, n), bool.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = self._masks(window)
        return self._by_window[window]

    def distances(self) -> Tensor:
        """How far every slot lies behind the new tokens, 0 or more. Shape: (Q, T + n), int64."""
        return (self.positions[:, None] - self._key_positions).clamp(0, self.largest_position)

    def _masks(self, window: int | None) -> tuple[Tensor | None, Tensor]:
        prompt = None if self._prompt_padding is None else self._prompt_padding[:, None, :]
        if window is None:
            return prompt, self._invisible
        prompt_width = self._key_positions.shape[1] - self._invisible.shape[2]
        outside = (self.positions[:, None] - self._key_positions >= window)[:, None, :]
        too_old = outside[:, :, :prompt_width]
        return (
            too_old if prompt is None else prompt | too_old,
            self._invisible | outside[:, :, prompt_width:],
        )
