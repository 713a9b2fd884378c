"""What the branches of a session carry, level by level: the bookkeeping of sessions made for benchmarks."""

from __future__ import annotations

import torch
from torch import Tensor


class Branches:
    """One integer per branch and prompt of a batch of Q queries.

    Args:
        root: What the prompts carry. Shape: (Q,), int64.
    """

    def __init__(self, root: Tensor) -> None:
        self.root = root
        self._levels = [root.unsqueeze(1)]

    def next_depth(self, depth: int | None) -> int:
        """Return the depth of a step: one deeper than the deepest level unless it is said."""
        return len(self._levels) if depth is None else depth

    def parents(self, parents: Tensor, depth: int) -> Tensor:
        """Return what the parents of branches of a depth carry. Shapes: (Q, B), int64."""
        index = torch.zeros_like(parents) if depth == 1 else parents.clamp(min=0)
        return self._levels[depth - 1].gather(1, index)

    def add(self, carried: Tensor, depth: int) -> None:
        """Write branches of a depth. `carried` shape: (Q, B), int64."""
        if depth == len(self._levels):
            self._levels.append(carried)
        else:
            self._levels[depth] = torch.cat([self._levels[depth], carried], dim=1)

    def select(self, queries: list[int], branches: bool) -> Branches:
        """Return those of some queries, with what was written on them or without."""
        selected = Branches(self.root[queries])
        if branches:
            selected._levels = [level[queries] for level in self._levels]
        return selected
