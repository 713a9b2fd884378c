"""Scores rows under a length penalty, bounds the scores that prefixes may reach, and picks the best columns.

Nothing here waits for the device, and all shapes are known beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from genret.decoding.params import BeamParams

# Most columns that are sorted whole; with more, the best are picked first.
_SORTED_WHOLE = 512


class Best(NamedTuple):
    """The best columns of every row, best first."""

    values: Tensor  # -inf where a row has no more. Shape: (Q, n), float64
    columns: Tensor  # Their columns; in range, but meaningless, where the value is -inf. Shape: (Q, n), int64


def best_columns(values: Tensor, count: int) -> Best:
    """Pick the `count` largest values of every row, (Q, C), no NaN; among equal ones those further left, in
    that order.

    `torch.topk` leaves the choice among equal values open, and devices differ in it. `count` may exceed C.
    """
    columns = values.shape[1]
    if columns <= max(count, _SORTED_WHOLE):
        ordered = values.sort(dim=1, descending=True, stable=True)
        missing = (0, max(0, count - columns))
        best = torch.nn.functional.pad(ordered.values[:, :count], missing, value=-math.inf)
        return Best(best, torch.nn.functional.pad(ordered.indices[:, :count], missing))
    last = values.topk(count, dim=1).values[:, -1:]
    above, equal = values > last, values == last
    left = count - above.sum(dim=1, keepdim=True)
    taken = above | (equal & (equal.cumsum(dim=1) <= left))
    # Exactly `count` are taken; the largest of these numbers are the taken columns from left to right.
    from_right = torch.arange(columns, 0, -1, device=values.device)
    chosen = columns - torch.where(taken, from_right, 0).topk(count, dim=1).values
    ordered = values.gather(1, chosen).sort(dim=1, descending=True, stable=True)
    return Best(ordered.values, chosen.gather(1, ordered.indices))


class Scoring:
    """Scores of the rows of Q queries, at most `max_depth` long: logprob over length ** length_penalty."""

    def __init__(self, params: Sequence[BeamParams], max_depth: int, device: torch.device) -> None:
        self._max_depth = max_depth
        self._penalty: Tensor | None = None
        if any(p.length_penalty for p in params):
            penalties = [[p.length_penalty] for p in params]
            self._penalty = torch.tensor(penalties, dtype=torch.float64, device=device)  # (Q, 1)

    def scores(self, logprob: Tensor, length: int) -> Tensor:
        """Return the scores of rows of one length. Shapes: (Q, n), float64."""
        if self._penalty is None:
            return logprob
        return logprob / torch.pow(float(length), self._penalty)

    def optimistic(self, logprob: Tensor, depth: int) -> Tensor:
        """Return a bound on the score of every row below prefixes of `depth` tokens. Shapes: (Q, n), float64.

        Log-probabilities only fall. So the best row below a prefix costs nothing more; it is as long as rows
        get if length is rewarded, and otherwise one token longer than the prefix.
        """
        if self._penalty is None:
            return logprob
        shortest = float(depth + 1)
        longest = float(max(self._max_depth, depth + 1))
        rewarded = self._penalty > 0
        divisor = torch.where(rewarded, torch.pow(longest, self._penalty), torch.pow(shortest, self._penalty))
        return logprob / divisor
