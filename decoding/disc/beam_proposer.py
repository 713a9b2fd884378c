"""Makes draws of DISC that keep several prefixes at a time and propose the likeliest row they find.

A draw of beam size B samples B different rows of S without replacement from q, the law of plain constrained
sampling, and proposes the one with the largest P_L (the lowest among equal ones). Its weight x is the product
of the valid masses on the way to that row, and Algorithm 1 goes on from there. With B = 1 that is DISC. With
B > 1 the results are *not* samples of P_S, and with B as large as S every draw is the most probable row.

Stochastic beam search: the B rows with the largest log q(s) + Gumbel(0, 1) are B samples from q without
replacement. A prefix stands for the largest value below it, which is again a Gumbel variable, located at the
prefix's log-probability. So the values of a prefix's continuations are drawn independently, then shifted such
that their largest is the prefix's (Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them",
2019, algorithm 1; the shift as in their appendix B.3, which neither overflows nor cancels).

P_L(S) is estimated without bias from all B rows: with kappa the largest value that was pruned, a row is kept
with probability 1 - exp(-exp(log q(s) - kappa)), and the sum of P_L(s) over that probability is unbiased
(Duffield, Lund and Thorup, "Priority sampling for estimation of arbitrary subset sums", 2007). A single
estimate may exceed 1. With `top_m`, the mass of the rows whose every token was verified is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from genret.decoding.constraints import Constraint, EdgeChooser, Edges
from genret.decoding.counter_rng import extend_key, hash_key, uniforms_of
from genret.decoding.disc.draws import DrawBatch, DrawFrontier, Draws, Proposer, merge_branches


class BeamProposer(Proposer):
    """Draws by stochastic beam search.

    Prefixes of different draws of a query that are the same text share one node of its token tree. The noise
    of an edge is the uniform of (seed, stream, sample, number, 0, the tokens up to and with that edge), so a
    seed gives the same draws whatever else is in the batch.
    """

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends; see `Proposer.run`.

        The proposed row, and so the weight, is known only at the end: no draw is stopped early.
        """
        queries = sorted(set(draws.query.tolist()))
        part = self._batch.unwritten(queries)
        place = torch.full((self._batch.num_queries,), -1, dtype=torch.int64, device=draws.query.device)
        place[queries] = torch.arange(len(queries), device=place.device)
        self._run(part, place[draws.query], draws, stream)
        self._batch.stop.absorb(part.stop, queries)

    def _run(self, batch: DrawBatch, query: Tensor, draws: Draws, stream: int) -> None:
        start = batch.constraint.start(batch.numbers[query])
        key = hash_key(batch.seed[query], stream, draws.sample, draws.number, 0)
        pool = BeamPool(start, key, batch.params[0].beam_size)
        nodes = torch.full((batch.num_queries, 1), -1, dtype=torch.int64, device=batch.device)
        nodes[query, 0] = start
        logits = batch.session.root_logits.unsqueeze(1)  # (Q, 1, V)
        for step in range(batch.constraint.max_depth):
            pool.kill(batch.stop.dropped_queries(step)[query])
            if not bool(pool.live.any()):
                break
            log_mass = _advance(batch, query, pool, nodes, logits)
            if not step:
                self._log_root_mass[batch.numbers] = log_mass
            if not bool(pool.live.any()):
                break
            frontier = _merge(batch.num_queries, query, pool)
            logits = batch.session.step(frontier.parents, frontier.tokens)
            self.num_steps += 1
            self._nodes[batch.numbers] += (frontier.parents >= 0).sum(dim=1)
            nodes = frontier.states
        _propose(draws, pool, batch.constraint)


def _advance(batch: DrawBatch, query: Tensor, pool: BeamPool, nodes: Tensor, logits: Tensor) -> Tensor:
    """Continue all pools by one token; returns the log of the valid mass of every node. Shape: (Q * W,)."""
    width = nodes.shape[1]
    edges = batch.expand(nodes, logits)
    log_mass = EdgeChooser(edges, nodes.numel()).log_mass
    new = pool.advance(edges, log_mass, query.unsqueeze(1) * width + torch.where(pool.live, pool.slot, 0))
    whole = torch.zeros_like(new)
    whole[new] = batch.constraint.is_final(pool.state[new])
    pool.finish(whole)
    return log_mass


def _merge(num_queries: int, query: Tensor, pool: BeamPool) -> DrawFrontier:
    """Merge live prefixes of equal text into one node, and set each entry's slot."""
    at = pool.live.nonzero(as_tuple=True)
    frontier = merge_branches(num_queries, query[at[0]], pool.state[at], pool.token[at], pool.slot[at])
    pool.slot[at] = frontier.slots
    return frontier


def _propose(draws: Draws, pool: BeamPool, constraint: Constraint) -> None:
    """End every draw with the likeliest row of its pool, or without one."""
    row = torch.zeros_like(pool.state)
    row[pool.finished] = constraint.row(pool.state[pool.finished])
    entry = pool.best(row)
    found = pool.finished.any(dim=1)

    def chosen(column: Tensor) -> Tensor:
        return column.gather(1, entry.unsqueeze(1)).squeeze(1)

    draws.state, draws.logprob = chosen(pool.state), chosen(pool.logprob)
    draws.log_weight, draws.log_estimate = chosen(pool.log_weight), pool.log_estimates()
    draws.tokens = [torch.where(found, token, -1) for token in pool.tokens(entry)]
    draws.finished = found
    draws.drop(~found)
    draws.running = torch.zeros_like(found)


class BeamPool:
    """B entries for each of D draws, largest perturbed log-probability first.

    An entry is a live prefix, a finished row, or a dead prefix: one that cannot be continued. Finished and
    dead ones are leaves of the tree and compete with the live ones, so at the end a pool holds the B leaves
    with the largest perturbed values. `start` and `key` are each draw's start state and hash of its
    coordinates, (D,), int64.
    """

    def __init__(self, start: Tensor, key: Tensor, width: int) -> None:
        shape = (len(start), width)
        self._width = width
        first = torch.arange(width, device=start.device) == 0
        root = gumbels(uniforms_of(key)).unsqueeze(1)  # located at log q() = 0
        self.perturbed = torch.where(first, root, -math.inf)
        self.live = first.expand(shape)  # To be continued. Shape: (D, B), bool
        self.finished = torch.zeros(shape, dtype=torch.bool, device=start.device)
        self.state = start.unsqueeze(1).expand(shape)  # Constraint state. Shape: (D, B), int64
        self.logprob = torch.zeros(shape, dtype=torch.float64, device=start.device)
        self.log_weight = torch.zeros_like(self.logprob)
        self.slot = torch.zeros(shape, dtype=torch.int64, device=start.device)
        self.token = torch.zeros_like(self.slot)  # Last token of a live entry. Shape: (D, B), int64
        self.threshold = torch.full((len(start),), -math.inf, dtype=torch.float64, device=start.device)
        self._key = key.unsqueeze(1).expand(shape)
        self._written: list[tuple[Tensor, Tensor]] = []  # per step (entry before, token or -1), each (D, B)

    def kill(self, draws: Tensor) -> None:
        """Turn the live prefixes of some draws into dead ones. `draws` shape: (D,), bool."""
        self.live = self.live & ~draws.unsqueeze(1)

    def advance(self, edges: Edges, log_mass: Tensor, node: Tensor) -> Tensor:
        """Continue the live prefixes by one token and keep the best B entries of every draw.

        `log_mass`, (nodes,), is that of every node; `node`, (D, B), the node of each live entry. Returns
        whether an entry is new, (D, B), bool; states of new entries may be final.
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
        """The best B + 1 continuations of every live entry; more cannot matter. (D, B, B + 1) each."""
        at = self.live.nonzero(as_tuple=True)
        log_offset = self.logprob[at] - self.log_weight[at] - mass[at]
        branches = Branches(node[at], self._key[at], log_offset, self.perturbed[at])
        best, chosen = best_edges(edges, counts, branches, self._width + 1)
        values = best.new_full((*self.live.shape, self._width + 1), -math.inf)
        edge = chosen.new_zeros(values.shape)
        values[at], edge[at] = best, chosen
        return values, edge

    def _take(self, edges: Edges, edge: Tensor, parent: Tensor, new: Tensor, mass: Tensor) -> None:
        """Put `parent` into every place, continued by `edge` if it is `new`."""
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
        """Mark live entries that are whole rows. `which` shape: (D, B), bool."""
        self.finished = self.finished | which
        self.live = self.live & ~which

    def log_estimates(self) -> Tensor:
        """Return the log of each draw's unbiased estimate of P_L(S), -inf without a row. (D,), float64.

        It is the sum of P_L(s) / P(perturbed value of s > threshold) over the finished rows: the estimate of
        a bottom-k sample with its rank threshold.
        """
        terms = self.logprob - log_inclusion(self.logprob - self.log_weight, self.threshold.unsqueeze(1))
        return torch.where(self.finished, terms, -math.inf).logsumexp(dim=1)

    def best(self, row: Tensor) -> Tensor:
        """Return each draw's likeliest finished entry, (D,); among equal ones the lowest `row`, (D, B)."""
        logprob = torch.where(self.finished, self.logprob, -math.inf)
        equal = self.finished & (logprob == logprob.max(dim=1, keepdim=True).values)
        columns = torch.arange(self._width, device=row.device)
        order = torch.where(equal, row * self._width + columns, torch.iinfo(torch.int64).max)
        return order.argmin(dim=1)

    def tokens(self, entry: Tensor) -> list[Tensor]:
        """Return the tokens of one entry of every draw, one column per step. `entry` shape: (D,), int64."""
        columns: list[Tensor] = []
        place = entry.unsqueeze(1)
        for parent, token in reversed(self._written):
            columns.append(token.gather(1, place).squeeze(1))
            place = parent.gather(1, place)
        return columns[::-1]


# Cells of a rectangle (branches x edges) handled at once. Some ten arrays of this size are alive: 20 MB.
_CHUNK_CELLS = 1 << 18


class Branches(NamedTuple):
    """n prefixes to be continued, each of some draw."""

    node: Tensor  # Expanded node of each. Shape: (n,), int64
    key: Tensor  # Hash that the noise of its edges is derived from. Shape: (n,), int64
    # log q(prefix) less the log of the node's valid mass; added to an edge's log P_L it gives the log of the
    # probability of proposing prefix and edge. Shape: (n,), float64.
    log_offset: Tensor
    perturbed: Tensor  # Perturbed log-probability. Shape: (n,), float64


def gumbels(u: Tensor) -> Tensor:
    """Return standard Gumbel variables from uniforms in (0, 1)."""
    return -torch.log(-torch.log(u))


def log1m_exp(x: Tensor) -> Tensor:
    """Return log(1 - exp(x)) for x <= 0, precise at both ends."""
    return torch.where(x > -math.log(2), torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(x)))


def condition_on_maximum(perturbed: Tensor, maximum: Tensor) -> Tensor:
    """Shift independent Gumbel variables such that the largest of each row is a given one.

    `perturbed`: -inf for no variable, at least one finite per row, (n, w), float64. `maximum`: (n,), float64.
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
    """Perturb all edges of every branch; return the `number` largest values and edges, (n, number) each.

    Values descend, -inf (with meaningless edges) if there are fewer. `counts` are the edges of each node.
    Time grows with the edges of all branches: at a root with 48,000 of them 4 to 5 ms per draw on one core.
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
