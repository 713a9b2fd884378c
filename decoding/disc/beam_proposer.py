"""Draws of DISC that keep several prefixes at a time and propose the likeliest row they find.

A draw of beam size B samples B different rows of S without replacement from q, the law of plain constrained
sampling, by stochastic beam search (`decoding.disc.gumbel`), and proposes the one with the largest P_L (of
equal ones the lowest). Its weight x is the product of the valid masses on the way to that row, and
Algorithm 1 goes on from there. With B = 1 that is DISC. With B > 1 likely rows are favoured: the results are
*not* samples of P_S, and with B as large as S every draw is the most probable row.

P_L(S) is estimated without bias all the same, from all B rows: with kappa the largest perturbed value that
was pruned, a row is among those kept with probability 1 - exp(-exp(log q(s) - kappa)), and the sum of P_L(s)
over that probability is unbiased (Duffield, Lund and Thorup, "Priority sampling for estimation of arbitrary
subset sums", 2007); when nothing was pruned it is P_L(S) itself. A single estimate may exceed 1. With
`top_m`, only rows whose every token was looked at can be drawn, and theirs is the mass that is estimated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.counter_rng import hash_key
from decoding.disc.beam_pool import BeamPool
from decoding.disc.draws import Draws
from decoding.disc.proposer import DrawBatch
from decoding.edge_chooser import EdgeChooser
from decoding.frontier import Frontier, merge_branches
from decoding.types import Constraint


class BeamProposer:
    """Draws by stochastic beam search (`decoding.disc.proposer.Proposer`).

    Prefixes of different draws of a query that are the same text share one node of its token tree. The noise
    of an edge is the uniform of (seed, stream, sample, number, 0, the tokens written up to and with that
    edge), so a seed gives the same draws whatever else is in the batch.

    Args:
        batch: The queries.
    """

    def __init__(self, batch: DrawBatch) -> None:
        self._batch = batch
        self._used = False
        self.num_steps = 0
        self._nodes = [0] * batch.num_queries
        self._log_root_mass = [0.0] * batch.num_queries

    def nodes_of_queries(self) -> list[int]:
        """Return the tokens computed behind each prompt so far."""
        return list(self._nodes)

    def log_upper_bounds(self) -> list[float] | None:
        """Return the valid mass of each query's first token; nothing with `top_m`, where it is not known."""
        return list(self._log_root_mass) if self._batch.top_m is None else None

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends; see `Proposer.run`.

        Which row a draw proposes, and so its weight, is known at the end only: no draw is stopped early.
        """
        queries = sorted(set(draws.query.tolist()))
        if len(queries) == self._batch.num_queries and not self._used:
            self._used = True
            self._run(self._batch, draws.query, draws, stream)
            return
        part = self._batch.select(queries)
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
                self._note_root_mass(batch, log_mass)
            if not bool(pool.live.any()):
                break
            frontier = _merge(batch.num_queries, query, pool)
            logits = batch.session.step(frontier.parents, frontier.tokens)
            self._count(batch, frontier)
            nodes = frontier.states
        _propose(draws, pool, batch.constraint)

    def _note_root_mass(self, batch: DrawBatch, log_mass: Tensor) -> None:
        for number, mass in zip(batch.numbers.tolist(), log_mass.tolist(), strict=True):
            self._log_root_mass[number] = mass

    def _count(self, batch: DrawBatch, frontier: Frontier) -> None:
        self.num_steps += 1
        counts = (frontier.parents >= 0).sum(dim=1).tolist()
        for number, count in zip(batch.numbers.tolist(), counts, strict=True):
            self._nodes[number] += count


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


def _merge(num_queries: int, query: Tensor, pool: BeamPool) -> Frontier:
    """Make one node of live prefixes that are the same text, and tell each entry its node."""
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
