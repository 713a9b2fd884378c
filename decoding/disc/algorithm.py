"""Samples whole rows, without bias, from a language model restricted to a constraint: DISC.

Target: P_S(s) = P_L(s) / P_L(S). A draw walks the constraint and samples among the valid tokens; its weight x
is the product of the valid masses on its way. A draw is accepted with probability x, which makes accepted
draws exact samples of P_S; if K draws were all refused, one of K fresh draws is taken with probability
proportional to its weight ("Efficient and Asymptotically Unbiased Constrained Decoding for Large Language
Models", Algorithm 1 and Theorem 3.1). With K = 1 the single draw is returned as it is: plain constrained
sampling, as in the paper's experiments (section 4). Draws of all results of all queries are made together, by
a proposer; since the lowest-numbered accepted draw wins, the law is the algorithm's.

Adaptive draws differ in proposal and bound. The probabilities seen in a query's tree give an envelope: an
upper bound C of P_L(S), at first the valid mass at the root. No draw can weigh more than C, so one is
accepted with probability x / C, not x. After K refusals, what they found to be invalid is left out of the
proposal of the K fresh draws, which lowers C, and these are tested as well. This is rejection sampling with
an envelope that tightens: whatever C was, a draw of probability q(s) is kept with probability proportional to
P_L(s) / q(s), so accepted draws are exact samples of P_S. Only if all 2K were refused is one chosen by weight
(`choose_by_weight`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from genret.decoding.cancellation import CancelToken
from genret.decoding.constraints import Constraint
from genret.decoding.counter_rng import uniforms
from genret.decoding.disc.beam_proposer import BeamProposer
from genret.decoding.disc.draws import (
    ACCEPT,
    ACCEPT_AGAIN,
    CHOOSE,
    FIRST,
    SECOND,
    DecidedDraws,
    DiscResult,
    DiscSample,
    DrawBatch,
    Draws,
    Key,
    Proposer,
    estimate_mass,
    written_mass,
)
from genret.decoding.disc.static_proposer import StaticProposer
from genret.decoding.disc.tree_proposer import TreeProposer, check_recordable, record_draws
from genret.decoding.errors import DecodingCancelledError
from genret.decoding.language_model import DecodeSession
from genret.decoding.params import DiscParams
from genret.decoding.stopping import StopPoll
from genret.decoding.trace import Trace


def disc(
    session: DecodeSession,
    constraint: Constraint,
    params: Sequence[DiscParams],
    cancel: Sequence[CancelToken | None] | None = None,
    room: Sequence[int | None] | None = None,
    traces: Sequence[Trace | None] | None = None,
) -> list[DiscResult | DecodingCancelledError]:
    """Sample rows of the constraint from P_L restricted to it, for every query of a session.

    Args:
        session: Prefilled prompts. Q queries, Q >= 1.
        constraint: The set S.
        params: One per query; `top_m`, `beam_size` and `adaptive` must be the same for all. Length Q.
        cancel: Polled before every step; a cancelled query leaves the batch, the others go on.
        room: Most tokens that may be written per query, None for no bound. Rows that do not fit cannot be
            written: the target is then P_L restricted to the rows that fit.
        traces: Traces to write each query's draws into, None for none; only for plain draws that are not
            rejected early. The results are the same.

    Returns:
        One result per query, or the error that ended it.

    Raises:
        ValueError: there is no query, lengths differ, parameters that must be the same differ, or draws of
            another kind are to be traced.
        InvalidLogitsError: the model returned NaN or infinite logits, for any of the queries in any phase.
    """
    if not params or len(params) != len(session.root_logits):
        raise ValueError(
            f"params: expected one for each of the session's {len(session.root_logits)} queries, "
            f"at least one, got {len(params)}"
        )
    for name in ("top_m", "beam_size", "adaptive"):
        if len({getattr(p, name) for p in params}) > 1:
            raise ValueError(f"{name} must be the same for all queries of a batch")
    stop = StopPoll(len(params), cancel, room, session.root_logits.device)
    batch = DrawBatch(session, constraint, params, stop, range(len(params)))
    recorded = check_recordable(params, traces)
    proposer = TreeProposer(batch, keeps_ways=True) if recorded else _proposer(batch)
    first = _first_phase(batch, proposer)
    undecided = [
        (q, s)
        for q, p in enumerate(params)
        for s in range(p.num_samples)
        if (q, s) not in first.winners and p.num_draws > 1 and stop.error(q) is None
    ]
    second = _second_phase(batch, proposer, first, undecided) if undecided else []
    if recorded and isinstance(proposer, TreeProposer):
        record_draws(batch, proposer, [first, *second[:1]], recorded)
    return _collect(batch, proposer, first, second)


def _proposer(batch: DrawBatch) -> Proposer:
    if batch.params[0].beam_size > 1:
        return BeamProposer(batch)
    if StaticProposer.suits(batch):
        return StaticProposer(batch)
    return TreeProposer(batch)


def _first_phase(batch: DrawBatch, proposer: Proposer) -> DecidedDraws:
    """Make K draws for every result and take the first that is accepted; with K = 1 take the one."""
    wanted = [(q, s, 0, p.num_draws) for q, p in enumerate(batch.params) for s in range(p.num_samples)]
    draws = batch.new_draws(wanted)
    log_u = _log_uniforms(batch, draws, ACCEPT)
    stops = [p.stops_early for p in batch.params]
    threshold = torch.where(torch.tensor(stops, device=batch.device)[draws.query], log_u, -math.inf)
    proposer.run(draws, FIRST, threshold if any(stops) else None)
    accepted = _accepted(draws, log_u)
    plain = torch.tensor([p.num_draws == 1 for p in batch.params], device=batch.device)[draws.query]
    return DecidedDraws(
        draws, accepted, _lowest_numbered(draws, torch.where(plain, draws.finished, accepted))
    )


def _log_uniforms(batch: DrawBatch, draws: Draws, stream: int) -> Tensor:
    """The log of the uniform that each draw's acceptance is judged by. Shape: (D,), float64."""
    return torch.log(uniforms(batch.seed[draws.query], stream, draws.sample, draws.number, 0))


def _accepted(draws: Draws, log_u: Tensor) -> Tensor:
    """Whether each draw, at its end, is accepted. Shape: (D,), bool."""
    return draws.finished & (log_u < draws.log_weight - draws.log_bound)


def _second_phase(
    batch: DrawBatch, proposer: Proposer, first: DecidedDraws, wanted: Sequence[Key]
) -> list[DecidedDraws]:
    """Make K fresh draws for every result that is left, and choose one by weight if none is accepted.

    Returns:
        The fresh draws, and the first ones once more with the results they decide after all.
    """
    draws = batch.new_draws([(q, s, 0, batch.params[q].num_draws) for q, s in wanted])
    proposer.run(draws, SECOND, None)
    accepted = torch.zeros_like(draws.finished)
    if batch.params[0].adaptive:
        accepted = _accepted(draws, _log_uniforms(batch, draws, ACCEPT_AGAIN))
    winners = _lowest_numbered(draws, accepted)
    left = [key for key in wanted if key not in winners]
    chosen = choose_by_weight(batch, candidates(batch, first.draws, draws, left))
    winners |= {key: choice.draw for key, choice in chosen.items() if choice.is_fresh}
    seen = {key: choice.draw for key, choice in chosen.items() if not choice.is_fresh}
    refused = torch.zeros_like(first.accepted)
    return [DecidedDraws(draws, accepted, winners, True), DecidedDraws(first.draws, refused, seen, True)]


def _lowest_numbered(draws: Draws, taken: Tensor) -> dict[Key, int]:
    """The index of the first taken draw of every (query, sample) that has one."""
    winners: dict[Key, int] = {}
    indices = torch.nonzero(taken).squeeze(1)
    queries, samples = draws.query[indices].tolist(), draws.sample[indices].tolist()
    for index, query, sample in zip(indices.tolist(), queries, samples, strict=True):
        winners.setdefault((query, sample), index)  # draws are laid out in ascending number
    return winners


def _collect(
    batch: DrawBatch, proposer: Proposer, first: DecidedDraws, second: Sequence[DecidedDraws]
) -> list[DiscResult | DecodingCancelledError]:
    samples: dict[Key, DiscSample] = {}
    for one in (first, *second):
        samples.update(one.samples(batch.constraint, batch.params))
    made = [first.draws, *(one.draws for one in second[:1])]
    written, nodes = written_mass(made, batch.num_queries), proposer.nodes_of_queries()
    upper = proposer.log_upper_bounds()
    num_draws = torch.cat([draws.query for draws in made]).bincount(minlength=batch.num_queries)
    results: list[DiscResult | DecodingCancelledError] = []
    for q, p in enumerate(batch.params):
        error = batch.stop.error(q)
        if error is not None:
            results.append(error)
            continue
        mass, stderr = estimate_mass(first, q, p)
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


class WeightedDraw(NamedTuple):
    """A draw that may be chosen by weight."""

    is_fresh: bool  # Whether it is one of the fresh draws, else of the first ones
    draw: int  # Its index among these
    log_weight: float  # log of its weight in the choice


def candidates(
    batch: DrawBatch, first: Draws, fresh: Draws, wanted: Sequence[Key]
) -> dict[Key, list[WeightedDraw]]:
    """Return the draws that each wanted result can be chosen among.

    Plain: its fresh draws, each of weight x / K. Adaptive: the rows that the first draws of the query wrote,
    each of weight P_L, and its fresh draws of other rows, of weight x / K. The latter estimate the rest of
    P_L(S), without bias over all fresh draws; given that all were refused, somewhat low.
    """
    params = batch.params
    rows: dict[int, dict[tuple[int, ...], int]] = {query: {} for query, _ in wanted}
    if params[0].adaptive:
        for index, (query, row) in first.written_rows().items():
            if query in rows:
                rows[query][row] = index
    logprobs = first.logprob.tolist()
    found = {
        key: [WeightedDraw(False, index, logprobs[index]) for index in rows[key[0]].values()]
        for key in wanted
    }
    samples, log_weights = fresh.sample.tolist(), fresh.log_weight.tolist()
    for index, (query, row) in fresh.written_rows().items():
        key = (query, samples[index])
        if key in found and row not in rows[query]:
            share = math.log(params[query].num_draws)
            found[key].append(WeightedDraw(True, index, log_weights[index] - share))
    return found


def choose_by_weight(
    batch: DrawBatch, candidates_of: Mapping[Key, Sequence[WeightedDraw]]
) -> dict[Key, WeightedDraw]:
    """Choose a candidate per result, with probability proportional to its weight.

    A result whose candidates all weigh nothing is left out.
    """
    keys = torch.tensor(list(candidates_of), dtype=torch.int64, device=batch.device).reshape(-1, 2)
    u = uniforms(batch.seed[keys[:, 0]], CHOOSE, keys[:, 1], 0, 0).tolist()
    chosen: dict[Key, WeightedDraw] = {}
    for (key, mine), uniform in zip(candidates_of.items(), u, strict=True):
        largest = max((one.log_weight for one in mine), default=-math.inf)
        if largest == -math.inf:
            continue
        weights = [math.exp(one.log_weight - largest) for one in mine]
        target = uniform * sum(weights)
        for one, weight in zip(mine, weights, strict=True):
            target -= weight
            if weight > 0:
                chosen[key] = one
                if target < 0:
                    break
    return chosen
