"""What the nodes of whole token trees may look at when many depths are written in one pass.

The counterpart of `TreeStep` where one pass writes whole trees. Nodes come in preorder, cut into blocks: what
a block sees of its tree is a path that ends above it, and part of itself. So attention inside a tree costs in
proportion to its nodes, not to their square, and needs no padding: every block belongs to one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.prompt_layout import PromptLayout
from decoding.row_trees import NodeSpan, RowTrees
from decoding.tree_step import Sight


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The nodes that one pass writes, as the rows of a single sequence. P rows.

    Attributes:
        tokens: Shape: (1, P), int64.
        positions: Shape: (1, P), int64.
        rows: Which rows every query has, in the order of the spans: (query, first, end).
        blocks: The rows again, in blocks.
    """

    tokens: Tensor
    positions: Tensor
    rows: tuple[tuple[int, int, int], ...]
    blocks: tuple[TreeBlock, ...]


class TreeBlock:
    """What consecutive nodes of one tree may look at. b rows.

    The slots of a prompt are its own, without the padding that a batch gives it.

    Args:
        first: The first row in the pass.
        end: The row behind the last one.
        query: Whose tree it is.
        prompt: Tokens of its prompt, a shared prefix included.
        prefix: Tokens of the shared prefix, S.
        positions: Of the nodes. Shape: (b,), int64.
        least: At most the smallest of `positions`.
        largest: The largest of `positions`.
        ends: Row behind the subtree of every node. Shape: (b,), int64.
        path: Where the keys of the path above lie, from the prompt on. Shape: (k,), int64.
        path_ends: Row behind the subtree of every node of the path. Shape: (k,), int64.

    Attributes:
        first: As given.
        end: As given.
        query: As given.
        path: As given.
        largest_position: As `largest`.
    """

    __slots__ = (
        "_by_window",
        "_ends",
        "_least",
        "_path_ends",
        "_positions",
        "_prefix",
        "_prompt",
        "end",
        "first",
        "largest_position",
        "path",
        "query",
    )

    def __init__(
        self,
        first: int,
        end: int,
        query: int,
        prompt: int,
        prefix: int,
        positions: Tensor,
        least: int,
        largest: int,
        ends: Tensor,
        path: Tensor,
        path_ends: Tensor,
    ) -> None:
        self.first = first
        self.end = end
        self.query = query
        self.path = path
        self.largest_position = largest
        self._prompt = prompt
        self._prefix = prefix
        self._positions = positions
        self._least = least
        self._ends = ends
        self._path_ends = path_ends
        self._by_window: dict[int | None, tuple[Sight, Sight, Sight, Sight]] = {}

    def sights(self, window: int | None) -> tuple[Sight, Sight, Sight, Sight]:
        """What may be seen of shared prefix (S slots), prompt (T), path (k) and of the block itself (b).

        Args:
            window: A token at position p sees positions above p - window; None is unbounded.
        """
        if window is not None and self.largest_position < window:
            window = None
        if window not in self._by_window:
            self._by_window[window] = self._look(window)
        return self._by_window[window]

    def distances(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """How far the slots of prefix, prompt, path and block lie behind the nodes, 0 where they do not.

        Returns:
            Shapes: (b, S), (b, T), (b, k) and (b, b), int64, each in [0, `largest_position`].
        """
        here = self._positions[:, None]
        prefix, prompt, path = self._stretches()
        own = (here - self._positions).clamp_(min=0)
        return here - prefix, here - prompt, (here - path).clamp_(min=0), own

    def _stretches(self) -> tuple[Tensor, Tensor, Tensor]:
        """Positions of the slots of prefix, prompt and path."""
        slots = torch.arange(self._prompt + len(self.path), device=self._positions.device)
        return slots[: self._prefix], slots[self._prefix : self._prompt], slots[self._prompt :]

    def _look(self, window: int | None) -> tuple[Sight, Sight, Sight, Sight]:
        rows = torch.arange(self.first, self.end, device=self._positions.device)
        not_below = rows[:, None] >= self._path_ends
        unrelated = (rows > rows[:, None]) | (rows[:, None] >= self._ends)
        if window is not None:
            _, _, path, own = self.distances()
            not_below |= path >= window
            unrelated |= own >= window
        return (
            self._of_prompt(window, 0, self._prefix),
            self._of_prompt(window, self._prefix, self._prompt),
            Sight(0, not_below[None]),
            Sight(0, unrelated[None]),
        )

    def _of_prompt(self, window: int | None, start: int, end: int) -> Sight:
        """What is seen of the slots at positions [start, end)."""
        if window is None:
            return Sight(0, None)
        seen = min(max(self._least - window + 1, start), end)
        if seen == end or self.largest_position - seen < window:
            return Sight(seen - start, None)
        slots = torch.arange(seen, end, device=self._positions.device)
        return Sight(seen - start, (self._positions[:, None] - slots >= window)[None])


def cut(
    trees: RowTrees,
    spans: Sequence[NodeSpan],
    kept: int,
    prompts: PromptLayout,
    rows_per_block: int,
) -> Piece:
    """Cut the nodes of one pass into blocks, with a single transfer to the device.

    Args:
        trees: The trees.
        spans: Nodes to write. Those of a tree that was begun before come first.
        kept: Nodes whose keys lie before those of the pass: the path above the first node.
        prompts: The prompts.
        rows_per_block: Most rows of a block.
    """
    lengths = np.array(prompts.lengths, dtype=np.int64)
    nodes = np.concatenate([np.arange(span.first, span.end) for span in spans])
    owners = np.repeat([span.query for span in spans], [span.end - span.first for span in spans])
    positions = lengths[owners] + trees.depths[nodes] - 1
    rows, bounds, paths = [], [], []
    start = 0
    for span in spans:
        # Where a node of this span lies among the rows of the pass.
        shift = start - span.first
        stop = span.end + shift
        rows.append((span.query, start, stop))
        for first in range(start, stop, rows_per_block):
            path = np.array(trees.path(first - shift), dtype=np.int64)
            slots = np.where(path >= span.first, kept + path + shift, trees.depths[path] - 1)
            paths.append((slots, trees.ends[path] + shift))
            bounds.append((span.query, first, min(first + rows_per_block, stop)))
        start = stop
    ends = trees.ends[nodes] + np.repeat(
        [first - span.first for (_, first, _), span in zip(rows, spans, strict=True)],
        [span.end - span.first for span in spans],
    )
    on_path = [len(slots) for slots, _ in paths]
    columns = [trees.tokens[nodes], positions, ends, *(s for s, _ in paths), *(e for _, e in paths)]
    shipped = torch.from_numpy(np.concatenate(columns)).to(prompts.lengths_on_device.device)
    parts = torch.split(shipped, [len(nodes)] * 3 + on_path * 2)
    blocks = tuple(
        TreeBlock(
            first,
            end,
            query,
            prompts.lengths[query],
            prompts.prefix_length,
            parts[1][first:end],
            int(positions[first:end].min()),
            int(positions[first:end].max()),
            parts[2][first:end],
            parts[3 + number],
            parts[3 + len(bounds) + number],
        )
        for number, (query, first, end) in enumerate(bounds)
    )
    return Piece(parts[0][None], parts[1][None], tuple(rows), blocks)
