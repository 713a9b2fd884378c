"""Holds the draws of DISC: their state, their proposer's protocol, and the results they decide.

`decoding.disc.algorithm` decides which draws are accepted. A proposer makes them, token by token; there is
one per way of drawing. Branches of one query that wrote the same tokens are one node of its frontier: they
share its forward and its KV.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from genret.decoding.constraints import Constraint, Edges, Hypothesis, expand
from genret.decoding.language_model import DecodeSession
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll


class Draws:
    """State of D draws, one entry each, of all queries together.

    Attributes:
        query: Query of each draw, by its number in the whole batch. Shape: (D,), int64.
        sample: Number of the query's result that it is for. Shape: (D,), int64.
        number: Its number among the draws for that result. Shape: (D,), int64.
        state: Constraint state reached. Shape: (D,), int64.
        log_weight: log x: `logprob`, log P_L of the written tokens, less the log of the probability of
            proposing them. Shape: (D,), float64.
        log_bound: Largest log weight that any draw of the same proposal could have: a draw is accepted with
            probability exp(log_weight - log_bound). 0 for Algorithm 1's own draws. Shape: (D,), float64.
        log_estimate: log of an unbiased estimate of P_L(S) from each draw alone; None if that is the weight
            itself.
        running: Not at its end yet. Shape: (D,), bool.
        finished: At its end, with a whole row. Shape: (D,), bool.
        tokens: The written tokens, one column per step, -1 for draws that had ended. Each of shape (D,),
            int64.
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
        ranks, logprobs = constraint.row(self.state[chosen]).tolist(), self.logprob[chosen].tolist()
        return [Hypothesis(*one) for one in zip(self._rows(chosen), ranks, logprobs, strict=True)]

    def written_rows(self) -> dict[int, tuple[int, tuple[int, ...]]]:
        """Return (query, row) of every finished draw, by its index."""
        done = torch.nonzero(self.finished).squeeze(1)
        if not len(done):
            return {}
        pairs = zip(self.query[done].tolist(), self._rows(done), strict=True)
        return dict(zip(done.tolist(), pairs, strict=True))

    def _rows(self, chosen: Tensor) -> list[tuple[int, ...]]:
        """The tokens of some draws, by index. Shape: (n,), int64."""
        written = torch.stack([step[chosen] for step in self.tokens], dim=1).tolist()
        return [tuple(token for token in tokens if token >= 0) for tokens in written]

    def drop(self, which: Tensor) -> None:
        """End draws without a row: their weight becomes zero."""
        self.log_weight = torch.where(which, -math.inf, self.log_weight)
        self.running = self.running & ~which


# Streams of the counter-based generator, one per use of a uniform.
ACCEPT, FIRST, SECOND, CHOOSE, ACCEPT_AGAIN, OWNER = range(6)


class DrawBatch:
    """The queries of one DISC run: session, constraint and per-query parameters as tensors.

    The session has no branches yet. `top_m`, `beam_size` and `adaptive` are the same for all queries;
    `numbers` are their numbers in the whole batch, by which the constraint knows them.
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
        self._is_written = False

    def new_draws(self, wanted: Sequence[tuple[int, int, int, int]]) -> Draws:
        """Lay out draws for (query, sample, first number, number of draws) quadruples."""
        entries = [(q, s, k) for q, s, first, count in wanted for k in range(first, first + count)]
        columns = torch.tensor(entries, dtype=torch.int64, device=self.device).reshape(-1, 3)
        return Draws(columns[:, 0], columns[:, 1], columns[:, 2])

    def expand(self, states: Tensor, logits: Tensor, queries: Sequence[int] | None = None) -> Edges:
        """List the edges out of nodes, (q, B), at each query's temperature; `queries` None: all, in order."""
        temperature = self.temperature
        if temperature is not None:
            rows = temperature if queries is None else temperature[list(queries)]
            temperature = rows.repeat_interleave(states.shape[1])
        return expand(self.constraint, states.flatten(), logits.flatten(0, 1), temperature, self.top_m)

    def unwritten(self, queries: Sequence[int]) -> DrawBatch:
        """Return a batch of some of the queries, over a session without branches: itself once, for all."""
        if len(queries) == self.num_queries and not self._is_written:
            self._is_written = True
            return self
        return DrawBatch(
            self.session.select(queries),
            self.constraint,
            [self.params[query] for query in queries],
            self.stop.select(queries),
            self.numbers[list(queries)].tolist(),
        )


class Proposer(ABC):
    """Makes draws for the queries of one batch.

    Attributes:
        num_steps: Forwards of the model so far.
    """

    def __init__(self, batch: DrawBatch) -> None:
        self._batch = batch
        self.num_steps = 0
        self._nodes = torch.zeros(batch.num_queries, dtype=torch.int64, device=batch.device)
        # log of the valid mass at each query's root, 0 before it is known. Shape: (Q,), float64.
        self._log_root_mass = torch.zeros(batch.num_queries, dtype=torch.float64, device=batch.device)

    @abstractmethod
    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Walk draws to their ends. May be called again, with further draws.

        Every random number is `uniforms(seed of the query, stream, sample, number, step)`, followed by
        further coordinates if a step needs more than one.

        Args:
            draws: New ones, of some of the batch's queries; changed in place.
            stream: Stream of the random numbers.
            log_threshold: A draw whose `log_weight - log_bound` falls below its threshold cannot be accepted
                any more and may be stopped; None: none may. Shape: (D,), float64.

        Raises:
            InvalidLogitsError: the model returned NaN or infinite logits.
        """

    def nodes_of_queries(self) -> list[int]:
        """Return the tokens that the model computed behind each prompt so far, padding left out. Length Q."""
        return [int(count) for count in self._nodes.tolist()]

    def log_upper_bounds(self) -> list[float] | None:
        """Return the log of an upper bound of each query's P_L(S) that follows from the valid masses met.

        Length Q; None with `top_m`, which may leave valid tokens out.
        """
        return None if self._batch.top_m is not None else self._log_bounds().tolist()

    def _log_bounds(self) -> Tensor:
        """The bounds. Shape: (Q,), float64."""
        return self._log_root_mass


_TOKEN_BITS = 32  # leaves 31 bits for queries times slots


class DrawFrontier(NamedTuple):
    """Nodes to compute next, padded to a rectangle."""

    states: Tensor  # Constraint state of every node, -1 for padding. Shape: (Q, B), int64
    tokens: Tensor  # Token written on every node, 0 for padding. Shape: (Q, B), int64
    parents: Tensor  # Slot of the parent in the previous frontier, -1 for padding. Shape: (Q, B), int64
    slots: Tensor  # Slot of each branch that was passed in. Shape: (D,), int64


def merge_branches(
    num_queries: int, query: Tensor, states: Tensor, tokens: Tensor, parents: Tensor
) -> DrawFrontier:
    """Merge equal branches and lay the rest out as one row per query. Shapes: (D,), int64.

    Branches are the same text if they add the same token to the same node; their states are then equal.
    (Equal states alone would not do: a grammar reaches one state by many texts.)
    """
    num_parents = parents.max() + 1 if len(parents) else parents.new_ones(())
    written = ((query * num_parents + parents) << _TOKEN_BITS) | tokens
    keys, node = torch.unique(written, return_inverse=True)
    node_query = torch.div(keys >> _TOKEN_BITS, num_parents, rounding_mode="floor")
    counts = torch.bincount(node_query, minlength=num_queries)
    slot = torch.arange(len(keys), device=keys.device) - (counts.cumsum(0) - counts)[node_query]
    width = int(counts.max()) if len(keys) else 0
    shape = (num_queries, width)
    rectangle = DrawFrontier(
        states=torch.full(shape, -1, dtype=torch.int64, device=keys.device),
        tokens=torch.zeros(shape, dtype=torch.int64, device=keys.device),
        parents=torch.full(shape, -1, dtype=torch.int64, device=keys.device),
        slots=slot[node],
    )
    rectangle.states[query, rectangle.slots] = states
    rectangle.tokens[query, rectangle.slots] = tokens
    rectangle.parents[query, rectangle.slots] = parents
    return rectangle


Key = tuple[int, int]  # (query, sample): one result wanted


@dataclass(frozen=True, slots=True)
class DiscSample:
    """One result of DISC.

    Attributes:
        hypothesis: The row; its logprob is log P_L at the request's temperature.
        accepted: True: an exact sample of P_S (with one prefix per draw). False: chosen by weight after K
            draws were refused, 2K adaptive ones (with K = 1: the one draw, which would not have been
            accepted).
        log_weight: log x of the draw.
        num_draws: Draws Algorithm 1 made for this result: the number of the accepted draw, K more in the
            second phase, where only adaptive draws are accepted; 2K if none was (1 if K = 1, whose one draw
            is the result either way).
    """

    hypothesis: Hypothesis
    accepted: bool
    log_weight: float
    num_draws: int


@dataclass(frozen=True, slots=True)
class DiscResult:
    """All results of one query.

    Attributes:
        samples: The results. One is missing only if every draw for it had weight zero, that is, if the model
            gives the catalogue no probability at all.
        mass: Unbiased estimate of P_L(S), the model's probability that its answer is in the set: the mean
            weight of the draws of the first phase, or, if draws were rejected early, the mean of their
            acceptances times the bound they were judged against. With several prefixes per draw it is the
            mean of their own estimates (`Draws.log_estimate`), each unbiased and possibly above 1.
        mass_stderr: Standard error of `mass`; NaN with a single draw. For acceptances it is the binomial
            error at the share (a + 1/2) / (n + 1), which is not zero if all draws fared alike.
        mass_lower: Lower bound of P_L(S): the probability of the distinct rows that were written.
        mass_upper: Upper bound of P_L(S), from the valid masses met; 1 if nothing is known.
        num_draws: Draws computed for the query in both phases.
        num_nodes: Tokens the model computed for the query behind its prompt.
        num_steps: Forwards of the batch.
    """

    samples: tuple[DiscSample, ...]
    mass: float
    mass_stderr: float
    mass_lower: float
    mass_upper: float
    num_draws: int
    num_nodes: int
    num_steps: int


@dataclass(frozen=True, slots=True, eq=False)
class DecidedDraws:
    """Draws that were made together, and the results they decide."""

    draws: Draws  # D draws at their ends
    accepted: Tensor  # Whether a draw passed its acceptance test. Shape: (D,), bool
    winners: dict[Key, int]  # The draw taken for each result that one of these draws decides
    is_second: bool = False  # Whether K draws for each of the results had been refused before

    def samples(self, constraint: Constraint, params: Sequence[DiscParams]) -> dict[Key, DiscSample]:
        """Return the results that these draws decide."""
        indices = list(self.winners.values())
        if not indices:
            return {}
        draws = self.draws
        columns = (self.accepted[indices], draws.log_weight[indices], draws.number[indices] + 1)
        rows = zip(self.winners, draws.hypotheses(indices, constraint), strict=True)
        samples: dict[Key, DiscSample] = {}
        for (key, hypothesis), accepted, weight, number in zip(
            rows, *(column.tolist() for column in columns), strict=True
        ):
            most = params[key[0]].num_draws
            used = number + (most if self.is_second else 0)
            if not accepted and most > 1:
                used = 2 * most
            samples[key] = DiscSample(hypothesis, accepted, weight, used)
        return samples


def estimate_mass(first: DecidedDraws, query: int, params: DiscParams) -> tuple[float, float]:
    """Return the estimate of P_L(S) from a query's first draws, and its standard error."""
    draws = first.draws
    mine = draws.query == query
    if params.stops_early:
        outcomes = first.accepted[mine].double()
    else:
        terms = draws.log_weight if draws.log_estimate is None else draws.log_estimate
        outcomes = torch.where(draws.finished, terms, -math.inf)[mine].exp()
    n = len(outcomes)
    stderr = float(outcomes.std() / math.sqrt(n)) if n > 1 else math.nan
    if params.stops_early:
        share = (float(outcomes.sum()) + 0.5) / (n + 1)
        stderr = math.sqrt(share * (1 - share) / n)
    return float(outcomes.mean()), stderr


def written_mass(made: Sequence[Draws], num_queries: int) -> list[float]:
    """Return the total probability of the distinct rows that each query's draws wrote. Length Q."""
    rows: list[dict[tuple[int, ...], float]] = [{} for _ in range(num_queries)]
    for draws in made:
        logprobs = draws.logprob.tolist()
        for index, (query, row) in draws.written_rows().items():
            rows[query][row] = logprobs[index]
    return [min(1.0, math.fsum(math.exp(logprob) for logprob in mine.values())) for mine in rows]
