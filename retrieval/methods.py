"""The retrieval methods: from a decoder's rows to ranked catalogue entities.

`beam` lists the likeliest surface forms (`retrieval.beam_method`), `disc` samples them and an owner of each;
both are aggregated by entity (`retrieval.tallies`). Under a filter the forms are those of rows that name an
allowed entity. What `shortlist` and `auto` make of entities is in `retrieval.scored_methods`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from decoding.cancellation import CancelToken
from decoding.counter_rng import uniforms
from decoding.disc import DiscResult, disc
from decoding.disc.proposer import OWNER
from decoding.errors import DecodingCancelledError
from decoding.language_model import DecodeSession
from decoding.params import DiscParams
from decoding.title_trie import TitleTrie
from decoding.trace import Trace
from retrieval.decoded import Decoded
from retrieval.explanation import Explanation
from retrieval.filters.entity_filter import EntityFilter, constraint_of, mask_of
from retrieval.index.order import best_first
from retrieval.index.owners import FormOwners, Owners
from retrieval.index.reader import Index
from retrieval.tallies import Tally, by_share, candidate, credit
from retrieval.types import RetrievalResult, RetrieveRequest

Outcome = RetrievalResult | DecodingCancelledError


def run_disc(
    session: DecodeSession,
    trie: TitleTrie,
    index: Index,
    requests: Sequence[RetrieveRequest],
    cancel: Sequence[CancelToken | None],
    room: Sequence[int | None],
    filters: Sequence[EntityFilter | None] | None = None,
    traces: Sequence[Trace] | None = None,
) -> list[Outcome]:
    """Answer requests by DISC. See `decode_by_disc`."""
    found = decode_by_disc(session, trie, index, requests, cancel, room, filters, traces)
    return [
        or_abstain(request, query.answer) if isinstance(query, Decoded) else query
        for request, query in zip(requests, found, strict=True)
    ]


def decode_by_disc(
    session: DecodeSession,
    trie: TitleTrie,
    index: Index,
    requests: Sequence[RetrieveRequest],
    cancel: Sequence[CancelToken | None],
    room: Sequence[int | None],
    filters: Sequence[EntityFilter | None] | None = None,
    traces: Sequence[Trace] | None = None,
) -> list[Decoded | DecodingCancelledError]:
    """Find entities by DISC. The requests have a seed each; nothing is withheld yet.

    All have one `top_m`, one `adaptive` and one number of prefixes per draw.

    A sample is a row and then one of its owners, with P(e | f): samples of entities follow P(e | q) / P_L(S).
    Under a filter the set S is that of the rows allowed: samples follow the model's distribution over them,
    and the mass is their probability. The draws of each query are written into its trace, where there are
    traces.
    """
    filters = filters or [None] * len(requests)
    params = [
        DiscParams(
            num_samples=r.samples,
            num_draws=r.num_draws,
            temperature=r.temperature,
            top_m=r.top_m,
            seed=r.seed or 0,
            # Draws that go on to their ends give the mass by their weights, a far better estimate than
            # a count of acceptances.
            reject_early=False,
            adaptive=r.adaptive,
            beam_size=r.prefixes,
        )
        for r in requests
    ]
    results = disc(session, constraint_of(trie, filters), params, cancel, room, traces)
    return [
        result if isinstance(result, DecodingCancelledError) else _disc_found(index, request, result, allowed)
        for request, result, allowed in zip(requests, results, filters, strict=True)
    ]


def _disc_found(
    index: Index, request: RetrieveRequest, result: DiscResult, allowed: EntityFilter | None
) -> Decoded:
    tallies: dict[int, Tally] = {}
    owners_of = FormOwners(index, mask_of(allowed), request.role_weight)
    owners = {row: owners_of(row) for row in {sample.hypothesis.row for sample in result.samples}}
    chances = uniforms(torch.tensor(request.seed or 0), OWNER, torch.arange(len(result.samples))).tolist()
    for sample, chance in zip(result.samples, chances, strict=True):
        mine = owners[sample.hypothesis.row]
        credit(tallies, sample.hypothesis, mine)
        tallies[_drawn(mine, chance)].share += 1.0 / len(result.samples)
    entities = best_first(index, by_share(tallies), len(tallies))
    answer = RetrievalResult(
        query=request.query,
        method="disc",
        candidates=tuple(
            candidate(index, e, tallies[e], tallies[e].best(), share, share)
            for e in entities[: request.k]
            if (share := tallies[e].share)
        ),
        mass=result.mass,
        mass_stderr=None if math.isnan(result.mass_stderr) else result.mass_stderr,
        mass_lower=result.mass_lower,
        mass_upper=result.mass_upper,
        num_draws=result.num_draws,
        num_accepted=sum(sample.accepted for sample in result.samples),
        num_nodes=result.num_nodes,
        num_steps=result.num_steps,
        seed=request.seed,
    )
    logprobs = {entity: tallies[entity].logprob for entity in entities}
    return Decoded(answer, tuple(entities), math.inf, logprobs)


def _drawn(owners: Owners, chance: float) -> int:
    """Return the owner that a uniform number in (0, 1) draws, with P(e | f)."""
    for entity, share in zip(*owners, strict=True):
        if (chance := chance - share) < 0:
            return entity
    return max(zip(owners.shares, owners.entities, strict=True))[1]  # rounding has left a little behind all


def or_abstain(request: RetrieveRequest, answer: RetrievalResult) -> RetrievalResult:
    """Withhold the candidates of an answer whose mass is below what the request asks for."""
    mass = answer.bounded_mass
    if request.min_mass is None or mass is None or mass >= request.min_mass:
        return answer
    return replace(answer, candidates=(), abstained=True)


def nothing_allowed(request: RetrieveRequest) -> RetrievalResult:
    """Return the answer to a request whose filter allows no entity: known without asking the model."""
    explanation = Explanation() if request.explain else None
    # Of `auto` and `shortlist` all entities allowed were scored, none as they are.
    certified = True if request.proposals or request.decoding == "beam" else None
    if request.decoding != "disc":
        return RetrievalResult(
            request.query,
            request.method,
            (),
            certified=certified,
            mass_lower=0.0 if request.proposals else None,
            explanation=explanation,
        )
    answer = RetrievalResult(
        query=request.query,
        method=request.method,
        candidates=(),
        certified=certified,
        mass=0.0,
        mass_stderr=0.0,
        mass_lower=0.0,
        mass_upper=0.0,
        seed=request.seed,
        explanation=explanation,
    )
    return or_abstain(request, answer)
