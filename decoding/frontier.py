"""The rectangular frontier of a batch: which branches every query grows in the next forward.

Branches of one query that wrote the same tokens are one node: they share its forward and its KV.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_TOKEN_BITS = 32  # leaves 31 bits for queries times slots


class Frontier(NamedTuple):
    """Nodes to compute next, padded to a rectangle.

    Attributes:
        states: Constraint state of every node, -1 for padding. Shape: (Q, B), int64.
        tokens: Token written on every node, 0 for padding. Shape: (Q, B), int64.
        parents: Slot of the parent in the previous frontier, -1 for padding. Shape: (Q, B), int64.
        slots: Slot of each branch that was put in. Shape: (D,), int64.
    """

    states: Tensor
    tokens: Tensor
    parents: Tensor
    slots: Tensor


def merge_branches(
    num_queries: int, query: Tensor, states: Tensor, tokens: Tensor, parents: Tensor
) -> Frontier:
    """Merge equal branches and lay the rest out as one row per query.

    Branches are the same text when they add the same token to the same node; their states are then equal.
    (Equal states alone would not do: a grammar reaches one state by many texts.)

    Args:
        num_queries: Q.
        query: Query of each branch. Shape: (D,), int64.
        states: Shape: (D,), int64, each >= 0.
        tokens: Shape: (D,), int64.
        parents: Slot of the parent, >= 0. Shape: (D,), int64.
    """
    num_parents = parents.max() + 1 if len(parents) else parents.new_ones(())
    written = ((query * num_parents + parents) << _TOKEN_BITS) | tokens
    keys, node = torch.unique(written, return_inverse=True)
    node_query = torch.div(keys >> _TOKEN_BITS, num_parents, rounding_mode="floor")
    counts = torch.bincount(node_query, minlength=num_queries)
    slot = torch.arange(len(keys), device=keys.device) - (counts.cumsum(0) - counts)[node_query]
    width = int(counts.max()) if len(keys) else 0
    shape = (num_queries, width)
    rectangle = Frontier(
        states=torch.full(shape, -1, dtype=torch.int64, device=keys.device),
        tokens=torch.zeros(shape, dtype=torch.int64, device=keys.device),
        parents=torch.full(shape, -1, dtype=torch.int64, device=keys.device),
        slots=slot[node],
    )
    rectangle.states[query, rectangle.slots] = states
    rectangle.tokens[query, rectangle.slots] = tokens
    rectangle.parents[query, rectangle.slots] = parents
    return rectangle
