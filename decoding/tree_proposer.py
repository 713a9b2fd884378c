"""Draws of DISC that advance together over one token tree per query.

All draws of all results of all queries share the queries' prompt KV, and draws that wrote the same tokens
share one node.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.counter_rng import uniforms
from decoding.draws import Draws
from decoding.edge_chooser import EdgeChooser
from decoding.expansion import expand
from decoding.frontier import merge_branches
from decoding.proposer import DrawBatch


class TreeProposer:
    """Draws by ancestral sampling among the valid tokens (`decoding.proposer.Proposer`).

    Args:
        batch: The queries.
    """

    def __init__(self, batch: DrawBatch) -> None:
        self._batch = batch
        self._used = False
        self.num_steps = 0
        self._nodes = [0] * batch.num_queries

    def nodes_of_queries(self) -> list[int]:
        """Return the tokens computed behind each prompt so far."""
        return list(self._nodes)

    def log_upper_bounds(self) -> list[float] | None:
        """Return nothing: no envelope is kept."""
        return None

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends; see `Proposer.run`."""
        queries = sorted(set(draws.query.tolist()))
        if len(queries) == self._batch.num_queries and not self._used:
            self._used = True
            self._run(self._batch, draws, stream, log_threshold)
            return
        part = self._batch.select(queries)
        whole = draws.query
        place = torch.full((self._batch.num_queries,), -1, dtype=torch.int64, device=whole.device)
        place[queries] = torch.arange(len(queries), device=whole.device)
        draws.query = place[whole]
        self._run(part, draws, stream, log_threshold)
        draws.query = whole
        self._batch.stop.absorb(part.stop, queries)

    def _run(self, batch: DrawBatch, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        start = batch.constraint.start(batch.numbers[draws.query])
        draws.state = start
        nodes = torch.full((batch.num_queries, 1), -1, dtype=torch.int64, device=batch.device)
        nodes[draws.query, 0] = start
        logits = batch.session.root_logits.unsqueeze(1)  # (Q, 1, V)
        for step in range(batch.constraint.max_depth):
            draws.drop(batch.stop.dropped_queries(step)[draws.query] & draws.running)
            if not bool(draws.running.any()):
                return
            self._sample_step(batch, draws, nodes, logits, stream, step)
            if log_threshold is not None:
                draws.running &= draws.log_weight - draws.log_bound >= log_threshold
            live = torch.nonzero(draws.running).squeeze(1)
            if not len(live):
                return
            frontier = merge_branches(
                batch.num_queries,
                draws.query[live],
                draws.state[live],
                draws.tokens[-1][live],
                draws.slot[live],
            )
            logits = batch.session.step(frontier.parents, frontier.tokens)
            for place, count in enumerate((frontier.parents >= 0).sum(dim=1).tolist()):
                self._nodes[int(batch.numbers[place])] += count
            self.num_steps += 1
            nodes = frontier.states
            draws.slot[live] = frontier.slots

    def _sample_step(
        self, batch: DrawBatch, draws: Draws, nodes: Tensor, logits: Tensor, stream: int, step: int
    ) -> None:
        width = nodes.shape[1]
        temperature = None
        if batch.temperature is not None:
            temperature = batch.temperature.repeat_interleave(width)
        edges = expand(batch.constraint, nodes.flatten(), logits.flatten(0, 1), temperature, batch.top_m)
        chooser = EdgeChooser(edges, nodes.numel())
        # An ended draw still names a slot of some earlier frontier: look at slot 0, then ignore it.
        node = draws.query * width + torch.where(draws.running, draws.slot, 0)
        u = uniforms(batch.seed[draws.query], stream, draws.sample, draws.number, step)
        edge = chooser.choose(node, u)
        log_mass = torch.where(draws.running, chooser.log_mass[node], 0.0)
        draws.log_weight = draws.log_weight + log_mass
        draws.drop(draws.running & ~torch.isfinite(log_mass))  # nothing valid: weight zero
        moves = draws.running
        if not len(edges.owner):  # nothing is allowed anywhere: every draw was dropped above
            draws.tokens.append(torch.full_like(draws.state, -1))
            return
        draws.logprob = draws.logprob + torch.where(moves, edges.logprob[edge], 0.0)
        draws.state = torch.where(moves, edges.next_state[edge], draws.state)
        draws.tokens.append(torch.where(moves, edges.token[edge], -1))
        done = moves & batch.constraint.is_final(draws.state)
        draws.finished |= done
        draws.running = moves & ~done
