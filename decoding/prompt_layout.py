"""How a batch of prompts lies in the slots of the token tree: left-padded, behind a prefix they may share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class PromptLayout:
    """Prompts of Q queries in T slots, the shared prefix left out.

    Args:
        lengths: Length in tokens of every whole prompt. Length Q.
        device: Where the layout is needed.
        prefix_length: Tokens that all prompts begin with and that have no slots of their own; every prompt
            is longer.

    Attributes:
        lengths: As given.
        prefix_length: As given, S.
        longest: The longest prompt.
        shortest: The shortest prompt.
        width: Slots per query, T: what the longest prompt has behind the prefix.
        lengths_on_device: Shape: (Q,), int64.
        padding: True where a slot is padding; None where there is none. Shape: (Q, T), bool.
    """

    __slots__ = (
        "lengths",
        "lengths_on_device",
        "longest",
        "padding",
        "prefix_length",
        "shortest",
        "width",
    )

    def __init__(self, lengths: Sequence[int], device: torch.device, prefix_length: int = 0) -> None:
        if not lengths or min(lengths) <= prefix_length:
            raise ValueError(
                f"prompt lengths must hold at least one length, each >= {prefix_length + 1}, "
                f"got {list(lengths)}"
            )
        self.lengths = tuple(lengths)
        self.prefix_length = prefix_length
        self.longest = max(lengths)
        self.shortest = min(lengths)
        self.width = self.longest - prefix_length
        self.lengths_on_device = torch.tensor(self.lengths, dtype=torch.int64, device=device)
        self.padding = (self.positions() < prefix_length) if self.shortest < self.longest else None

    @property
    def own_lengths(self) -> tuple[int, ...]:
        """What every prompt has behind the prefix."""
        return tuple(length - self.prefix_length for length in self.lengths)

    def positions(self) -> Tensor:
        """Position of the token in every slot, below S on padding. Shape: (Q, T), int64."""
        slots = torch.arange(self.width, device=self.lengths_on_device.device)
        return slots[None, :] + (self.lengths_on_device - self.width)[:, None]

    def select(self, queries: Sequence[int]) -> PromptLayout:
        """The layout of some of the prompts, in that order."""
        lengths = [self.lengths[query] for query in queries]
        return PromptLayout(lengths, self.lengths_on_device.device, self.prefix_length)
