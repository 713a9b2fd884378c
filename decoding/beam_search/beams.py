"""Holds the tensors of a beam search, one row per query: live prefixes, finished rows, and the written
branches.

Live prefixes stand likeliest first, finished rows by score. Every branch keeps one token and one back
pointer, so a step costs the same however long prefixes are; texts are put together once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genret.decoding.beam_search.candidates import Candidates, Scoring, best_columns
from genret.decoding.constraints import Constraint
from genret.decoding.params import BeamParams


class Selection(NamedTuple):
    """The outcome of one step."""

    parents: Tensor  # Slot that every new prefix continues, -1 for dead slots. Shape: (Q, B), int64
    tokens: Tensor  # Token that it adds, 0 for dead slots. Shape: (Q, B), int64
    columns: Tensor  # Candidate of every new prefix, meaningless for dead slots. Shape: (Q, B), int64
    # Log-probability of the best candidate not taken, -inf without one. Shape: (Q, 1), float64.
    rejected: Tensor

    def refused(self, candidates: Candidates) -> Tensor:
        """Log-probabilities of unfinished candidates not taken, -inf elsewhere. Shape: (Q, C), float64."""
        logprob = candidates.open_logprob()
        taken = torch.where(self.parents >= 0, -math.inf, math.inf).to(logprob.dtype)
        return logprob.scatter_reduce(1, self.columns, taken, "amin")


class Beams:
    """Live prefixes of Q queries. A dead slot has state -1 and logprob -inf; live ones stand first.

    Prefixes of one step have one length and are ranked by log-probability; ties by their parent's rank, then
    by the smaller token. `logprob` is (Q, B), float64; `pruned` the best score that anything given up could
    still have reached, (Q,), float64.
    """

    def __init__(
        self, constraint: Constraint, params: Sequence[BeamParams], scoring: Scoring, device: torch.device
    ) -> None:
        self._scoring = scoring
        self._width = torch.tensor([[p.width] for p in params], device=device)  # (Q, 1)
        self.widest = max(p.width for p in params)  # The largest beam size of the batch
        queries = torch.arange(len(params), device=device)
        self.states = constraint.start(queries).unsqueeze(1)  # Shape: (Q, B), int64
        self.logprob = torch.zeros((len(params), 1), dtype=torch.float64, device=device)
        self.depth = 0  # Tokens on the prefixes
        self.pruned = torch.full((len(params),), -math.inf, dtype=torch.float64, device=device)

    def bound(self) -> Tensor:
        """Best score that a live prefix may still reach, -inf without one. Shape: (Q,), float64."""
        best = self.logprob.max(dim=1, keepdim=True).values
        return self._scoring.optimistic(best, self.depth).squeeze(1)

    def give_up(self, queries: Tensor) -> None:
        """Drop the live prefixes of queries and count them as pruned. `queries` shape: (Q,), bool."""
        lost = self.bound().masked_fill(~queries, -math.inf)
        self.pruned = torch.maximum(self.pruned, lost)
        self._kill(queries)

    def stop_beaten(self, kth_score: Tensor) -> Tensor:
        """End the queries whose live prefixes cannot beat the k-th row, (Q,), -inf while there are fewer
        rows.

        Returns whether a query has no live prefix now. Shape: (Q,), bool.
        """
        beaten = kth_score >= self.bound()
        self._kill(beaten)
        return beaten

    def _kill(self, queries: Tensor) -> None:
        self.logprob = self.logprob.masked_fill(queries.unsqueeze(1), -math.inf)
        self.states = self.states.masked_fill(queries.unsqueeze(1), -1)

    def left_out(self, logprob: Tensor) -> None:
        """Count continuations that were not listed as pruned, given the likeliest of each prefix, (Q, B),
        float64.
        """
        best = logprob.max(dim=1, keepdim=True).values
        lost = self._scoring.optimistic(best, self.depth).squeeze(1)
        self.pruned = torch.maximum(self.pruned, lost)

    def advance(self, candidates: Candidates) -> Selection:
        """Make the likeliest unfinished candidates the live prefixes. Refused ones are *not* counted as
        pruned.
        """
        logprob = candidates.open_logprob()
        best = best_columns(logprob, self.widest + 1)  # one more than kept: the best one refused
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
        """Count the likeliest refused candidate, (Q, 1), of some queries, (Q,), as pruned."""
        lost = self._scoring.optimistic(rejected, self.depth).squeeze(1).masked_fill(~which, -math.inf)
        self.pruned = torch.maximum(self.pruned, lost)

    def trim(self) -> int:
        """Drop slots that no query needs, since each would cost a forward of its token. Waits for the device.

        Returns:
            Slots that some query needs, 0 if none lives; one dead slot is then left.
        """
        slots = int((self.states >= 0).sum(dim=1).max())
        left = max(1, slots)
        self.states, self.logprob = self.states[:, :left], self.logprob[:, :left]
        return slots


class Finished:
    """The best finished rows of Q queries, best first: as many columns as some query needs.

    The columns for the largest k of the batch exist from the start. Queries that keep more rows (`num_rows`)
    get columns as rows are found, which waits for the device. Ties: the row finished first stands first;
    within a step the parent's rank decides, then the smaller token.

    Attributes:
        most: Most columns there may be: the largest of `num_rows`. A query's own rows are the first ones.
        score: -inf for no row. Shape: (Q, K), float64.
        slot: Branch that the last token was written on. Shape: (Q, K), int64, like `length`, `token` and
            `state`.
    """

    def __init__(
        self,
        params: Sequence[BeamParams],
        scoring: Scoring,
        device: torch.device,
        num_rows: Sequence[int] | None = None,
    ) -> None:
        self._scoring = scoring
        kept = [p.k for p in params] if num_rows is None else list(num_rows)
        self._kth = torch.tensor([[p.k - 1] for p in params], device=device)  # (Q, 1)
        self._last = torch.tensor([[count - 1] for count in kept], device=device)  # (Q, 1)
        self.most = max(kept)
        self._least = max(p.k for p in params)
        shape = (len(params), self._least)
        self.score = torch.full(shape, -math.inf, dtype=torch.float64, device=device)
        self.logprob = self.score  # Shape: (Q, K), float64
        self.length, self.slot, self.token, self.state = (
            torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(4)
        )

    def kth_score(self) -> Tensor:
        """Score of the k-th row, -inf while there are fewer. Shape: (Q,), float64."""
        return self.score.gather(1, self._kth).squeeze(1)

    def last_score(self) -> Tensor:
        """Score of the last row a query keeps, -inf while it has room for more. Shape: (Q,), float64.

        Rows that cannot beat it change nothing any more.
        """
        if self.most == self._least:
            return self.score.gather(1, self._last).squeeze(1)
        columns = self.score.shape[1]
        last = self.score.gather(1, self._last.clamp(max=columns - 1))
        return last.masked_fill(self._last >= columns, -math.inf).squeeze(1)

    def kept(self) -> Tensor:
        """Mask of the rows that queries keep. Shape: (Q, K), bool."""
        columns = torch.arange(self.score.shape[1], device=self.score.device)
        return torch.isfinite(self.score) & (columns <= self._last)

    def take(self, candidates: Candidates, length: int) -> None:
        """Add the candidates that complete a row of `length` tokens."""
        found = best_columns(candidates.final_logprob(), min(self.most, candidates.final.shape[1]))
        edge = candidates.edge.gather(1, found.columns)
        score = torch.cat([self.score, self._scoring.scores(found.values, length)], dim=1)
        columns = self._least
        if self.most > columns:
            columns = min(self.most, max(columns, int(torch.isfinite(score).sum(dim=1).max())))
        best = best_columns(score, columns)

        def merged(old: Tensor, new: Tensor) -> Tensor:
            return torch.cat([old, new], dim=1).gather(1, best.columns)

        self.score = best.values
        self.logprob = merged(self.logprob, found.values)
        self.length = merged(self.length, torch.full_like(edge, length))
        self.slot = merged(self.slot, candidates.slot[edge])
        self.token = merged(self.token, candidates.token[edge])
        self.state = merged(self.state, candidates.next_state[edge])


_Ints = npt.NDArray[np.int64]


class Written:
    """The branches of Q queries by depth, numbered in the order they were written."""

    def __init__(self) -> None:
        self._frontiers: list[tuple[int, Tensor, Tensor]] = []  # (depth, parents, tokens)
        self._widths: dict[int, int] = {}

    def add(self, depth: int, parents: Tensor, tokens: Tensor) -> int:
        """Note a frontier `depth` tokens deep, and return the number of its first branch at its depth.

        `parents` are numbers at the depth above. Shapes: (Q, B), int64.
        """
        first = self._widths.get(depth, 0)
        self._frontiers.append((depth, parents, tokens))
        self._widths[depth] = first + parents.shape[1]
        return first

    def texts(self, query: _Ints, length: _Ints, slot: _Ints, token: _Ints) -> list[tuple[int, ...]]:
        """Put together n texts that end with one more token than was written. Waits for the device, once.

        `slot` is the branch that the last token continues, `length` counts that token. Shapes: (n,).
        """
        longest = int(length.max(initial=1))
        tokens = np.zeros((len(query), longest), dtype=np.int64)
        tokens[np.arange(len(query)), length - 1] = token
        levels = self._on_host()
        branch = slot.copy()
        for depth in range(longest - 1, 0, -1):
            (here,) = np.nonzero(length > depth)
            parents, written = levels[depth]
            at = query[here], branch[here]
            tokens[here, depth - 1] = written[at]
            branch[here] = parents[at]
        return [tuple(row[:n].tolist()) for row, n in zip(tokens, length.tolist(), strict=True)]

    def _on_host(self) -> dict[int, tuple[_Ints, _Ints]]:
        """(parents, tokens) by depth. Shapes: (Q, n)."""
        if not self._frontiers:
            return {}
        depths, all_parents, all_tokens = zip(*self._frontiers, strict=True)
        flat = [torch.cat(pieces, dim=1) for pieces in (all_parents, all_tokens)]
        parents, tokens = torch.stack(flat).cpu().numpy()
        columns: dict[int, list[_Ints]] = {}
        begin = 0
        for depth, there in zip(depths, all_parents, strict=True):
            columns.setdefault(depth, []).append(np.arange(begin, begin + there.shape[1]))
            begin += there.shape[1]
        places = {depth: np.concatenate(pieces) for depth, pieces in columns.items()}
        return {depth: (parents[:, place], tokens[:, place]) for depth, place in places.items()}
