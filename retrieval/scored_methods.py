"""The methods `shortlist` and `auto`: entities that were proposed or decoded, every one scored exactly.

`shortlist` scores what the vectors propose; `auto` scores that and what a decoder found. The candidates of
both have their share in all of their surface forms, so that they can be compared, whoever found them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from retrieval.decoded import Decoded
from retrieval.entity_scorer import Scored
from retrieval.entity_scores import EntityScore, is_proven
from retrieval.filters.entity_filter import EntityFilter
from retrieval.index.reader import Index
from retrieval.methods import or_abstain
from retrieval.request_checks import MAX_SHORTLIST_SIZE
from retrieval.tallies import best_first, candidate, count_entities, possible
from retrieval.types import RetrievalResult, RetrieveRequest

# From entity numbers to how alike each and the query are.
Similarities = Callable[[Sequence[int]], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """The entities that a query is to score, before its decoder has found any.

    Attributes:
        entities: Their numbers.
        similarities: Of those that the vectors proposed, to the query.
        is_everything: Whether these are all entities allowed: then there is nothing to be found.
    """

    entities: tuple[int, ...]
    similarities: dict[int, float]
    is_everything: bool = False


def entities_to_score(proposed: Proposed, decoded: Decoded | None) -> tuple[int, ...]:
    """Return the entities of both: those proposed first, then the best of those decoded."""
    if decoded is None or proposed.is_everything:
        return proposed.entities
    return tuple(dict.fromkeys([*proposed.entities, *decoded.entities[:MAX_SHORTLIST_SIZE]]))


def scored_answer(
    index: Index,
    request: RetrieveRequest,
    allowed: EntityFilter | None,
    proposed: Proposed,
    decoded: Decoded | None,
    scored: Scored,
    similarities: Similarities | None,
) -> RetrievalResult:
    """Return the answer to a request whose entities were scored.

    Args:
        index: An open index.
        request: One for `shortlist` or `auto`.
        allowed: Its filter.
        proposed: What the vectors proposed, or all entities allowed.
        decoded: What the decoder found; None where none was asked.
        scored: The scores of `entities_to_score`.
        similarities: Asked of entities that the vectors did not propose; None where there are no vectors.
    """
    entity_score = EntityScore(request.aggregation == "max", request.length_penalty)
    weight = request.similarity_weight
    known = dict(proposed.similarities)
    scores = possible({number: entity_score.of(tally) for number, tally in scored.tallies.items()})
    if weight:
        _complete(known, list(scores), similarities)
        # Without vectors all are alike, as far as anybody knows.
        scores = {number: score + weight * known.get(number, 0.0) for number, score in scores.items()}
    order = best_first(index, scores, request.k)
    _complete(known, order, similarities)
    candidates = []
    for number in order:
        tally = scored.tallies[number]
        form = tally.best(request.length_penalty)
        probability = math.exp(min(0.0, tally.logprob - scored.logprob))
        candidates.append(
            candidate(index, number, tally, form, scores[number], probability, known.get(number))
        )
    answer = replace(
        _decoded_part(request, proposed, decoded, scored),
        method=request.method,
        candidates=tuple(candidates),
        num_nodes=scored.num_nodes + (0 if decoded is None else decoded.answer.num_nodes),
        num_scored=scored.num_forms,
        shortlist_size=len(proposed.entities),
    )
    if proposed.is_everything:
        return or_abstain(request, replace(answer, certified=scored.is_complete))
    if decoded is None or request.decoding == "disc":
        return or_abstain(request, replace(answer, certified=None))
    if weight or not scored.has_all_listed or len(decoded.entities) > MAX_SHORTLIST_SIZE:
        return replace(answer, certified=False)  # rows that the decoder's bound leaves out were not scored
    num_entities = count_entities(index, allowed)
    proven = is_proven(index, scored.tallies, request.k, entity_score, decoded.unseen, num_entities)
    return replace(answer, certified=proven)


def _complete(known: dict[int, float], entities: Sequence[int], similarities: Similarities | None) -> None:
    """Ask for the similarities of entities that are not known."""
    missing = [number for number in entities if number not in known]
    if missing and similarities is not None:
        known.update(zip(missing, similarities(missing).tolist(), strict=True))


def _decoded_part(
    request: RetrieveRequest, proposed: Proposed, decoded: Decoded | None, scored: Scored
) -> RetrievalResult:
    """Return what of an answer comes from its decoder, and what is known of P_L(S)."""
    probability = math.exp(min(0.0, scored.logprob))
    if proposed.is_everything or decoded is None:
        answer = RetrievalResult(request.query, request.method, (), mass_lower=probability)
        if decoded is not None:
            answer = replace(answer, num_steps=decoded.answer.num_steps)
        if request.decoding != "disc":
            return answer
        # All of S was scored, but for what is longer than the model has room for.
        return replace(
            answer,
            mass=probability,
            mass_stderr=0.0 if scored.is_complete else None,
            mass_upper=probability if scored.is_complete else 1.0,
            seed=request.seed,
        )
    if request.temperature != 1 and request.decoding == "disc":
        return decoded.answer  # its masses are those of another distribution
    # Both bounds are rounded, by different forwards: of a catalogue that has all of the mass they meet.
    upper = 1.0 if decoded.answer.mass_upper is None else decoded.answer.mass_upper
    lower = min(max(decoded.answer.mass_lower or 0.0, probability), upper)
    return replace(decoded.answer, mass_lower=lower)
