"""Sampling among the allowed edges of many branches at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decoding.expansion import Edges


class EdgeChooser:
    """Sampling among ragged edges by inverse transform, many draws per node."""

    def __init__(self, edges: Edges, num_nodes: int) -> None:
        device = edges.logprob.device
        counts = torch.bincount(edges.owner, minlength=num_nodes)
        self._end = counts.cumsum(0)  # (n,) one past a node's last edge
        self._begin = self._end - counts
        largest = torch.full((num_nodes,), -math.inf, dtype=torch.float64, device=device)
        largest = largest.scatter_reduce(0, edges.owner, edges.logprob, "amax")
        base = torch.where(torch.isfinite(largest), largest, 0.0)
        weight = torch.exp(edges.logprob - base[edges.owner])
        self._cumulative = torch.cat([weight.new_zeros(1), weight.cumsum(0)])  # (E + 1,)
        total = torch.zeros_like(base).scatter_add(0, edges.owner, weight)
        self.log_mass = torch.log(total) + base  # (n,) log of the valid mass; -inf when nothing is valid
        # Rounding must never carry the log of a probability above zero.
        self.log_mass = self.log_mass.clamp(max=0.0)

    def choose(self, node: Tensor, u: Tensor) -> Tensor:
        """Return one edge per draw; meaningless (but in range) for nodes without valid mass.

        Args:
            node: Shape: (D,), int64.
            u: Uniforms in (0, 1). Shape: (D,), float64.
        """
        low = self._cumulative[self._begin[node]]
        high = self._cumulative[self._end[node]]
        # Strictly below the end of the run, so that the search cannot step into the next node's edges or
        # onto an edge of probability zero at the end.
        target = torch.minimum(low + u * (high - low), torch.nextafter(high, low))
        edge = torch.searchsorted(self._cumulative[1:], target, right=True)
        last = (len(self._cumulative) - 2) if len(self._cumulative) > 1 else 0
        return torch.minimum(edge.clamp(max=last), (self._end[node] - 1).clamp(min=0))
