"""Gumbel noise on the edges of a tree of prefixes: the arithmetic of sampling without replacement.

Every row s of the tree gets the perturbed log-probability log q(s) + Gumbel(0, 1); the B rows with the
largest are B samples from q without replacement. A prefix stands for the largest perturbed value below it,
which is again a Gumbel variable, located at the prefix's own log-probability. So the values can be drawn from
the root downwards: those of a prefix's continuations are drawn independently and then shifted such that their
largest is the prefix's (Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them", 2019,
algorithm 1; the shift as in their appendix B.3, which neither overflows nor cancels).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.counter_rng import extend_key, uniforms_of
from decoding.expansion import Edges

# Cells of a rectangle (branches x edges) handled at once. Some ten arrays of this size are alive: 20 MB.
_CHUNK_CELLS = 1 << 18


class Branches(NamedTuple):
    """n prefixes that are about to be continued, each of some draw.

    Attributes:
        node: Which of the expanded nodes each stands at. Shape: (n,), int64.
        key: Hash that the noise of its edges is derived from. Shape: (n,), int64.
        log_offset: What to add to an edge's log P_L for the log of the probability that the proposal gives
            prefix and edge together: log q(prefix), less the log of the node's valid mass.
            Shape: (n,), float64.
        perturbed: Perturbed log-probability. Shape: (n,), float64.
    """

    node: Tensor
    key: Tensor
    log_offset: Tensor
    perturbed: Tensor


def gumbels(u: Tensor) -> Tensor:
    """Return standard Gumbel variables made of uniforms in (0, 1)."""
    return -torch.log(-torch.log(u))


def log1m_exp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0, precise at both ends."""
    return torch.where(x > -math.log(2), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def condition_on_maximum(perturbed: Tensor, maximum: Tensor) -> Tensor:
    """Shift independent Gumbel variables such that the largest of each row is a given one.

    Args:
        perturbed: -inf where there is none, at least one finite per row. Shape: (n, w), float64.
        maximum: Shape: (n,), float64.
    """
    top = maximum.unsqueeze(1)
    gap = top - perturbed + log1m_exp(perturbed - perturbed.max(dim=1, keepdim=True).values)
    return top - gap.clamp(min=0) - torch.log1p(torch.exp(-gap.abs()))


def log_inclusion(log_proposal: Tensor, threshold: Tensor) -> Tensor:
    """Return the log of the probability that a perturbed log-probability exceeds a threshold.

    That is log(1 - exp(-exp(log_proposal - threshold))); a threshold of -inf is always exceeded.
    """
    gap = log_proposal - threshold
    # Far below the threshold 1 - exp(-e) is e to machine precision, and e itself may underflow.
    return torch.where(gap < -40.0, gap, log1m_exp(-torch.exp(gap.clamp(min=-40.0))))


def best_edges(edges: Edges, counts: Tensor, branches: Branches, number: int) -> tuple[Tensor, Tensor]:
    """Perturb all edges of every branch and return those with the largest values.

    Costs time in proportion to the edges of all branches: at a root with 48,000 of them 4 to 5 ms per draw on
    one core.

    Args:
        edges: Of the expanded nodes. E >= 1.
        counts: Edges of each node. Shape: (nodes,), int64.
        branches: Of nodes with at least one edge of positive probability.
        number: How many to return per branch.

    Returns:
        (perturbed log-probabilities in descending order, -inf where there are fewer; the edges, any where
        there are none). Shapes: (n, number), float64 and int64.
    """
    shape = (len(branches.node), number)
    values = branches.perturbed.new_full(shape, -math.inf)
    chosen = branches.node.new_zeros(shape)
    begin = counts.cumsum(0) - counts
    for rows, width in _chunks(counts[branches.node]):
        part = Branches(*(column[rows] for column in branches))
        columns = torch.arange(width, device=counts.device)
        there = columns < counts[part.node].unsqueeze(1)
        edge = torch.where(there, begin[part.node].unsqueeze(1) + columns, 0)
        log_proposal = part.log_offset.unsqueeze(1) + edges.logprob[edge]
        noise = gumbels(uniforms_of(extend_key(part.key.unsqueeze(1), edges.token[edge])))
        perturbed = torch.where(there, log_proposal + noise, -math.inf)
        best = condition_on_maximum(perturbed, part.perturbed).topk(min(number, width), dim=1)
        values[rows, : best.values.shape[1]] = best.values
        chosen[rows, : best.values.shape[1]] = edge.gather(1, best.indices)
    return values, chosen


def _chunks(sizes: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Group branches of similar numbers of edges; yields (the branches, their largest number)."""
    order = torch.argsort(sizes, descending=True, stable=True)
    widths = sizes[order].tolist()
    start = 0
    while start < len(widths):
        stop = start + max(1, _CHUNK_CELLS // widths[start])
        yield order[start:stop], widths[start]
        start = stop
