"""Which queries of a batch have to stop: cancelled, past their deadline, or out of positions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.cancellation import CancelToken
from decoding.errors import DecodingCancelledError


class StopPoll:
    """Polled by a decoder before every step.

    Args:
        num_queries: Q.
        cancel: One token per query, None for none.
        room: Most tokens that may be written per query, None for no bound.
        device: Where the answer is wanted.

    Raises:
        ValueError: a list's length is not Q.
    """

    def __init__(
        self,
        num_queries: int,
        cancel: Sequence[CancelToken | None] | None,
        room: Sequence[int | None] | None,
        device: torch.device,
    ) -> None:
        self._cancel = list(cancel) if cancel is not None else [None] * num_queries
        self._room = list(room) if room is not None else [None] * num_queries
        for name, values in (("cancel", self._cancel), ("room", self._room)):
            if len(values) != num_queries:
                raise ValueError(f"{name} must have one entry per query ({num_queries}), got {len(values)}")
        self._errors: dict[int, DecodingCancelledError] = {}
        self._device = device
        self._watched = any(c is not None for c in self._cancel) or any(r is not None for r in self._room)
        self._nothing = torch.zeros(num_queries, dtype=torch.bool, device=device)

    def dropped_queries(self, num_written: int) -> Tensor:
        """Return which queries may not write another token after `num_written`. Shape: (Q,), bool."""
        if not self._watched:
            return self._nothing
        for query, token in enumerate(self._cancel):
            if token is None or query in self._errors:
                continue
            try:
                token.check()
            except DecodingCancelledError as error:
                self._errors[query] = error
        dropped = [
            query in self._errors or (room is not None and num_written >= room)
            for query, room in enumerate(self._room)
        ]
        return torch.tensor(dropped, device=self._device)

    def select(self, queries: Sequence[int]) -> StopPoll:
        """Return a poll over some of the queries; `absorb` brings back what it learns."""
        cancel, room = [self._cancel[q] for q in queries], [self._room[q] for q in queries]
        return StopPoll(len(queries), cancel, room, self._device)

    def absorb(self, selected: StopPoll, queries: Sequence[int]) -> None:
        """Take over the errors of a poll that `select(queries)` returned."""
        self._errors.update({q: e for i, q in enumerate(queries) if (e := selected.error(i)) is not None})

    def error(self, query: int) -> DecodingCancelledError | None:
        """Return the error that ended a query, if any."""
        return self._errors.get(query)
