"""DISC: unbiased sampling of whole rows from a language model restricted to a constraint.

Target: P_S(s) = P_L(s) / P_L(S). A draw walks the constraint and samples among the valid tokens; its
weight x is the product of the valid masses it met. A draw is accepted with probability x, which makes
accepted draws exact samples of P_S; when K draws were all refused, one of K fresh draws is taken with
probability proportional to its weight ("Efficient and Asymptotically Unbiased Constrained Decoding for
Large Language Models", Algorithm 1 and Theorem 3.1). With K = 1 the single draw is returned as it is:
plain constrained sampling, as in the paper's experiments (section 4).

All draws of all results of all queries advance together over one prompt KV per query, and draws that
wrote the same tokens share one node. The law is Algorithm 1's: the lowest-numbered accepted draw wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.cancellation import CancelToken
from decoding.counter_rng import uniforms
from decoding.draws import Draws
from decoding.edge_chooser import EdgeChooser
from decoding.errors import DecodingCancelledError
from decoding.expansion import expand
from decoding.frontier import merge_branches
from decoding.language_model import DecodeSession
from decoding.params import DiscParams
from decoding.stopping import StopPoll
from decoding.types import Constraint, Hypothesis

# Streams of the counter-based generator: what a uniform is used for.
_ACCEPT, _FIRST, _SECOND, _CHOOSE = range(4)


@dataclass(frozen=True, slots=True)
class DiscSample:
    """One result of DISC.

    Attributes:
        hypothesis: The row; its logprob is log P_L at the request's temperature.
        accepted: True: an exact sample of P_S. False: chosen by weight among K fresh draws (with K = 1: the
            one draw, which would not have been accepted).
        log_weight: log x of the draw.
        num_draws: Draws Algorithm 1 made for this result: the number of the accepted draw, or 2K when
            none was (1 when K = 1, where the one draw is the result either way).
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
            weight of all first-phase draws, or of their acceptances when draws were rejected early.
        mass_stderr: Standard error of `mass`; NaN with a single draw. Of acceptances it is the binomial
            error at the share (a + 1/2) / (n + 1), which is not zero when all draws fared alike.
        num_draws: Draws computed for the query in both phases.
        num_steps: Decode steps of the batch.
    """

    samples: tuple[DiscSample, ...]
    mass: float
    mass_stderr: float
    num_draws: int
    num_steps: int


class _Batch:
    """One phase of `disc`: the session, the constraint and per-query parameters as tensors.

    Args:
        session: Of the queries that take part.
        constraint: What may be written.
        params: Of those queries.
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
        self.num_steps = 0
        self.seed = torch.tensor([p.seed for p in params], dtype=torch.int64, device=device)
        temperatures = [p.temperature for p in params]
        self.temperature: Tensor | None = None
        if any(t != 1.0 for t in temperatures):
            self.temperature = torch.tensor(temperatures, dtype=torch.float32, device=device)
        self.top_m = params[0].top_m

    def new_draws(self, wanted: Sequence[tuple[int, int, int]]) -> Draws:
        """Lay out draws for (query, sample, number of draws) triples."""
        entries = [(q, s, k) for q, s, count in wanted for k in range(count)]
        columns = torch.tensor(entries, dtype=torch.int64, device=self.device).reshape(-1, 3)
        return Draws(columns[:, 0], columns[:, 1], columns[:, 2])

    def run(self, draws: Draws, stream: int, log_threshold: Tensor | None) -> None:
        """Advance all draws to their ends.

        Args:
            draws: Changed in place.
            stream: Which random numbers to use.
            log_threshold: A draw whose log weight falls below its threshold is stopped; None: never.
                Shape: (D,), float64.
        """
        start = self.constraint.start(self.numbers[draws.query])
        draws.state = start
        nodes = torch.full((self.num_queries, 1), -1, dtype=torch.int64, device=self.device)
        nodes[draws.query, 0] = start
        logits = self.session.root_logits.unsqueeze(1)  # (Q, 1, V)
        for step in range(self.constraint.max_depth):
            draws.drop(self.stop.dropped_queries(step)[draws.query] & draws.running)
            if not bool(draws.running.any()):
                return
            self._sample_step(draws, nodes, logits, stream, step)
            if log_threshold is not None:
                draws.running &= draws.log_weight >= log_threshold
            live = torch.nonzero(draws.running).squeeze(1)
            if not len(live):
                return
            frontier = merge_branches(
                self.num_queries,
                draws.query[live],
                draws.state[live],
                draws.tokens[-1][live],
                draws.slot[live],
            )
            logits = self.session.step(frontier.parents, frontier.tokens)
            self.num_steps += 1
            nodes = frontier.states
            draws.slot[live] = frontier.slots

    def _sample_step(self, draws: Draws, nodes: Tensor, logits: Tensor, stream: int, step: int) -> None:
        width = nodes.shape[1]
        temperature = None
        if self.temperature is not None:
            temperature = self.temperature.repeat_interleave(width)
        edges = expand(self.constraint, nodes.flatten(), logits.flatten(0, 1), temperature, self.top_m)
        chooser = EdgeChooser(edges, nodes.numel())
        # An ended draw still names a slot of some earlier frontier: look at slot 0, then ignore it.
        node = draws.query * width + torch.where(draws.running, draws.slot, 0)
        u = uniforms(self.seed[draws.query], stream, draws.sample, draws.number, step)
        edge = chooser.choose(node, u)
        log_mass = torch.where(draws.running, chooser.log_mass[node], 0.0)
        draws.log_weight = draws.log_weight + log_mass
        draws.drop(draws.running & ~torch.isfinite(log_mass))  # nothing valid: weight zero
        moves = draws.running
        if not len(edges.owner):  # nothing is allowed anywhere: every draw was dropped above
            draws.tokens.append(torch.full_like(draws.state, -1))
            return
        draws.logprob = draws.logprob + torch.where(moves, edges.logprob[edge], 0.0)
        draws.state = torch.where(moves, edges.next_state[edge], draws.state)
        draws.tokens.append(torch.where(moves, edges.token[edge], -1))
        done = moves & self.constraint.is_final(draws.state)
        draws.finished |= done
        draws.running = moves & ~done


def disc(
    session: DecodeSession,
    constraint: Constraint,
    params: Sequence[DiscParams],
    cancel: Sequence[CancelToken | None] | None = None,
    room: Sequence[int | None] | None = None,
) -> list[DiscResult | DecodingCancelledError]:
    """Sample rows of the constraint from P_L restricted to it, for every query of a session.

    Args:
        session: Prefilled prompts. Q queries.
        constraint: The set S.
        params: One per query; `top_m` must be the same for all of them. Length Q.
        cancel: Polled before every step; a cancelled query leaves the batch, the others go on.
        room: Most tokens that may be written per query, None for no bound. Rows that do not fit cannot
            be written: the target is then P_L restricted to the rows that fit.

    Returns:
        One result per query, or the error that ended it.

    Raises:
        ValueError: lengths differ, or `top_m` differs between queries.
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    if len({p.top_m for p in params}) > 1:
        raise ValueError("top_m must be the same for all queries of a batch")
    stop = StopPoll(len(params), cancel, room, session.root_logits.device)
    batch = _Batch(session, constraint, params, stop, range(len(params)))
    first = batch.new_draws([(q, s, p.num_draws) for q, p in enumerate(params) for s in range(p.num_samples)])
    log_u = torch.log(uniforms(batch.seed[first.query], _ACCEPT, first.sample, first.number, 0))
    batch.run(first, _FIRST, _early_threshold(first, params, log_u))
    accepted = first.finished & (log_u < first.log_weight)
    plain = torch.tensor([p.num_draws == 1 for p in params], device=batch.device)[first.query]
    taken = torch.where(plain, first.finished, accepted)
    winners = _lowest_numbered(first, taken)
    missing = [
        (q, s, p.num_draws)
        for q, p in enumerate(params)
        for s in range(p.num_samples)
        if (q, s) not in winners and p.num_draws > 1 and stop.error(q) is None
    ]
    second = _second_phase(batch, missing) if missing else None
    return _collect(batch, first, accepted, winners, second)


def _second_phase(batch: _Batch, missing: Sequence[tuple[int, int, int]]) -> Draws:
    """Make fresh draws for (query, sample, number of draws) triples; the other queries sit it out."""
    queries = sorted({query for query, _, _ in missing})
    place = {query: i for i, query in enumerate(queries)}
    stop = batch.stop.select(queries)
    params = [batch.params[query] for query in queries]
    part = _Batch(batch.session.select(queries), batch.constraint, params, stop, queries)
    draws = part.new_draws([(place[query], sample, count) for query, sample, count in missing])
    part.run(draws, _SECOND, None)
    draws.query = part.numbers[draws.query]
    batch.stop.absorb(stop, queries)
    batch.num_steps += part.num_steps
    return draws


def _early_threshold(draws: Draws, params: Sequence[DiscParams], log_u: Tensor) -> Tensor | None:
    early = [p.reject_early and p.num_draws > 1 for p in params]
    if not any(early):
        return None
    chosen = torch.tensor(early, device=log_u.device)[draws.query]
    return torch.where(chosen, log_u, -math.inf)


def _lowest_numbered(draws: Draws, taken: Tensor) -> dict[tuple[int, int], int]:
    """Return the index of the first taken draw of every (query, sample) that has one."""
    winners: dict[tuple[int, int], int] = {}
    indices = torch.nonzero(taken).squeeze(1)
    queries, samples = draws.query[indices].tolist(), draws.sample[indices].tolist()
    for index, query, sample in zip(indices.tolist(), queries, samples, strict=True):
        winners.setdefault((query, sample), index)  # draws are laid out in ascending number
    return winners


def _choose_by_weight(batch: _Batch, draws: Draws) -> dict[tuple[int, int], int]:
    """Choose one draw per (query, sample) with probability proportional to its weight."""
    groups: dict[tuple[int, int], list[int]] = {}
    keys = zip(draws.query.tolist(), draws.sample.tolist(), strict=True)
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    log_weights = torch.where(draws.finished, draws.log_weight, -math.inf).tolist()
    u = uniforms(batch.seed[draws.query], _CHOOSE, draws.sample, 0, 0).tolist()
    chosen: dict[tuple[int, int], int] = {}
    for key, members in groups.items():
        largest = max(log_weights[i] for i in members)
        if largest == -math.inf:
            continue
        weights = [math.exp(log_weights[i] - largest) for i in members]
        target = u[members[0]] * sum(weights)
        for index, weight in zip(members, weights, strict=True):
            target -= weight
            if weight > 0:
                chosen[key] = index
                if target < 0:
                    break
    return chosen


def _samples(
    batch: _Batch,
    first: Draws,
    accepted: Tensor,
    winners: dict[tuple[int, int], int],
    second: Draws | None,
) -> dict[tuple[int, int], DiscSample]:
    """Return the result of every (query, sample) that has one."""
    results: dict[tuple[int, int], DiscSample] = {}
    indices = list(winners.values())
    if indices:
        columns = (accepted[indices], first.log_weight[indices], first.number[indices] + 1)
        rows = zip(winners, first.hypotheses(indices, batch.constraint), strict=True)
        for (key, hypothesis), *values in zip(rows, *(c.tolist() for c in columns), strict=True):
            results[key] = DiscSample(hypothesis, *values)
    chosen = _choose_by_weight(batch, second) if second is not None else {}
    if second is not None and chosen:
        indices = list(chosen.values())
        weights = second.log_weight[indices].tolist()
        rows = zip(chosen, second.hypotheses(indices, batch.constraint), strict=True)
        for (key, hypothesis), weight in zip(rows, weights, strict=True):
            results[key] = DiscSample(hypothesis, False, weight, 2 * batch.params[key[0]].num_draws)
    return results


def _collect(
    batch: _Batch,
    first: Draws,
    accepted: Tensor,
    winners: dict[tuple[int, int], int],
    second: Draws | None,
) -> list[DiscResult | DecodingCancelledError]:
    samples = _samples(batch, first, accepted, winners, second)
    weights = torch.where(first.finished, first.log_weight, -math.inf).exp()
    results: list[DiscResult | DecodingCancelledError] = []
    for q, p in enumerate(batch.params):
        error = batch.stop.error(q)
        if error is not None:
            results.append(error)
            continue
        mine = first.query == q
        early = p.reject_early and p.num_draws > 1
        outcomes = accepted[mine].double() if early else weights[mine]
        n = len(outcomes)
        stderr = float(outcomes.std() / math.sqrt(n)) if n > 1 else math.nan
        if early:
            share = (float(outcomes.sum()) + 0.5) / (n + 1)
            stderr = math.sqrt(share * (1 - share) / n)
        results.append(
            DiscResult(
                samples=tuple(samples[q, s] for s in range(p.num_samples) if (q, s) in samples),
                mass=float(outcomes.mean()),
                mass_stderr=stderr,
                num_draws=n + (int((second.query == q).sum()) if second is not None else 0),
                num_steps=batch.num_steps,
            )
        )
    return results
