"""What the branches of a beam search wrote: one token and one back pointer per branch.

Nothing is copied as prefixes grow, so a step costs the same however long they are; texts are put together
once, at the end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Ints = npt.NDArray[np.int64]


class Written:
    """The branches of Q queries, level by level; a level's are numbered in the order they were written."""

    def __init__(self) -> None:
        self._frontiers: list[tuple[int, Tensor, Tensor]] = []  # (depth, parents, tokens)
        self._widths: dict[int, int] = {}

    def add(self, depth: int, parents: Tensor, tokens: Tensor) -> int:
        """Note a frontier.

        Args:
            depth: Tokens on its branches.
            parents: Number of each branch's parent on the level above. Shape: (Q, B), int64.
            tokens: Shape: (Q, B), int64.

        Returns:
            The number that its first branch has on its level.
        """
        first = self._widths.get(depth, 0)
        self._frontiers.append((depth, parents, tokens))
        self._widths[depth] = first + parents.shape[1]
        return first

    def texts(self, query: _Ints, length: _Ints, slot: _Ints, token: _Ints) -> list[tuple[int, ...]]:
        """Put texts together that were continued by one more token. Waits for the device, once.

        Args:
            query: Shape: (n,).
            length: In tokens, the last included. Shape: (n,).
            slot: Branch that the last token was written on. Shape: (n,).
            token: The last token. Shape: (n,).
        """
        longest = int(length.max(initial=1))
        tokens = np.zeros((len(query), longest), dtype=np.int64)
        tokens[np.arange(len(query)), length - 1] = token
        levels = self._on_host()
        branch = slot.copy()
        for depth in range(longest - 1, 0, -1):
            (here,) = np.nonzero(length > depth)
            parents, written = levels[depth]
            at = query[here], branch[here]
            tokens[here, depth - 1] = written[at]
            branch[here] = parents[at]
        return [tuple(row[:n].tolist()) for row, n in zip(tokens, length.tolist(), strict=True)]

    def _on_host(self) -> dict[int, tuple[_Ints, _Ints]]:
        """(parents, tokens) of every level. Shapes: (Q, n), by depth."""
        if not self._frontiers:
            return {}
        depths, all_parents, all_tokens = zip(*self._frontiers, strict=True)
        flat = [torch.cat(pieces, dim=1) for pieces in (all_parents, all_tokens)]
        parents, tokens = torch.stack(flat).cpu().numpy()
        columns: dict[int, list[_Ints]] = {}
        begin = 0
        for depth, there in zip(depths, all_parents, strict=True):
            columns.setdefault(depth, []).append(np.arange(begin, begin + there.shape[1]))
            begin += there.shape[1]
        places = {depth: np.concatenate(pieces) for depth, pieces in columns.items()}
        return {depth: (parents[:, place], tokens[:, place]) for depth, place in places.items()}
