"""The draws of DISC: what every one of them has written so far, and with which weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decoding.types import Constraint, Hypothesis


class Draws:
    """State of D draws, one entry each, of all queries together.

    Args:
        query: Query of each draw, by its number in the whole batch. Shape: (D,), int64.
        sample: Which of the query's results it is for. Shape: (D,), int64.
        number: Its number among the draws for that result. Shape: (D,), int64.

    Attributes:
        state: Constraint state reached. Shape: (D,), int64.
        log_weight: log x: log P_L of what was written, less the log of the probability with which it was
            proposed. Shape: (D,), float64.
        log_bound: Largest log weight that any draw of the same proposal could have: a draw is accepted with
            probability exp(log_weight - log_bound). 0 for Algorithm 1's own draws. Shape: (D,), float64.
        log_estimate: log of an unbiased estimate of P_L(S) from each draw alone, where that is not the weight
            itself. Shape: (D,), float64.
        logprob: log P_L of what was written. Shape: (D,), float64.
        running: Not at its end yet. Shape: (D,), bool.
        finished: At its end, with a whole row. Shape: (D,), bool.
        tokens: What was written, one column per step, -1 where a draw had ended. Each of shape (D,), int64.
    """

    def __init__(self, query: Tensor, sample: Tensor, number: Tensor) -> None:
        device = query.device
        size = len(query)
        self.query, self.sample, self.number = query, sample, number
        self.state = torch.zeros(size, dtype=torch.int64, device=device)
        self.log_weight = torch.zeros(size, dtype=torch.float64, device=device)
        self.log_bound = torch.zeros(size, dtype=torch.float64, device=device)
        self.log_estimate: Tensor | None = None
        self.logprob = torch.zeros(size, dtype=torch.float64, device=device)
        self.running = torch.ones(size, dtype=torch.bool, device=device)
        self.finished = torch.zeros(size, dtype=torch.bool, device=device)
        self.tokens: list[Tensor] = []

    def hypotheses(self, indices: list[int], constraint: Constraint) -> list[Hypothesis]:
        """Return the rows of some finished draws, with one transfer for all of them."""
        chosen = torch.tensor(indices, dtype=torch.int64, device=self.query.device)
        written = torch.stack([step[chosen] for step in self.tokens], dim=1).tolist()
        rows = constraint.row(self.state[chosen]).tolist()
        return [
            Hypothesis(tuple(token for token in tokens if token >= 0), row, logprob)
            for tokens, row, logprob in zip(written, rows, self.logprob[chosen].tolist(), strict=True)
        ]

    def drop(self, which: Tensor) -> None:
        """End draws without a row: their weight becomes zero."""
        self.log_weight = torch.where(which, -math.inf, self.log_weight)
        self.running = self.running & ~which
