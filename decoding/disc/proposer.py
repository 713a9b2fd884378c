"""What DISC asks of whatever makes its draws, and what all of them are told.

Algorithm 1 (`decoding.disc`) decides which draws are accepted and what happens when none is. How draws are
made, one token at a time, is a proposer's business: there is one per way of drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from decoding.disc.draws import Draws
from decoding.expansion import Edges, expand
from decoding.language_model import DecodeSession
from decoding.params import DiscParams
from decoding.stopping import StopPoll
from decoding.types import Constraint

# Streams of the counter-based generator: what a uniform is used for.
ACCEPT, FIRST, SECOND, CHOOSE, ACCEPT_AGAIN, OWNER = range(6)


class DrawBatch:
    """The queries of one DISC run: session, constraint and per-query parameters as tensors.

    Args:
        session: Of the queries that take part, no branches written yet. Q queries.
        constraint: What may be written.
        params: Of those queries; `top_m`, `beam_size` and `adaptive` are the same for all.
        stop: Of those queries.
        numbers: What the constraint knows them by: their numbers in the whole batch.
    """

    def __init__(
        self,
        session: DecodeSession,
        constraint: Constraint,
        params: Sequence[DiscParams],
        stop: StopPoll,
        numbers: Sequence[int],
    ) -> None:
        self.session, self.constraint, self.params, self.stop = session, constraint, params, stop
        device = session.root_logits.device
        self.device = device
        self.numbers = torch.tensor(numbers, dtype=torch.int64, device=device)
        self.num_queries = len(params)
        self.seed = torch.tensor([p.seed for p in params], dtype=torch.int64, device=device)
        temperatures = [p.temperature for p in params]
        self.temperature: Tensor | None = None
        if any(t != 1.0 for t in temperatures):
            self.temperature = torch.tensor(temperatures, dtype=torch.float32, device=device)
        self.top_m = params[0].top_m

    def new_draws(self, wanted: Sequence[tuple[int, int, int, int]]) -> Draws:
        """Lay out draws for (query, sample, first number, number of draws) quadruples."""
        entries = [(q, s, k) for q, s, first, count in wanted for k in range(first, first + count)]
        columns = torch.tensor(entries, dtype=torch.int64, device=self.device).reshape(-1, 3)
        return Draws(columns[:, 0], columns[:, 1], columns[:, 2])

    def expand(self, states: Tensor, logits: Tensor, queries: Sequence[int] | None = None) -> Edges:
        """List the edges out of a rectangle of nodes, at each query's temperature.

        Args:
            states: Of the nodes, -1 for padding. Shape: (q, B), int64.
            logits: Next-token logits of the nodes. Shape: (q, B, V).
            queries: Query of each row; None: all of them, in order. Length q.
        """
        temperature = self.temperature
        if temperature is not None:
            rows = temperature if queries is None else temperature[list(queries)]
            temperature = rows.repeat_interleave(states.shape[1])
        return expand(self.constraint, states.flatten(), logits.flatten(0, 1), temperature, self.top_m)

    def select(self, queries: Sequence[int]) -> DrawBatch:
        """Return a batch of some of the queries, over a session without branches."""
        return DrawBatch(
            self.session.select(queries),
            self.constraint,
            [self.params[query] for query in queries],
            self.stop.select(queries),
            self.numbers[list(queries)].tolist(),
        )


class Proposer(Protocol):
    """Makes draws for the queries of one batch.

    Attributes:
        num_steps: Forwards of the model so far.
    """

    num_steps: int

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends. May be called again, with further draws.

        Every random number is `uniforms(seed of the query, stream, sample, number, step)`, further
        coordinates behind these where a step needs more than one.

        Args:
            draws: New ones, of some of the batch's queries; changed in place.
            stream: Which random numbers to use.
            log_threshold: A draw whose `log_weight - log_bound` falls below its threshold cannot be accepted
                any more and may be stopped; None: none may. Shape: (D,), float64.

        Raises:
            InvalidLogitsError: the model returned NaN or infinite logits.
        """

    def nodes_of_queries(self) -> list[int]:
        """Return the tokens that the model computed behind each prompt so far, padding left out. Length Q."""

    def log_upper_bounds(self) -> list[float] | None:
        """Return the log of an upper bound of each query's P_L(S) that follows from what was seen.

        Length Q; None where this way of drawing gives none.
        """
