"""The retrieval methods: from a decoder's rows to ranked catalogue entities.

`beam` lists the likeliest surface forms, `disc` samples them; both are aggregated by entity
(`retrieval.tallies`). Under a filter the forms are those of rows that name an allowed entity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from decoding.beam_search import BeamResult, beam_search
from decoding.cancellation import CancelToken
from decoding.disc import DiscResult, disc
from decoding.errors import DecodingCancelledError
from decoding.language_model import DecodeSession
from decoding.params import MAX_BEAM_SIZE, MAX_K, BeamParams, DiscParams
from decoding.row_filter import FilteredTrie
from decoding.title_trie import TitleTrie
from decoding.types import Constraint
from retrieval.filters.entity_filter import EntityFilter
from retrieval.index.reader import Index
from retrieval.tallies import Tally, count_entities, credit, entities_of, rank
from retrieval.types import RetrievalResult, RetrieveRequest

Outcome = RetrievalResult | DecodingCancelledError

# How often, and by what factor, a list of too few entities is searched again with more surface forms and
# beams; forty beams cost about twice as much as one.
_MAX_WIDENINGS = 2
_WIDENING = 4


def run_beam(
    session: DecodeSession,
    trie: TitleTrie,
    index: Index,
    requests: Sequence[RetrieveRequest],
    cancel: Sequence[CancelToken | None],
    room: Sequence[int | None],
    filters: Sequence[EntityFilter | None] | None = None,
) -> list[Outcome]:
    """Answer requests by trie beam search. All lists have one entry per query of the session."""
    filters = filters or [None] * len(requests)
    params = [_listing(index, request) for request in requests]
    results = beam_search(session, _constraint(trie, filters), params, cancel, room)
    num_steps = [0 if isinstance(r, DecodingCancelledError) else r.num_steps for r in results]
    for _ in range(_MAX_WIDENINGS):
        wider: dict[int, BeamParams] = {}
        for query, known in enumerate(zip(requests, params, results, filters, strict=True)):
            if (new_params := _wider(index, *known)) is not None:
                wider[query] = params[query] = new_params
        if not wider:
            break
        again = beam_search(
            session.select(list(wider)),
            _constraint(trie, [filters[query] for query in wider]),
            list(wider.values()),
            [cancel[query] for query in wider],
            [room[query] for query in wider],
        )
        for query, new in zip(wider, again, strict=True):
            results[query] = new
            num_steps[query] += 0 if isinstance(new, DecodingCancelledError) else new.num_steps
    return [
        result
        if isinstance(result, DecodingCancelledError)
        else _beam_answer(index, request, result, listed.k, steps, allowed)
        for request, result, listed, steps, allowed in zip(
            requests, results, params, num_steps, filters, strict=True
        )
    ]


def _constraint(trie: TitleTrie, filters: Sequence[EntityFilter | None]) -> Constraint:
    """Return what may be written: any title, or per query a title of an entity it allows."""
    if all(allowed is None for allowed in filters):
        return trie
    return FilteredTrie(trie, [None if allowed is None else allowed.rows for allowed in filters])


def _listing(index: Index, request: RetrieveRequest) -> BeamParams:
    """Return how many rows are listed for the entities wanted."""
    listed = request.k
    if index.max_forms > 1:
        # Several surface forms may be one entity's. Those listed beyond it cost next to nothing, complete
        # the entities' scores and tighten the bound on what was not seen.
        listed = min(MAX_K, max(2 * request.k, request.width))
    return BeamParams(k=listed, beam_size=request.width)


def _wider(
    index: Index,
    request: RetrieveRequest,
    params: BeamParams,
    result: BeamResult | DecodingCancelledError,
    allowed: EntityFilter | None,
) -> BeamParams | None:
    """Return what to search again with when surface forms of few entities crowded out the others.

    A beam size that was asked for stays; None: nothing more is wanted, or nothing more would be found.
    """
    if isinstance(result, DecodingCancelledError):
        return None
    entities = {e for hypothesis in result.hypotheses for e in entities_of(index, hypothesis.row, allowed)}
    if len(entities) >= min(request.k, count_entities(index, allowed)):
        return None
    full = len(result.hypotheses) >= params.k
    lost = result.best_pruned_score > -math.inf and request.beam_size is None
    if not full and not lost:
        return None
    beam_size = request.beam_size or min(MAX_BEAM_SIZE, params.width * _WIDENING)
    wider = BeamParams(k=min(MAX_K, params.k * _WIDENING), beam_size=beam_size)
    return wider if wider != params else None


def _beam_answer(
    index: Index,
    request: RetrieveRequest,
    result: BeamResult,
    num_listed: int,
    num_steps: int,
    allowed: EntityFilter | None,
) -> RetrievalResult:
    tallies: dict[int, Tally] = {}
    for hypothesis in result.hypotheses:
        credit(index, tallies, hypothesis, 0.0, allowed)
    unseen = result.best_pruned_score
    if len(result.hypotheses) >= num_listed:  # rows that fell off the end of the list
        unseen = max(unseen, result.hypotheses[-1].logprob)
    return RetrievalResult(
        query=request.query,
        method="beam",
        candidates=rank(index, tallies, request.k, by_share=False),
        certified=_is_proven(index, tallies, request.k, unseen, count_entities(index, allowed)),
        num_steps=num_steps,
    )


def _is_proven(index: Index, tallies: dict[int, Tally], k: int, unseen: float, num_entities: int) -> bool:
    """Whether the k likeliest entities are known, in their order, counting every surface form.

    It holds under a filter as it does without: an allowed entity makes every row it has allowed, so that
    none of its forms is out of reach, and what bounds the rows not seen bounds the allowed ones.

    Args:
        index: Knows how many surface forms an entity has.
        tallies: The entities found. The score of one is a lower bound of its true log-probability.
        k: Entities wanted.
        unseen: No row that was not found has a larger log-probability.
        num_entities: How many there are to be found.
    """
    if unseen == -math.inf:
        return True
    order = sorted(tallies, key=lambda entity: -tallies[entity].logprob)
    if len(order) < min(k, num_entities):
        return False
    # Upper bound of everything below the i-th entity, from the end of the list upwards.
    below = -math.inf
    if len(order) < num_entities:
        below = unseen + math.log(index.max_forms)
    for position in range(len(order) - 1, -1, -1):
        entity = order[position]
        found = tallies[entity]
        if position < k and found.logprob < below:
            return False
        missing = int(index.forms_per_entity[entity]) - len(found.logprobs)
        upper = found.logprob if missing <= 0 else np.logaddexp(found.logprob, unseen + math.log(missing))
        below = max(below, float(upper))
    return True


def run_disc(
    session: DecodeSession,
    trie: TitleTrie,
    index: Index,
    requests: Sequence[RetrieveRequest],
    cancel: Sequence[CancelToken | None],
    room: Sequence[int | None],
    filters: Sequence[EntityFilter | None] | None = None,
) -> list[Outcome]:
    """Answer requests, each with a seed, by DISC.

    All have one `top_m`, one `adaptive` and one number of prefixes per draw.

    Under a filter the set S of DISC is that of the rows allowed: samples follow the model's distribution over
    them, and the mass is their probability.
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
    results = disc(session, _constraint(trie, filters), params, cancel, room)
    return [
        result
        if isinstance(result, DecodingCancelledError)
        else _disc_answer(index, request, result, allowed)
        for request, result, allowed in zip(requests, results, filters, strict=True)
    ]


def _disc_answer(
    index: Index, request: RetrieveRequest, result: DiscResult, allowed: EntityFilter | None
) -> RetrievalResult:
    tallies: dict[int, Tally] = {}
    for sample in result.samples:
        credit(index, tallies, sample.hypothesis, 1.0 / len(result.samples), allowed)
    answer = RetrievalResult(
        query=request.query,
        method="disc",
        candidates=rank(index, tallies, request.k, by_share=True),
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
    return _or_abstain(request, answer)


def _or_abstain(request: RetrieveRequest, answer: RetrievalResult) -> RetrievalResult:
    """Withhold the candidates of an answer whose mass is below what the request asks for."""
    mass = answer.bounded_mass
    if request.min_mass is None or mass is None or mass >= request.min_mass:
        return answer
    return replace(answer, candidates=(), abstained=True)


def nothing_allowed(request: RetrieveRequest) -> RetrievalResult:
    """Return the answer to a request whose filter allows no entity: known without asking the model."""
    if request.method == "beam":
        return RetrievalResult(request.query, "beam", (), certified=True)
    answer = RetrievalResult(
        query=request.query,
        method="disc",
        candidates=(),
        mass=0.0,
        mass_stderr=0.0,
        mass_lower=0.0,
        mass_upper=0.0,
        seed=request.seed,
    )
    return _or_abstain(request, answer)
