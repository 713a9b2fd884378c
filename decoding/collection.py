"""Collection of dead branches: when it is due, and which slots of the token tree survive it.

A slot is *live* while it lies on the path of a branch that may still get children. Every branch carries the
slots on its path, so marking is one scatter and no tree is walked; what survives keeps its order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CollectionPolicy:
    """When a session collects dead branches. Learning how many are live waits for the device.

    Attributes:
        interval: Steps from one collection to the next, at least 1; None collects on no schedule.
        under_pressure: Whether to collect before the reserved room would have to grow.
    """

    interval: int | None = 16
    under_pressure: bool = True

    def __post_init__(self) -> None:
        if self.interval is not None and (isinstance(self.interval, bool) or self.interval < 1):
            raise ValueError(f"interval must be at least 1, or None for no schedule, got {self.interval}")

    @classmethod
    def never(cls) -> CollectionPolicy:
        """Keep every branch that was ever written."""
        return cls(interval=None, under_pressure=False)

    def is_due(self, steps: int, full: bool) -> bool:
        """Whether to collect before the next frontier is written.

        Args:
            steps: Frontiers written since the last collection.
            full: Whether there is no room left for the next one.
        """
        return (self.interval is not None and steps >= self.interval) or (self.under_pressure and full)


DEFAULT_COLLECTION = CollectionPolicy()


@dataclass(frozen=True, slots=True, eq=False)
class Survivors:
    """The slots that a collection keeps, in their old order.

    The result is as wide as the query with most live slots needs. Rows of other queries end in fillers:
    repetitions of some slot that no path refers to, so that no branch ever sees them.

    Attributes:
        old_slots: For every slot afterwards, which it was before. Shape: (Q, width), int64.
        new_slots: For every slot before, which it is afterwards; of no meaning for dead ones, but in range
            wherever anything is live. Shape: (Q, n), int64.
    """

    old_slots: Tensor
    new_slots: Tensor


def survivors(paths: Tensor, wanted: Tensor, num_slots: int) -> Survivors | None:
    """Mark the slots on the paths of some branches. Waits for the device, once.

    Args:
        paths: Slots on the path of every branch. Shape: (Q, B, depth), int64.
        wanted: Which branches matter. Shape: (Q, B), bool.
        num_slots: Slots written so far, n >= 1.

    Returns:
        None where nothing could be freed, since some query needs all of its slots.
    """
    queries = paths.shape[0]
    # One more column takes the paths of branches that do not matter.
    marked = torch.where(wanted[..., None], paths, num_slots).reshape(queries, -1)
    live = torch.zeros(queries, num_slots + 1, dtype=torch.bool, device=paths.device)
    live = live.scatter_(1, marked, value=True)[:, :num_slots]
    ranks = live.cumsum(1)
    width = int(ranks[:, -1].max())
    if width == num_slots:
        return None
    slots = torch.arange(num_slots, device=paths.device).expand(queries, -1)
    # Again one more column, for the dead. What is not written stays slot 0, the filler.
    old_slots = torch.zeros(queries, width + 1, dtype=torch.int64, device=paths.device)
    old_slots.scatter_(1, torch.where(live, ranks - 1, width), slots)
    return Survivors(old_slots[:, :width], (ranks - 1).clamp_(min=0))
