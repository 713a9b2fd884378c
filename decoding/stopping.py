"""Finds the queries of a batch that have to stop: cancelled, past their deadline, or out of positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from genret.decoding.cancellation import CancelToken, reason_to_stop
from genret.decoding.errors import DecodingCancelledError

# More tokens than are ever written: the room of a query without bound.
_UNBOUNDED = torch.iinfo(torch.int64).max


class StopPoll:
    """Polled by a decoder before every step. Never waits for the device.

    While no query ends and none has run out of room, polling launches nothing and copies nothing. `cancel`
    and `room`, the most tokens that may be written, have one entry per query (ValueError otherwise), None for
    none.
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
        bounds = [_UNBOUNDED if bound is None else bound for bound in self._room]
        self._least_room = min(bounds, default=_UNBOUNDED)
        self._room_there: Tensor | None = None
        if self._least_room != _UNBOUNDED:
            self._room_there = self._sent(torch.tensor(bounds, dtype=torch.int64))
        # Queries with an error, as the device knows them, and their number.
        self._ended = torch.zeros(num_queries, dtype=torch.bool, device=device)
        self._num_ended = 0

    def dropped_queries(self, num_written: int) -> Tensor:
        """Return the queries that may not write another token after `num_written`. Shape: (Q,), bool.

        The result may be an earlier one: it must not be changed in place.
        """
        self.poll()
        if len(self._errors) != self._num_ended:  # errors are never taken back
            self._ended = self._sent(
                torch.tensor([query in self._errors for query in range(len(self._room))])
            )
            self._num_ended = len(self._errors)
        if self._room_there is None or num_written < self._least_room:
            return self._ended
        return self._ended | (self._room_there <= num_written)

    def poll(self, queries: Iterable[int] | None = None) -> None:
        """Check for cancelled and overdue queries, None for all; `error` returns what was found."""
        for query in range(len(self._cancel)) if queries is None else queries:
            if query not in self._errors and (error := reason_to_stop(self._cancel[query])) is not None:
                self._errors[query] = error

    def _sent(self, values: Tensor) -> Tensor:
        """Copy to the device without waiting."""
        if self._device.type == "cuda":
            values = values.pin_memory()
        return values.to(self._device, non_blocking=True)

    def select(self, queries: Sequence[int]) -> StopPoll:
        """Return a poll over some of the queries; `absorb` takes its errors back."""
        cancel, room = [self._cancel[q] for q in queries], [self._room[q] for q in queries]
        return StopPoll(len(queries), cancel, room, self._device)

    def absorb(self, selected: StopPoll, queries: Sequence[int]) -> None:
        """Take over the errors of a poll that `select(queries)` returned."""
        self._errors.update({q: e for i, q in enumerate(queries) if (e := selected.error(i)) is not None})

    def error(self, query: int) -> DecodingCancelledError | None:
        """Return the error that ended a query, if any."""
        return self._errors.get(query)
