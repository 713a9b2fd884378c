"""DISC: unbiased sampling of whole rows from a language model restricted to a constraint.

Target: P_S(s) = P_L(s) / P_L(S). A draw walks the constraint and samples among the valid tokens; its
weight x is the product of the valid masses it met. A draw is accepted with probability x, which makes
accepted draws exact samples of P_S; when K draws were all refused, one of K fresh draws is taken with
probability proportional to its weight ("Efficient and Asymptotically Unbiased Constrained Decoding for
Large Language Models", Algorithm 1 and Theorem 3.1). With K = 1 the single draw is returned as it is:
plain constrained sampling, as in the paper's experiments (section 4).

This file is Algorithm 1. Draws of all results of all queries are made together, by a proposer; the law is
the algorithm's all the same, because the lowest-numbered accepted draw wins.

Adaptive draws are made one after the other instead. What earlier draws of the query found to be invalid is
left out of the proposal, so a weight is bounded by the mass C that is left at the root, C <= 1, and a draw is
accepted with probability x / C: rejection sampling with an envelope that tightens. Whatever C was, a draw of
probability q(s) is kept with probability proportional to P_L(s) / q(s), so accepted draws are exact samples
of P_S. Several results of a query share what was found: each accepted one follows P_S given all the others
drew before it, but *whether* one is accepted within K draws depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from decoding.beam_proposer import BeamProposer
from decoding.cancellation import CancelToken
from decoding.counter_rng import uniforms
from decoding.disc_results import DiscResult, DiscSample, Key, Round, estimate_mass, written_mass
from decoding.draws import Draws
from decoding.errors import DecodingCancelledError
from decoding.language_model import DecodeSession
from decoding.params import DiscParams
from decoding.proposer import ACCEPT, CHOOSE, FIRST, SECOND, DrawBatch, Proposer
from decoding.static_proposer import StaticProposer
from decoding.stopping import StopPoll
from decoding.tree_proposer import TreeProposer
from decoding.types import Constraint

__all__ = ["DiscResult", "DiscSample", "disc"]


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
        params: One per query; `top_m`, `beam_size` and `adaptive` must be the same for all. Length Q.
        cancel: Polled before every step; a cancelled query leaves the batch, the others go on.
        room: Most tokens that may be written per query, None for no bound. Rows that do not fit cannot
            be written: the target is then P_L restricted to the rows that fit.

    Returns:
        One result per query, or the error that ended it.

    Raises:
        ValueError: lengths differ, or what must be the same differs between queries.
        InvalidLogitsError: the model returned NaN or infinite logits.
    """
    for name in ("top_m", "beam_size", "adaptive"):
        if len({getattr(p, name) for p in params}) > 1:
            raise ValueError(f"{name} must be the same for all queries of a batch")
    stop = StopPoll(len(params), cancel, room, session.root_logits.device)
    batch = DrawBatch(session, constraint, params, stop, range(len(params)))
    proposer = _proposer(batch)
    rounds = _first_phase(batch, proposer)
    second = _second_phase(batch, proposer, _missing(batch, rounds))
    return _collect(batch, proposer, rounds, second)


def _proposer(batch: DrawBatch) -> Proposer:
    """Return what makes the draws."""
    if batch.params[0].beam_size > 1:
        return BeamProposer(batch)
    if StaticProposer.suits(batch):
        return StaticProposer(batch)
    return TreeProposer(batch)


def _first_phase(batch: DrawBatch, proposer: Proposer) -> list[Round]:
    """Make up to K draws for every result, all at once or, when they adapt, one at a time."""
    adaptive = batch.params[0].adaptive
    rounds: list[Round] = []
    for first in range(max(p.num_draws for p in batch.params) if adaptive else 1):
        wanted = [(q, s, first, count) for q, s, count in _missing(batch, rounds) if count > first]
        if adaptive:
            wanted = [(q, s, first, 1) for q, s, _, _ in wanted]
        if not wanted:
            break
        rounds.append(_first_round(batch, proposer, batch.new_draws(wanted)))
    return rounds


def _first_round(batch: DrawBatch, proposer: Proposer, draws: Draws) -> Round:
    log_u = torch.log(uniforms(batch.seed[draws.query], ACCEPT, draws.sample, draws.number, 0))
    proposer.run(draws, FIRST, _early_threshold(draws, batch.params, log_u))
    accepted = draws.finished & (log_u < draws.log_weight - draws.log_bound)
    plain = torch.tensor([p.num_draws == 1 for p in batch.params], device=batch.device)[draws.query]
    return Round(draws, accepted, _lowest_numbered(draws, torch.where(plain, draws.finished, accepted)))


def _missing(batch: DrawBatch, rounds: Sequence[Round]) -> list[tuple[int, int, int]]:
    """Return (query, sample, K) of every result that no draw was taken for yet."""
    decided = {key for one in rounds for key in one.winners}
    return [
        (q, s, p.num_draws)
        for q, p in enumerate(batch.params)
        for s in range(p.num_samples)
        if (q, s) not in decided and batch.stop.error(q) is None
    ]


def _second_phase(
    batch: DrawBatch, proposer: Proposer, missing: Sequence[tuple[int, int, int]]
) -> Round | None:
    """Choose each missing result among K fresh draws, with probability proportional to their weights."""
    wanted = [(q, s, 0, count) for q, s, count in missing if count > 1]
    if not wanted:
        return None
    draws = batch.new_draws(wanted)
    proposer.run(draws, SECOND, None)
    return Round(draws, torch.zeros_like(draws.finished), _choose_by_weight(batch, draws))


def _early_threshold(draws: Draws, params: Sequence[DiscParams], log_u: Tensor) -> Tensor | None:
    early = [p.reject_early and p.num_draws > 1 for p in params]
    if not any(early):
        return None
    chosen = torch.tensor(early, device=log_u.device)[draws.query]
    return torch.where(chosen, log_u, -math.inf)


def _lowest_numbered(draws: Draws, taken: Tensor) -> dict[Key, int]:
    """Return the index of the first taken draw of every (query, sample) that has one."""
    winners: dict[Key, int] = {}
    indices = torch.nonzero(taken).squeeze(1)
    queries, samples = draws.query[indices].tolist(), draws.sample[indices].tolist()
    for index, query, sample in zip(indices.tolist(), queries, samples, strict=True):
        winners.setdefault((query, sample), index)  # draws are laid out in ascending number
    return winners


def _choose_by_weight(batch: DrawBatch, draws: Draws) -> dict[Key, int]:
    """Choose one draw per (query, sample) with probability proportional to its weight."""
    groups: dict[Key, list[int]] = {}
    keys = zip(draws.query.tolist(), draws.sample.tolist(), strict=True)
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    log_weights = torch.where(draws.finished, draws.log_weight, -math.inf).tolist()
    u = uniforms(batch.seed[draws.query], CHOOSE, draws.sample, 0, 0).tolist()
    chosen: dict[Key, int] = {}
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


def _collect(
    batch: DrawBatch, proposer: Proposer, rounds: Sequence[Round], second: Round | None
) -> list[DiscResult | DecodingCancelledError]:
    samples: dict[Key, DiscSample] = {}
    for one in rounds:
        samples.update(one.samples(batch.constraint, None))
    everything = list(rounds)
    if second is not None:
        samples.update(second.samples(batch.constraint, [2 * p.num_draws for p in batch.params]))
        everything.append(second)
    written, nodes = written_mass(everything, batch.num_queries), proposer.nodes_of_queries()
    upper = proposer.log_upper_bounds()
    num_draws = torch.cat([one.draws.query for one in everything]).bincount(minlength=batch.num_queries)
    results: list[DiscResult | DecodingCancelledError] = []
    for q, p in enumerate(batch.params):
        error = batch.stop.error(q)
        if error is not None:
            results.append(error)
            continue
        mass, stderr = estimate_mass(rounds[0], q, p)
        results.append(
            DiscResult(
                samples=tuple(samples[q, s] for s in range(p.num_samples) if (q, s) in samples),
                mass=mass,
                mass_stderr=stderr,
                mass_lower=written[q],
                mass_upper=1.0 if upper is None else max(written[q], math.exp(upper[q])),
                num_draws=int(num_draws[q]),
                num_nodes=nodes[q],
                num_steps=proposer.num_steps,
            )
        )
    return results
