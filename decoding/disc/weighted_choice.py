"""The last resort of DISC: among draws that were all refused, one is chosen with probability by weight."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from decoding.counter_rng import uniforms
from decoding.disc.draws import Draws
from decoding.disc.proposer import CHOOSE, DrawBatch
from decoding.disc.results import Key, written_rows


class Candidate(NamedTuple):
    """A draw that may be chosen.

    Attributes:
        is_fresh: Whether it is one of the fresh draws, else of the first ones.
        draw: Its index among these.
        log_weight: log of what it is worth.
    """

    is_fresh: bool
    draw: int
    log_weight: float


def candidates(
    batch: DrawBatch, first: Draws, fresh: Draws, wanted: Sequence[Key]
) -> dict[Key, list[Candidate]]:
    """Return what each result can be chosen among.

    Plain: its fresh draws, each worth x / K. Adaptive: the rows that the first draws of the query wrote, each
    worth its P_L, and its fresh draws of other rows, worth x / K. These estimate the rest of P_L(S), without
    bias over all fresh draws; given that all were refused, somewhat low.

    Args:
        batch: The queries.
        first: Draws of the first phase.
        fresh: Draws of the second phase.
        wanted: The results to be decided.
    """
    params = batch.params
    rows: dict[int, dict[tuple[int, ...], int]] = {query: {} for query, _ in wanted}
    if params[0].adaptive:
        for index, (query, row) in written_rows(first).items():
            if query in rows:
                rows[query][row] = index
    logprobs = first.logprob.tolist()
    found = {
        key: [Candidate(False, index, logprobs[index]) for index in rows[key[0]].values()] for key in wanted
    }
    samples, log_weights = fresh.sample.tolist(), fresh.log_weight.tolist()
    for index, (query, row) in written_rows(fresh).items():
        key = (query, samples[index])
        if key in found and row not in rows[query]:
            share = math.log(params[query].num_draws)
            found[key].append(Candidate(True, index, log_weights[index] - share))
    return found


def choose_by_weight(
    batch: DrawBatch, candidates_of: Mapping[Key, Sequence[Candidate]]
) -> dict[Key, Candidate]:
    """Choose a candidate per result, with probability proportional to its weight.

    A result whose candidates all weigh nothing is left out.
    """
    keys = torch.tensor(list(candidates_of), dtype=torch.int64, device=batch.device).reshape(-1, 2)
    u = uniforms(batch.seed[keys[:, 0]], CHOOSE, keys[:, 1], 0, 0).tolist()
    chosen: dict[Key, Candidate] = {}
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
