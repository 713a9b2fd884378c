"""Parts of sessions that are made for tests and benchmarks: what branches carry, and token trees by steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from genret.decoding.language_model import DecodeSession
from genret.decoding.row_trees import Ints, NodeSpan, RowTrees


class SteppedTrees:
    """Writes token trees below prompts of a session, one forward per level (`language_model.TreeWriter`)."""

    def __init__(self, session: DecodeSession, trees: RowTrees) -> None:
        self._session = session
        self._trees = trees
        self._logits: dict[int, Tensor] = {}

    def write(self, spans: Sequence[NodeSpan]) -> Tensor:
        """Write nodes; see `TreeWriter.write`. The trees of these queries are written as a whole at once."""
        missing = [span.query for span in spans if span.query not in self._logits]
        if missing:
            self._write(missing)
        parts = []
        for span in spans:
            start = int(self._trees.offsets[span.query])
            parts.append(self._logits[span.query][span.first - start : span.end - start])
        return torch.cat(parts)

    def _write(self, queries: list[int]) -> None:
        trees, whole = self._trees, [self._trees.span(query) for query in queries]
        session = self._session.select(queries)
        columns: Ints = np.zeros(len(trees.tokens), dtype=np.int64)
        pieces: list[list[Tensor]] = [[] for _ in queries]
        order: list[list[Ints]] = [[] for _ in queries]
        deepest = max(int(trees.depths[span.first : span.end].max()) for span in whole)
        for depth in range(1, deepest + 1):
            levels = [
                span.first + np.nonzero(trees.depths[span.first : span.end] == depth)[0] for span in whole
            ]
            width = max(len(level) for level in levels)
            parents = np.full((len(queries), width), -1, dtype=np.int64)
            tokens = np.zeros_like(parents)
            for row, level in enumerate(levels):
                columns[level] = np.arange(len(level))
                tokens[row, : len(level)] = trees.tokens[level]
                parents[row, : len(level)] = 0 if depth == 1 else columns[trees.parents[level]]
            device = self._session.root_logits.device
            logits = session.step(torch.from_numpy(parents).to(device), torch.from_numpy(tokens).to(device))
            for row, level in enumerate(levels):
                pieces[row].append(logits[row, : len(level)])
                order[row].append(level)
        for query, of_query, nodes in zip(queries, pieces, order, strict=True):
            back = torch.from_numpy(np.argsort(np.concatenate(nodes)))
            self._logits[query] = torch.cat(of_query)[back.to(of_query[0].device)]


class Branches:
    """One integer per branch and prompt of a batch of Q queries.

    Args:
        root: Integers of the prompts. Shape: (Q,), int64.
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
