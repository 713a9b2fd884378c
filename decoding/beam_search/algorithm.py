"""Trie beam search: the k most probable rows, with a certificate when the list is proven exact.

All beams of all queries advance in one forward per step over one prompt KV per query. A hypothesis is
scored by its total log P_L; finished rows leave the beam. Log-probabilities only fall, so a query is done
when its k-th finished row beats every live beam, and the list is the exact top-k when that row also beats
everything that was ever pruned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.beam_search.results import BeamResult
from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError
from decoding.expansion import Edges, expand
from decoding.language_model import DecodeSession
from decoding.params import BeamParams
from decoding.stopping import StopPoll
from decoding.types import Constraint, Hypothesis


class _Beams:
    """Live prefixes and finished rows of Q queries, as rectangles; a dead slot has logprob -inf."""

    def __init__(self, constraint: Constraint, params: Sequence[BeamParams], device: torch.device) -> None:
        num_queries = len(params)
        self.width = torch.tensor([p.width for p in params], device=device)
        self.widest = max(p.width for p in params)
        self.k = torch.tensor([p.k for p in params], device=device)
        self.states = constraint.start(torch.arange(num_queries, device=device)).unsqueeze(1)  # (Q, B)
        self.logprob = torch.zeros((num_queries, 1), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((num_queries, 1, 0), dtype=torch.int64, device=device)  # (Q, B, depth)
        k_max = max(p.k for p in params)
        shape = (num_queries, k_max)
        self.done_logprob = torch.full(shape, -math.inf, dtype=torch.float64, device=device)
        self.done_state = torch.full(shape, -1, dtype=torch.int64, device=device)
        self.done_tokens = torch.zeros((*shape, 0), dtype=torch.int64, device=device)
        self.done_length = torch.zeros(shape, dtype=torch.int64, device=device)
        self.pruned = torch.full((num_queries,), -math.inf, dtype=torch.float64, device=device)

    def drop(self, queries: Tensor) -> None:
        """Give up the live beams of queries; what they might have become counts as pruned."""
        best = self.logprob.max(dim=1).values
        self.pruned = torch.where(queries, torch.maximum(self.pruned, best), self.pruned)
        self._kill(queries)

    def settle(self) -> int:
        """Kill the beams of queries that are done and give up the slots that no query needs any more.

        Returns:
            Slots that are left, 0 when no query lives.
        """
        kth = self.kth_logprob()
        self._kill(kth >= self.logprob.max(dim=1).values)
        # The live ones stand first (`_select` sorts), and a dead slot would cost a forward of its token.
        slots = int(torch.isfinite(self.logprob).sum(dim=1).max())
        self.logprob, self.states = self.logprob[:, :slots], self.states[:, :slots]
        self.tokens = self.tokens[:, :slots]
        return slots

    def kth_logprob(self) -> Tensor:
        """Log-probability of the k-th finished row, -inf while there are fewer. Shape: (Q,), float64."""
        return self.done_logprob.gather(1, (self.k - 1).unsqueeze(1)).squeeze(1)

    def _kill(self, queries: Tensor) -> None:
        self.logprob = torch.where(queries.unsqueeze(1), -math.inf, self.logprob)
        self.states = torch.where(queries.unsqueeze(1), -1, self.states)

    def advance(self, edges: Edges, final: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step: finished edges into the pool, the best others into the beam.

        Args:
            edges: Continuations of the flattened beams.
            final: Whether an edge completes a row. Shape: (E,), bool.

        Returns:
            (parents, tokens) of the new beams, parent -1 for dead slots. Shapes: (Q, B), int64.
        """
        beams = self.states.shape[1]
        score = self.logprob.flatten()[edges.owner] + edges.logprob
        query, slot = edges.owner // beams, edges.owner % beams
        possible = torch.isfinite(score)
        self._finish(query, slot, edges, score, final & possible)
        return self._select(query, slot, edges, score, ~final & possible)

    def _finish(self, query: Tensor, slot: Tensor, edges: Edges, score: Tensor, which: Tensor) -> None:
        chosen = torch.nonzero(which).squeeze(1)
        depth = self.tokens.shape[2] + 1
        self.done_tokens = torch.nn.functional.pad(self.done_tokens, (0, 1))
        if not len(chosen):
            return
        logprob, index = self._by_query(query, score, chosen, 1)
        pool = torch.cat([self.done_logprob, logprob], dim=1)
        k_max = self.done_logprob.shape[1]
        best = pool.topk(k_max, dim=1)
        old = best.indices < k_max
        kept = best.indices.clamp(max=k_max - 1)
        edge = index.gather(1, (best.indices - k_max).clamp(min=0))
        written = self._written(query[edge], slot[edge], edges.token[edge])
        kept_tokens = self.done_tokens.gather(1, kept.unsqueeze(2).expand(-1, -1, depth))
        self.done_tokens = torch.where(old.unsqueeze(2), kept_tokens, written)
        self.done_state = torch.where(old, self.done_state.gather(1, kept), edges.next_state[edge])
        self.done_length = torch.where(old, self.done_length.gather(1, kept), depth)
        self.done_logprob = best.values

    def _select(
        self, query: Tensor, slot: Tensor, edges: Edges, score: Tensor, which: Tensor
    ) -> tuple[Tensor, Tensor]:
        chosen = torch.nonzero(which).squeeze(1)
        widest = self.widest
        table, index = self._by_query(query, score, chosen, widest + 1)
        best = table.topk(widest + 1, dim=1)  # one more than kept: the best of what is pruned
        rejected = best.values.gather(1, self.width.unsqueeze(1)).squeeze(1)
        self.pruned = torch.maximum(self.pruned, rejected)
        columns = torch.arange(widest, device=score.device)
        logprob = best.values[:, :widest].masked_fill(columns >= self.width.unsqueeze(1), -math.inf)
        live = torch.isfinite(logprob)
        edge = index.gather(1, best.indices[:, :widest])
        if not len(edges.owner):
            edge_query = edge_slot = edge_token = edge_state = edge
        else:
            edge_query, edge_slot = query[edge], slot[edge]
            edge_token, edge_state = edges.token[edge], edges.next_state[edge]
        self.tokens = self._written(edge_query, edge_slot, edge_token)
        self.logprob = logprob
        self.states = torch.where(live, edge_state, -1)
        return torch.where(live, edge_slot, -1), torch.where(live, edge_token, 0)

    def _by_query(
        self, query: Tensor, score: Tensor, chosen: Tensor, min_width: int
    ) -> tuple[Tensor, Tensor]:
        """Lay chosen edges out as one row per query, filled up with -inf.

        Returns:
            (their scores, their numbers). Shapes: (Q, at least min_width).
        """
        owners = query[chosen]  # grouped, as edges are
        counts = torch.bincount(owners, minlength=len(self.k))
        position = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[owners]
        table = score.new_full((len(self.k), max(int(counts.max()), min_width)), -math.inf)
        table[owners, position] = score[chosen]
        index = torch.zeros(table.shape, dtype=torch.int64, device=score.device)
        index[owners, position] = chosen
        return table, index

    def _written(self, query: Tensor, slot: Tensor, token: Tensor) -> Tensor:
        """Tokens of beams extended by one. Arguments' shape: (Q, n). Returns shape (Q, n, depth + 1)."""
        return torch.cat([self.tokens[query, slot], token.unsqueeze(2)], dim=2)

    def result(self, query: int, constraint: Constraint, num_steps: int) -> BeamResult:
        k = int(self.k[query])
        logprob = self.done_logprob[query, :k]
        count = int(torch.isfinite(logprob).sum())
        rows = constraint.row(self.done_state[query, :count]).tolist()
        tokens = self.done_tokens[query, :count].tolist()
        lengths = self.done_length[query, :count].tolist()
        scores = logprob[:count].tolist()
        hypotheses = tuple(
            Hypothesis(tuple(t[:n]), row, s)
            for t, n, row, s in zip(tokens, lengths, rows, scores, strict=True)
        )
        pruned = float(self.pruned[query])
        worst = float(logprob[k - 1])
        return BeamResult(hypotheses, pruned == -math.inf or pruned <= worst, pruned, num_steps)


def beam_search(
    session: DecodeSession,
    constraint: Constraint,
    params: Sequence[BeamParams],
    cancel: Sequence[CancelToken | None] | None = None,
    room: Sequence[int | None] | None = None,
) -> list[BeamResult | DecodingCancelledError]:
    """Find the most probable rows of the constraint for every query of a session.

    Args:
        session: Prefilled prompts. Q queries.
        constraint: What may be written.
        params: One per query; k and beam size may differ. Length Q.
        cancel: Polled before every step; a cancelled query leaves the batch, the others go on.
        room: Most tokens that may be written per query, None for no bound; prefixes that reach it count
            as pruned.

    Returns:
        One result per query, or the error that ended it.

    Raises:
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    logits = session.root_logits.unsqueeze(1)  # (Q, 1, V)
    beams = _Beams(constraint, params, logits.device)
    stop = StopPoll(len(params), cancel, room, logits.device)
    num_steps = 0
    for written in range(max(1, constraint.max_depth)):
        beams.drop(stop.dropped_queries(written))
        edges = expand(constraint, beams.states.flatten(), logits.flatten(0, 1))
        parents, tokens = beams.advance(edges, constraint.is_final(edges.next_state))
        slots = beams.settle()
        if not slots:
            break
        alive = beams.states >= 0
        logits = session.step(torch.where(alive, parents[:, :slots], -1), tokens[:, :slots])
        num_steps += 1
    else:  # whatever still lives has not been finished, so it was given up
        beams.drop(torch.ones(len(params), dtype=torch.bool, device=logits.device))
    return [stop.error(query) or beams.result(query, constraint, num_steps) for query in range(len(params))]
