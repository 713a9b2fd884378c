"""What DISC returns, and how it is put together from the draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.disc.draws import Draws
from decoding.params import DiscParams
from decoding.types import Constraint, Hypothesis

Key = tuple[int, int]  # (query, sample): one result wanted


@dataclass(frozen=True, slots=True)
class DiscSample:
    """One result of DISC.

    Attributes:
        hypothesis: The row; its logprob is log P_L at the request's temperature.
        accepted: True: an exact sample of P_S (with one prefix per draw). False: chosen by weight when K
            draws had been refused, 2K if they adapt (with K = 1: the one draw, which would not have been
            accepted).
        log_weight: log x of the draw.
        num_draws: Draws Algorithm 1 made for this result: the number of the accepted draw, K more in the
            second phase, where only draws that adapt are accepted; 2K when none was (1 when K = 1, where the
            one draw is the result either way).
    """

    hypothesis: Hypothesis
    accepted: bool
    log_weight: float
    num_draws: int


@dataclass(frozen=True, slots=True)
class DiscResult:
    """All results of one query.

    Attributes:
        samples: The results that came out. A result is missing only when every draw for it had weight
            zero, that is, when the model gives the catalogue no probability at all.
        mass: Unbiased estimate of P_L(S), the model's probability that its answer is in the set: the mean
            weight of the draws of the first phase, or of their acceptances times the bound they were judged
            against when draws were rejected early. With several prefixes per draw it is the mean of their own
            estimates (`Draws.log_estimate`), each unbiased and possibly above 1.
        mass_stderr: Standard error of `mass`; NaN with a single draw. Of acceptances it is the binomial
            error at the share (a + 1/2) / (n + 1), which is not zero when all draws fared alike.
        mass_lower: What P_L(S) is at least: the probability of the distinct rows that were written.
        mass_upper: What P_L(S) is at most, from the valid masses met; 1 where nothing is known.
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
class Verdict:
    """Draws that were made together, and the results they decide.

    Attributes:
        draws: At their ends. D of them.
        accepted: Whether a draw passed its acceptance test. Shape: (D,), bool.
        winners: The draw taken for each result that is decided by one of these draws.
        is_second: Whether K draws for each of the results had been refused before.
    """

    draws: Draws
    accepted: Tensor
    winners: dict[Key, int]
    is_second: bool = False

    def samples(self, constraint: Constraint, params: Sequence[DiscParams]) -> dict[Key, DiscSample]:
        """Return the results that are decided by one of these draws."""
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


def written_rows(draws: Draws) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Return (query, row) of every finished draw, by its index."""
    done = torch.nonzero(draws.finished).squeeze(1)
    if not len(done):
        return {}
    written = torch.stack([step[done] for step in draws.tokens], dim=1).tolist()
    rows = (tuple(token for token in tokens if token >= 0) for tokens in written)
    return dict(zip(done.tolist(), zip(draws.query[done].tolist(), rows, strict=True), strict=True))


def estimate_mass(first: Verdict, query: int, params: DiscParams) -> tuple[float, float]:
    """Return the estimate of P_L(S) that the first phase's draws of a query give, and its standard error."""
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
        for index, (query, row) in written_rows(draws).items():
            rows[query][row] = logprobs[index]
    return [min(1.0, math.fsum(math.exp(logprob) for logprob in mine.values())) for mine in rows]
