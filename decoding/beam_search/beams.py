"""The live prefixes of a beam search, as rectangles: a row per query, the likeliest prefix first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoding.beam_search.candidates import Candidates
from decoding.beam_search.ranking import Scoring, best_columns
from decoding.params import BeamParams
from decoding.types import Constraint


class Selection(NamedTuple):
    """What one step made of the candidates.

    Attributes:
        parents: Slot that every new prefix continues, -1 for dead slots. Shape: (Q, B), int64.
        tokens: What it adds, 0 for dead slots. Shape: (Q, B), int64.
        columns: Candidate that every new prefix was, meaningless for dead slots. Shape: (Q, B), int64.
        rejected: Log-probability of the best that was not taken, -inf without. Shape: (Q, 1), float64.
    """

    parents: Tensor
    tokens: Tensor
    columns: Tensor
    rejected: Tensor

    def refused(self, candidates: Candidates) -> Tensor:
        """Log-probabilities of the unfinished candidates that were not taken, -inf elsewhere.

        Shape: (Q, C), float64.
        """
        logprob = candidates.open_logprob()
        taken = torch.where(self.parents >= 0, -math.inf, math.inf).to(logprob.dtype)
        return logprob.scatter_reduce(1, self.columns, taken, "amin")


class Beams:
    """Live prefixes of Q queries. A dead slot has state -1 and logprob -inf; live ones stand first.

    Within a step prefixes are ranked by log-probability, for they have one length. Of equally likely ones
    that comes first whose parent did, and of one parent's the one with the smaller token.

    Args:
        constraint: What may be written.
        params: One per query.
        scoring: Says what prefixes may still become.
        device: Where states live.

    Attributes:
        states: Shape: (Q, B), int64.
        logprob: Shape: (Q, B), float64.
        depth: Tokens on the prefixes.
        pruned: The best score that anything given up may still have had. Shape: (Q,), float64.
        widest: The largest beam size of the batch.
    """

    def __init__(
        self, constraint: Constraint, params: Sequence[BeamParams], scoring: Scoring, device: torch.device
    ) -> None:
        self._scoring = scoring
        self._width = torch.tensor([[p.width] for p in params], device=device)  # (Q, 1)
        self.widest = max(p.width for p in params)
        queries = torch.arange(len(params), device=device)
        self.states = constraint.start(queries).unsqueeze(1)
        self.logprob = torch.zeros((len(params), 1), dtype=torch.float64, device=device)
        self.depth = 0
        self.pruned = torch.full((len(params),), -math.inf, dtype=torch.float64, device=device)

    def bound(self) -> Tensor:
        """Best score that a live prefix may still become, -inf without. Shape: (Q,), float64."""
        best = self.logprob.max(dim=1, keepdim=True).values
        return self._scoring.optimistic(best, self.depth).squeeze(1)

    def give_up(self, queries: Tensor) -> None:
        """Drop the live prefixes of queries; what they might have become counts as pruned.

        Args:
            queries: Shape: (Q,), bool.
        """
        lost = self.bound().masked_fill(~queries, -math.inf)
        self.pruned = torch.maximum(self.pruned, lost)
        self._kill(queries)

    def stop_beaten(self, kth_score: Tensor) -> Tensor:
        """End the queries whose live prefixes cannot enter the list any more.

        Args:
            kth_score: Of every query's list, -inf while it is not full. Shape: (Q,), float64.

        Returns:
            Which queries have no live prefix now. Shape: (Q,), bool.
        """
        beaten = kth_score >= self.bound()
        self._kill(beaten)
        return beaten

    def _kill(self, queries: Tensor) -> None:
        self.logprob = self.logprob.masked_fill(queries.unsqueeze(1), -math.inf)
        self.states = self.states.masked_fill(queries.unsqueeze(1), -1)

    def left_out(self, logprob: Tensor) -> None:
        """Count continuations as pruned that were not looked at; they may be whole rows.

        Args:
            logprob: The likeliest of every live prefix, -inf without. Shape: (Q, B), float64.
        """
        best = logprob.max(dim=1, keepdim=True).values
        lost = self._scoring.optimistic(best, self.depth).squeeze(1)
        self.pruned = torch.maximum(self.pruned, lost)

    def advance(self, candidates: Candidates) -> Selection:
        """Make the likeliest unfinished candidates the live prefixes. What is refused is *not* counted."""
        logprob = candidates.open_logprob()
        best = best_columns(logprob, self.widest + 1)  # one more than kept: the best of what is refused
        rejected = best.values.gather(1, self._width)
        columns = torch.arange(self.widest, device=logprob.device)
        kept = best.values[:, :-1].masked_fill(columns >= self._width, -math.inf)
        live = torch.isfinite(kept)
        edge = candidates.edge.gather(1, best.columns[:, :-1])
        self.logprob = kept
        self.states = torch.where(live, candidates.next_state[edge], -1)
        self.depth += 1
        return Selection(
            parents=torch.where(live, candidates.slot[edge], -1),
            tokens=torch.where(live, candidates.token[edge], 0),
            columns=best.columns[:, :-1],
            rejected=rejected,
        )

    def count_rejected(self, rejected: Tensor, which: Tensor) -> None:
        """Count refused candidates of some queries as pruned.

        Args:
            rejected: The likeliest of each query. Shape: (Q, 1), float64.
            which: Shape: (Q,), bool.
        """
        lost = self._scoring.optimistic(rejected, self.depth).squeeze(1).masked_fill(~which, -math.inf)
        self.pruned = torch.maximum(self.pruned, lost)

    def trim(self) -> int:
        """Give up the slots that no query needs; a dead slot would cost a forward of its token.

        Asks the device.

        Returns:
            Slots that some query needs, 0 when none lives; one dead slot is then left.
        """
        slots = int((self.states >= 0).sum(dim=1).max())
        left = max(1, slots)
        self.states, self.logprob = self.states[:, :left], self.logprob[:, :left]
        return slots
