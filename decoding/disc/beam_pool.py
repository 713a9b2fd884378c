"""What every draw of a proposal beam keeps: its B prefixes and rows with the largest perturbed values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decoding.counter_rng import extend_key, uniforms_of
from decoding.disc.gumbel import Branches, best_edges, gumbels, log_inclusion
from decoding.expansion import Edges


class BeamPool:
    """B entries for each of D draws, largest perturbed log-probability first.

    An entry is a live prefix, a finished row, or a dead prefix: one that cannot be continued. Finished and
    dead ones are leaves of the tree and compete with the live ones, so that at the end a pool holds the B
    leaves with the largest perturbed values of all leaves.

    Args:
        start: Constraint state that each draw begins at. Shape: (D,), int64.
        key: Hash of each draw's own coordinates. Shape: (D,), int64.
        width: B.

    Attributes:
        perturbed: Perturbed log-probability, -inf for no entry. Shape: (D, B), float64.
        live: To be continued. Shape: (D, B), bool.
        finished: A whole row. Shape: (D, B), bool.
        state: Constraint state. Shape: (D, B), int64.
        logprob: log P_L of what was written. Shape: (D, B), float64.
        log_weight: Log of the product of the valid masses met on the way. Shape: (D, B), float64.
        slot: Node of a live entry in the frontier of its query. Shape: (D, B), int64.
        token: Last token of a live entry. Shape: (D, B), int64.
        threshold: Largest perturbed value that was ever pruned, -inf when none was. Shape: (D,), float64.
    """

    def __init__(self, start: Tensor, key: Tensor, width: int) -> None:
        shape = (len(start), width)
        self._width = width
        first = torch.arange(width, device=start.device) == 0
        root = gumbels(uniforms_of(key)).unsqueeze(1)  # located at log q() = 0
        self.perturbed = torch.where(first, root, -math.inf)
        self.live = first.expand(shape)
        self.finished = torch.zeros(shape, dtype=torch.bool, device=start.device)
        self.state = start.unsqueeze(1).expand(shape)
        self.logprob = torch.zeros(shape, dtype=torch.float64, device=start.device)
        self.log_weight = torch.zeros_like(self.logprob)
        self.slot = torch.zeros(shape, dtype=torch.int64, device=start.device)
        self.token = torch.zeros_like(self.slot)
        self.threshold = torch.full((len(start),), -math.inf, dtype=torch.float64, device=start.device)
        self._key = key.unsqueeze(1).expand(shape)
        self._written: list[tuple[Tensor, Tensor]] = []  # per step (entry before, token or -1), each (D, B)

    def kill(self, draws: Tensor) -> None:
        """Make dead prefixes of the live ones of some draws. `draws` shape: (D,), bool."""
        self.live = self.live & ~draws.unsqueeze(1)

    def advance(self, edges: Edges, log_mass: Tensor, node: Tensor) -> Tensor:
        """Continue the live prefixes by one token and keep the best B entries of every draw.

        Args:
            edges: Of the expanded nodes.
            log_mass: Log of the valid mass of every node. Shape: (nodes,), float64.
            node: Which node a live entry stands at; in range for the others. Shape: (D, B), int64.

        Returns:
            Which entries are new: their states may be final. Shape: (D, B), bool.
        """
        mass = log_mass[node]
        self.live = self.live & torch.isfinite(mass)
        if not bool(self.live.any()):
            return self.live
        values, edge = self._continuations(
            edges, torch.bincount(edges.owner, minlength=len(log_mass)), mass, node
        )
        kept = torch.where(self.live, -math.inf, self.perturbed)
        best = torch.cat([kept, values.flatten(1)], dim=1).topk(self._width + 1, dim=1)  # the last is pruned
        self.threshold = torch.maximum(self.threshold, best.values[:, -1])
        self.perturbed, place = best.values[:, :-1], best.indices[:, :-1]
        there = torch.isfinite(self.perturbed)
        added = place - self._width  # >= 0: number of a continuation
        new = there & (added >= 0)
        parent = torch.where(added >= 0, added // (self._width + 1), place)
        self._take(edges, edge.flatten(1).gather(1, added.clamp(min=0)), parent, new, mass)
        self.finished = self.finished & there
        return new

    def _continuations(
        self, edges: Edges, counts: Tensor, mass: Tensor, node: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the best B + 1 continuations of every live entry; more cannot matter. (D, B, B + 1) each."""
        at = self.live.nonzero(as_tuple=True)
        log_offset = self.logprob[at] - self.log_weight[at] - mass[at]
        branches = Branches(node[at], self._key[at], log_offset, self.perturbed[at])
        best, chosen = best_edges(edges, counts, branches, self._width + 1)
        values = best.new_full((*self.live.shape, self._width + 1), -math.inf)
        edge = chosen.new_zeros(values.shape)
        values[at], edge[at] = best, chosen
        return values, edge

    def _take(self, edges: Edges, edge: Tensor, parent: Tensor, new: Tensor, mass: Tensor) -> None:
        """Put `parent` into every place, continued by `edge` where it is `new`."""
        token = edges.token[edge]
        step = torch.where(new, edges.logprob[edge], 0.0)
        self.logprob = self.logprob.gather(1, parent) + step
        self.log_weight = self.log_weight.gather(1, parent) + torch.where(new, mass.gather(1, parent), 0.0)
        self.state = torch.where(new, edges.next_state[edge], self.state.gather(1, parent))
        key = self._key.gather(1, parent)
        self._key = torch.where(new, extend_key(key, token), key)
        self.slot = self.slot.gather(1, parent)
        self.token = token
        self.finished = self.finished.gather(1, parent) & ~new
        self.live = new
        self._written.append((parent, torch.where(new, token, -1)))

    def finish(self, which: Tensor) -> None:
        """Say which live entries are whole rows. `which` shape: (D, B), bool."""
        self.finished = self.finished | which
        self.live = self.live & ~which

    def log_estimates(self) -> Tensor:
        """Return the log of each draw's unbiased estimate of P_L(S), -inf without a finished row.

        The sum of P_L(s) / P(perturbed value of s > threshold) over the finished rows: the estimate of a
        bottom-k sample with its rank threshold. Shape: (D,), float64.
        """
        terms = self.logprob - log_inclusion(self.logprob - self.log_weight, self.threshold.unsqueeze(1))
        return torch.where(self.finished, terms, -math.inf).logsumexp(dim=1)

    def best(self, row: Tensor) -> Tensor:
        """Return each draw's most probable finished entry; of equal ones the lowest row. Shape: (D,), int64.

        Args:
            row: Rank of every entry's row. Shape: (D, B), int64.
        """
        logprob = torch.where(self.finished, self.logprob, -math.inf)
        equal = self.finished & (logprob == logprob.max(dim=1, keepdim=True).values)
        columns = torch.arange(self._width, device=row.device)
        order = torch.where(equal, row * self._width + columns, torch.iinfo(torch.int64).max)
        return order.argmin(dim=1)

    def tokens(self, entry: Tensor) -> list[Tensor]:
        """Return what one entry of every draw wrote, one column per step. `entry` shape: (D,), int64."""
        columns: list[Tensor] = []
        place = entry.unsqueeze(1)
        for parent, token in reversed(self._written):
            columns.append(token.gather(1, place).squeeze(1))
            place = parent.gather(1, place)
        return columns[::-1]
