"""What the new tokens of a batch of chains may look at: shared prefix, prompt and what was written before.

The counterpart of `TreeStep` where the tokens of one pass stand at different positions: every query writes
several tokens that follow each other, and queries have written different numbers of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.prompt_layout import PromptLayout
from decoding.tree_step import Sight


class ChainStep:
    """What one pass may look at. Rows without a token look at what the last token of their query sees.

    Args:
        prompts: The prompts.
        depths: Tokens written up to and with each new one; the query's last on rows without one.
            Shape: (Q, L), int64.
        slot_depths: Depth of the token in every slot, this pass's included, 0 where there is none.
            Shape: (Q, n), int64.
        least_depth: At most the smallest of `depths`.
        largest_position: The largest position of a new token.

    Attributes:
        positions: Shape: (Q, L), int64.
        largest_position: As given.
    """

    __slots__ = (
        "_by_window",
        "_depths",
        "_least_depth",
        "_prompts",
        "_slot_depths",
        "largest_position",
        "positions",
    )

    def __init__(
        self,
        prompts: PromptLayout,
        depths: Tensor,
        slot_depths: Tensor,
        least_depth: int,
        largest_position: int,
    ) -> None:
        self._prompts = prompts
        self._depths = depths
        self._slot_depths = slot_depths
        self._least_depth = least_depth
        self.positions = prompts.lengths_on_device[:, None] + depths - 1
        self.largest_position = largest_position
        self._by_window: dict[int | None, tuple[Sight, Sight, Sight]] = {}

    def sights(self, window: int | None) -> tuple[Sight, Sight, Sight]:
        """What may be seen of the shared prefix (S slots), of the prompts (T) and of the tail (n).

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = (
                Sight(0, None) if window is None else self._prefix(window),
                self._prompt(window),
                self._tail(window),
            )
        return self._by_window[window]

    def distances(self) -> tuple[Tensor, Tensor, Tensor]:
        """How far the slots of prefix, prompts and tail lie behind the new tokens, 0 where they do not.

        Returns:
            Shapes: (Q, L, S), (Q, L, T) and (Q, L, n), int64, each in [0, `largest_position`].
        """
        prefix = torch.arange(self._prompts.prefix_length, device=self.positions.device)
        own = torch.arange(self._prompts.width, device=self.positions.device)
        return (
            self.positions[..., None] - prefix,
            # The padding of a short prompt lies farther away than any token.
            (self._depths[..., None] + (self._prompts.width - 1) - own).clamp_(max=self.largest_position),
            (self._depths[..., None] - self._slot_depths[:, None]).clamp_(min=0),
        )

    def _prefix(self, window: int) -> Sight:
        length = self._prompts.prefix_length
        first = min(max(self._prompts.shortest + self._least_depth - window, 0), length)
        if first == length or self.largest_position + 1 - window <= first:
            return Sight(first, None)
        slots = torch.arange(first, length, device=self.positions.device)
        return Sight(first, self.positions[..., None] - slots >= window)

    def _prompt(self, window: int | None) -> Sight:
        width, padding = self._prompts.width, self._prompts.padding
        first = 0 if window is None else min(max(width + self._least_depth - window, 0), width)
        hidden = None if padding is None or first == width else padding[:, None, first:]
        if window is None or first == width:
            return Sight(first, hidden)
        slots = torch.arange(first, width, device=self.positions.device)
        too_far = self._depths[..., None] + (width - 1) - slots >= window
        return Sight(first, too_far if hidden is None else hidden | too_far)

    def _tail(self, window: int | None) -> Sight:
        slots, rows = self._slot_depths[:, None], self._depths[..., None]
        hidden = (slots == 0) | (slots > rows)
        return Sight(0, hidden if window is None else hidden | (rows - slots >= window))
