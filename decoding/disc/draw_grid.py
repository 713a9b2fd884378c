"""The rectangle in which draws of several queries advance together: Q rows, and a column for every draw.

Queries have different numbers of draws; shapes that change from query to query would have to be asked of the
device. So rows are padded to the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.disc.draws import Draws
from decoding.disc.static_step import Walk


class DrawGrid:
    """Where some of a batch's draws stand in a rectangle, and the way there and back.

    Args:
        rows: Row of each draw that takes part, in [0, Q). Length n.
        members: Its index among all draws. Length n.
        num_rows: Q.
        device: Where the draws live.

    Attributes:
        num_columns: D, the most draws of any row.
    """

    def __init__(
        self, rows: Sequence[int], members: Sequence[int], num_rows: int, device: torch.device
    ) -> None:
        filled = [0] * num_rows
        columns = []
        for row in rows:
            columns.append(filled[row])
            filled[row] += 1
        self.num_columns = max(filled)
        self.num_rows = num_rows
        places = [row * self.num_columns + column for row, column in zip(rows, columns, strict=True)]
        self._places = torch.tensor(places, dtype=torch.int64, device=device)
        self._members = torch.tensor(members, dtype=torch.int64, device=device)

    def spread(self, column: Tensor, padding: float) -> Tensor:
        """Return one value per place from one value per draw. Shapes: (Q, D) from (all draws,)."""
        cells = column.new_full((self.num_rows * self.num_columns,), padding)
        cells[self._places] = column[self._members]
        return cells.view(self.num_rows, self.num_columns)

    def begin(self, draws: Draws, start: Tensor) -> Walk:
        """Return the draws at the beginning of their walk.

        Args:
            draws: All draws.
            start: Where each row starts. Shape: (Q,), int64.
        """
        return Walk(
            state=start.unsqueeze(1).expand(self.num_rows, self.num_columns).contiguous(),
            log_weight=self.spread(draws.log_weight, -math.inf),
            logprob=self.spread(draws.logprob, 0.0),
            running=self.spread(draws.running, False),
            finished=self.spread(draws.finished, False),
            broken=torch.zeros((), dtype=torch.bool, device=start.device),
        )

    def collect(self, draws: Draws, walk: Walk, tokens: Sequence[Tensor]) -> None:
        """Put what the draws of the rectangle did where all draws are; the others stay as they are.

        Args:
            draws: All draws, changed in place.
            walk: At the end of the rectangle's walk.
            tokens: What was written, step by step. Each of shape (Q, D), int64.
        """
        for name in ("state", "log_weight", "logprob", "running", "finished"):
            column = getattr(draws, name).clone()
            column[self._members] = getattr(walk, name).flatten()[self._places]
            setattr(draws, name, column)
        unwritten = torch.full_like(draws.state, -1)
        draws.tokens.extend(unwritten.clone() for _ in range(len(tokens) - len(draws.tokens)))
        if tokens:
            written = torch.stack([step.flatten() for step in tokens])[:, self._places]
            for step, column in zip(draws.tokens, written, strict=False):
                step[self._members] = column
