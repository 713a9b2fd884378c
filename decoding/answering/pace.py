"""How many tokens are worth proposing at a time, as far as an answer has shown.

A proposal costs a pass of the draft model and a row of the model's, and saves a pass of the model if it and
all before it are accepted. What is decided depends on nothing but what became of the answer's own earlier
proposals: an answer stays the same in every batch, and its law the model's.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

# Pass of a draft model in passes of the model, where neither says how large it is.
USUAL_COST = 0.2
# No draft model is taken to be dearer: where one that is as large as the model is asked for, it is tried.
MOST_COST = 0.5
# One more row of a pass, in passes.
ROW_COST = 0.05
# What is assumed before anything is known, and how many proposals that counts for. High, so that a good draft
# is used from the start; a bad one is found out within a few passes.
_FIRST_SHARE, _FIRST_WEIGHT = 0.9, 3.0
# Weight of a proposal beside the one after it: fields of a document differ.
_FADING = 0.9
# Passes without a proposal before one is tried again, at first and at most.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 64


@runtime_checkable
class Weighed(Protocol):
    """A model that can be weighed."""

    @property
    def pretrained(self) -> torch.nn.Module:
        """The module that is run."""


def relative_cost(draft: object, model: object) -> float:
    """Pass of a draft model in passes of the model: by weights or by layers, whichever says more.

    Passes of few tokens take the time in which weights are read, or in which kernels are started, one layer
    after the other. Times are not measured: answers must not depend on them. At most `MOST_COST`.
    """
    if not (isinstance(draft, Weighed) and isinstance(model, Weighed)):
        return USUAL_COST
    (small, flat), (large, deep) = _size(draft.pretrained), _size(model.pretrained)
    return min(max(small / large, flat / deep), MOST_COST)


class Pace:
    """Of one answer and one way to propose.

    Args:
        most: Most tokens at a time.
        cost: What it takes to propose one, in passes of the model.
    """

    def __init__(self, most: int, cost: float) -> None:
        self._most = most
        self._cost = cost + ROW_COST
        self._accepted = _FIRST_SHARE * _FIRST_WEIGHT
        self._judged = _FIRST_WEIGHT
        self._pause = _SHORTEST_PAUSE
        self._rest = 0

    @property
    def share(self) -> float:
        """Estimated probability that a proposal is accepted if all before it are."""
        return self._accepted / self._judged

    def next(self) -> int:
        """How many tokens to propose in the pass that comes.

        To be asked once for each, before anything is proposed: an answer that depends on tokens which are
        proposed and fall would have another law.
        """
        if self._rest > 1:
            self._rest -= 1
            return 0
        if self._rest == 1:
            return min(1, self._most)  # until one is judged: there may be nothing to propose
        if self._best() == 0:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            return 0
        self._pause = _SHORTEST_PAUSE
        return self._best()

    def learn(self, accepted: bool) -> None:
        """Note what became of a proposal, all before which were accepted."""
        self._rest = 0
        self._accepted = _FADING * self._accepted + accepted
        self._judged = _FADING * self._judged + 1

    def _best(self) -> int:
        """The number that brings most tokens for what it costs."""
        best, most_per_cost = 0, 1.0
        tokens = reached = 1.0
        for number in range(1, self._most + 1):
            reached *= self.share
            tokens += reached
            if tokens / (1 + number * self._cost) > most_per_cost:
                best, most_per_cost = number, tokens / (1 + number * self._cost)
        return best


def _size(module: torch.nn.Module) -> tuple[int, int]:
    """Weights, and matrices as a measure of layers."""
    weights = [parameter for parameter in module.parameters() if parameter.ndim > 1]
    return sum(map(torch.numel, weights)), len(weights)
