"""What the model said so far: every node it computed, with its valid edges and what they can still yield.

Nodes of all queries that stand at one depth form a level. Every node has an envelope c, an upper bound of the
probability that what is written from it on belongs to the set: c = 1 before the node is computed, then the
sum over its edges of P(edge) c(child), refreshed from the deepest level up to the root. What was found to be
invalid below a node is thereby taken off from everything above it.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from decoding.edge_chooser import EdgeChooser
from decoding.expansion import Edges


class Level:
    """The nodes at one depth, N of them, numbered in the order computed. Padding counts: it has no edges.

    Args:
        column: Column of each node among its query's branches of this depth. Shape: (N,), int64.
        parent_edge: Edge of the level above that leads to each node, -1 for roots and padding. Shape: (N,),
            int64.
        edges: Valid edges out of the nodes. E of them.

    Attributes:
        child: Node of the level below that each edge leads to, -1 while it is not computed. Shape: (E,),
            int64.
        log_envelope: log c of each node as of the last refresh, 0 for nodes computed since. Shape: (N,),
            float64.
        chooser: Of the edges with their children's envelopes; None after a change.
    """

    def __init__(self, column: Tensor, parent_edge: Tensor, edges: Edges) -> None:
        self.column, self.parent_edge, self.edges = column, parent_edge, edges
        self.child = torch.full_like(edges.token, -1)
        self.log_envelope = torch.zeros_like(column, dtype=torch.float64)
        self.chooser: EdgeChooser | None = None

    def __len__(self) -> int:
        return len(self.column)

    def extend(self, other: Level) -> None:
        """Add nodes behind those that are there."""
        moved = other.edges._replace(owner=other.edges.owner + len(self))
        self.edges = Edges(*(torch.cat(pair) for pair in zip(self.edges, moved, strict=True)))
        self.child = torch.cat([self.child, other.child])
        self.column = torch.cat([self.column, other.column])
        self.parent_edge = torch.cat([self.parent_edge, other.parent_edge])
        self.log_envelope = torch.cat([self.log_envelope, other.log_envelope])
        self.chooser = None


class ExploredTree:
    """The computed nodes of all queries of a batch, level by level. Roots are level 0, one per query."""

    def __init__(self) -> None:
        self.levels: list[Level] = []
        self._deepest_news = -1  # of the levels that have had nodes added since the last refresh

    def add(self, depth: int, level: Level) -> int:
        """Add nodes that were computed at a depth, and let their parents' edges lead to them.

        Returns:
            Number of the first of them in their level.
        """
        if depth == len(self.levels):
            first = 0
            self.levels.append(level)
        else:
            first = len(self.levels[depth])
            self.levels[depth].extend(level)
        if depth:
            added = torch.nonzero(level.parent_edge >= 0).squeeze(1)
            self.levels[depth - 1].child[level.parent_edge[added]] = added + first
        self._deepest_news = max(self._deepest_news, depth)
        return first

    def chooser(self, depth: int) -> EdgeChooser:
        """Return the chooser among the edges of a level, by probability times their child's envelope."""
        level = self.levels[depth]
        if level.chooser is None:
            level.chooser = EdgeChooser(self._weighted_edges(depth), len(level))
        return level.chooser

    def refresh(self) -> None:
        """Bring the envelopes up to date with everything computed. They never rise."""
        for depth in range(self._deepest_news, -1, -1):
            level = self.levels[depth]
            level.chooser = None
            chooser = self.chooser(depth)
            # In exact arithmetic the envelope falls; a weight above its bound by one rounding must not be.
            chooser.log_mass = torch.minimum(chooser.log_mass, level.log_envelope)
            level.log_envelope = chooser.log_mass
        self._deepest_news = -1

    def log_root_envelopes(self) -> Tensor:
        """Return log c of every root given everything computed, and change nothing. Shape: (Q,), float64."""
        latest = copy.copy(self)
        latest.levels = [copy.copy(level) for level in self.levels]
        latest.refresh()
        return latest.levels[0].log_envelope

    def _weighted_edges(self, depth: int) -> Edges:
        """Return the edges of a level, their log-probabilities lowered by their children's envelopes."""
        edges = self.levels[depth].edges
        if depth + 1 == len(self.levels):
            return edges
        below = self.levels[depth + 1]
        lowered = torch.nonzero((below.parent_edge >= 0) & (below.log_envelope < 0)).squeeze(1)
        if not len(lowered):
            return edges
        logprob = edges.logprob.clone()
        logprob[below.parent_edge[lowered]] += below.log_envelope[lowered]
        return edges._replace(logprob=logprob)
