"""The finished rows of a beam search: the best of every query, by score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.beam_search.candidates import Candidates
from decoding.beam_search.ranking import Scoring, best_columns
from decoding.params import BeamParams


class Finished:
    """The best finished rows of Q queries, best first: as many columns as some query needs.

    There are columns for the largest k of the batch from the start. A query that keeps more rows than that
    gets them as they are found, for which the device is asked.

    Of rows with equal scores the one that was finished first stays and stands first; of one step's, the one
    whose parent does, and of one parent's the one with the smaller token.

    Args:
        params: One per query.
        scoring: Gives rows their scores.
        device: Where they are kept.
        num_rows: Rows that each query keeps, at least its k; None: k. Length Q.

    Attributes:
        most: Most columns there may be: the largest of `num_rows`. A query's own rows are the first ones.
        score: -inf where there is no row. Shape: (Q, K), float64.
        logprob: Shape: (Q, K), float64.
        length: In tokens. Shape: (Q, K), int64.
        slot: Branch that the last token was written on. Shape: (Q, K), int64.
        token: The last token. Shape: (Q, K), int64.
        state: Shape: (Q, K), int64.
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
        self.logprob = self.score
        self.length, self.slot, self.token, self.state = (
            torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(4)
        )

    def kth_score(self) -> Tensor:
        """Score of the k-th row, -inf while there are fewer. Shape: (Q,), float64."""
        return self.score.gather(1, self._kth).squeeze(1)

    def last_score(self) -> Tensor:
        """Score of the last row a query keeps, -inf while it has room for more. Shape: (Q,), float64.

        What cannot beat it changes nothing any more.
        """
        if self.most == self._least:
            return self.score.gather(1, self._last).squeeze(1)
        columns = self.score.shape[1]
        last = self.score.gather(1, self._last.clamp(max=columns - 1))
        return last.masked_fill(self._last >= columns, -math.inf).squeeze(1)

    def kept(self) -> Tensor:
        """Return where the rows stand that queries keep. Shape: (Q, K), bool."""
        columns = torch.arange(self.score.shape[1], device=self.score.device)
        return torch.isfinite(self.score) & (columns <= self._last)

    def take(self, candidates: Candidates, length: int) -> None:
        """Add the candidates that complete a row.

        Args:
            candidates: Of Q queries.
            length: Tokens they have written.
        """
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
