"""What one frontier of a token tree may look at: shared prefix, prompt and tail, under the layers' windows.

All branches of a frontier stand at the same depth. So a window's edge in the prompts is at the same slot for
every query, padded on the left as they are, and known to the host: layers with a window read less, and no
mask is needed for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.prompt_layout import PromptLayout


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What may be seen of a stretch of slots.

    Attributes:
        first: No branch sees a slot before this one.
        hidden: True where a branch may not look, from slot `first` on; None where it sees all of them.
            Shape: (Q, B or 1, n - first), bool.
    """

    first: int
    hidden: Tensor | None


class TreeStep:
    """What one frontier may look at.

    Args:
        prompts: The prompts.
        depth: Tokens on the new branches, themselves included.
        tail_depths: Depth of every tail slot. Shape: (Q, n), int64.
        invisible: True where a tail slot is no ancestor. Shape: (Q, B, n), bool.

    Attributes:
        positions: Position of the new tokens. Shape: (Q,), int64.
        largest_position: `positions.max()`, known without asking the device.
    """

    __slots__ = (
        "_by_window",
        "_depth",
        "_invisible",
        "_prompts",
        "_tail_depths",
        "largest_position",
        "positions",
    )

    def __init__(self, prompts: PromptLayout, depth: int, tail_depths: Tensor, invisible: Tensor) -> None:
        self._prompts = prompts
        self._depth = depth
        self._tail_depths = tail_depths
        self._invisible = invisible
        self.positions = prompts.lengths_on_device + (depth - 1)
        self.largest_position = prompts.longest + depth - 1
        # Layers with the same window share their masks; there are one or two windows per model.
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
            Shapes: (Q, 1, S), (1, 1, T) and (Q, 1, n), int64, each in [0, `largest_position`].
        """
        device = self.positions.device
        prefix = self.positions[:, None] - torch.arange(self._prompts.prefix_length, device=device)
        width = self._prompts.width
        prompt = torch.arange(width + self._depth - 1, self._depth - 1, -1, device=device)[None]
        tail = (self._depth - self._tail_depths).clamp_(min=0)
        return prefix[:, None], prompt[:, None], tail[:, None]

    def _prefix(self, window: int) -> Sight:
        prompts = self._prompts
        # Position p sees p - window + 1 and what follows; the shortest prompt's branches see farthest back.
        first = min(max(prompts.shortest + self._depth - window, 0), prompts.prefix_length)
        if first == prompts.prefix_length or prompts.longest + self._depth - window <= first:
            return Sight(first, None)
        slots = torch.arange(first, prompts.prefix_length, device=self.positions.device)
        return Sight(first, (self.positions[:, None] - slots >= window)[:, None])

    def _prompt(self, window: int | None) -> Sight:
        width, padding = self._prompts.width, self._prompts.padding
        first = 0 if window is None else min(max(width + self._depth - window, 0), width)
        return Sight(first, None if padding is None or first == width else padding[:, None, first:])

    def _tail(self, window: int | None) -> Sight:
        if window is None or self._depth <= window:
            return Sight(0, self._invisible)
        too_far = self._depth - self._tail_depths >= window
        return Sight(0, self._invisible | too_far[:, None])
