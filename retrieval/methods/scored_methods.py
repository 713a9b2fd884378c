"""The methods `shortlist` and `auto`: entities that were proposed or decoded, every one scored exactly.

`shortlist` scores what the evidence proposes; `auto` scores that and what a decoder found, in the order of
the index's ranking. Candidates have their share in all of their forms, so all of them can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from genret.retrieval.evidence.evidence import FEATURE_NUMBER, LEAST_LOGPROB, VECTORS, EvidenceQuery
from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.index.owners import best_first
from genret.retrieval.index.reader import Index
from genret.retrieval.methods.decoded_methods import Decoded, or_abstain
from genret.retrieval.methods.scoring import (
    EntityScore,
    Scored,
    candidate,
    count_entities,
    is_proven,
    possible,
)
from genret.retrieval.ranking.ranker import Proposals, Ranker
from genret.retrieval.ranking.rankings import MODEL_PRIOR, Ranking
from genret.retrieval.types import DEFAULT_NUM_RANKED, MAX_SHORTLIST_SIZE, RetrievalResult, RetrieveRequest

_SIMILARITY = FEATURE_NUMBER["vectors.similarity"]


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """The entities that a query is to score, before its decoder has found any.

    `asked` is the query as the evidence sees it, if there is any; without `proposals` all entities allowed
    are scored.
    """

    entities: tuple[int, ...]
    asked: EvidenceQuery | None = None
    proposals: Proposals | None = None

    @property
    def is_everything(self) -> bool:
        """Whether these are all entities allowed, so that no others can be found."""
        return self.proposals is None


class FeatureTable:
    """The features of a query's entities, computed when they are asked for."""

    def __init__(self, ranker: Ranker, proposed: Proposed) -> None:
        self._ranker = ranker
        self._proposed = proposed
        self._rows: dict[int, npt.NDArray[np.float32]] = {}
        if proposed.proposals is not None:
            pairs = zip(proposed.proposals.entities.tolist(), proposed.proposals.features, strict=True)
            self._rows = dict(pairs)

    @property
    def has_similarities(self) -> bool:
        """Whether the query was compared with vectors."""
        asked = self._proposed.asked
        return asked is not None and VECTORS in self._ranker.evidence.kinds and asked.vector is not None

    def of(self, entities: list[int]) -> npt.NDArray[np.float32]:
        """Return the features of some entities. Shape: (len(entities), number of features)."""
        asked = self._proposed.asked
        missing = [entity for entity in entities if entity not in self._rows]
        if missing and asked is not None:
            features = self._ranker.evidence.features(asked, np.array(missing, np.int64))
            self._rows.update(zip(missing, features, strict=True))
        width = len(FEATURE_NUMBER)
        return np.array([self._rows[entity] for entity in entities], np.float32).reshape(len(entities), width)


def entities_to_score(
    request: RetrieveRequest,
    proposed: Proposed,
    decoded: Decoded | None,
    table: FeatureTable,
    ranking: Ranking,
) -> tuple[int, ...]:
    """Return the entities worth scoring: those proposed, then the best of those decoded.

    Where the ranking makes the order, these are the first of it by what the decoder found of each so far. An
    entity that it did not find counts as the worst that it did, or as its prior if that is less.
    """
    if decoded is None or proposed.is_everything:
        return proposed.entities
    every = list(dict.fromkeys([*proposed.entities, *decoded.entities[:MAX_SHORTLIST_SIZE]]))
    most = max(request.k, request.shortlist_size or DEFAULT_NUM_RANKED)
    if not request.is_ranked or len(every) <= most:
        return tuple(every)
    worst = min(decoded.logprobs.values(), default=LEAST_LOGPROB)
    features = table.of(every)
    # Without a prior the feature is 0, which is never the lower one.
    guesses = np.minimum(worst, -features[:, MODEL_PRIOR].astype(np.float64))
    known = [decoded.logprobs.get(entity, guess) for entity, guess in zip(every, guesses, strict=True)]
    scores = ranking.scores(features, known)
    return tuple(every[i] for i in np.argsort(-scores, kind="stable")[:most].tolist())


def scored_answer(
    index: Index,
    request: RetrieveRequest,
    allowed: EntityFilter | None,
    proposed: Proposed,
    decoded: Decoded | None,
    scored: Scored,
    table: FeatureTable,
    ranker: Ranker,
) -> RetrievalResult:
    """Return the answer to a request for `shortlist` or `auto` whose entities were scored.

    `scored` has the scores of `entities_to_score`; `decoded` is None where no decoder was asked.
    """
    entity_score = EntityScore(request.aggregation == "max", request.length_penalty)
    scores = possible({number: entity_score.of(tally) for number, tally in scored.tallies.items()})
    weight = request.similarity_weight
    is_ranked = request.is_ranked and proposed.asked is not None
    ranked, place = None, {number: i for i, number in enumerate(scores)}
    if is_ranked:
        logprobs = [scored.tallies[number].logprob for number in scores]
        ranked = ranker.ranking.rank(table.of(list(scores)), logprobs)
        scores = dict(zip(scores, ranked.scores.tolist(), strict=True))
    elif weight and table.has_similarities:
        similarities = table.of(list(scores))[:, _SIMILARITY].tolist()
        scores = {n: score + weight * s for (n, score), s in zip(scores.items(), similarities, strict=True)}
    order = best_first(index, scores, request.k)
    similarity = table.of(order)[:, _SIMILARITY].tolist() if table.has_similarities and order else None
    candidates = []
    for i, number in enumerate(order):
        tally = scored.tallies[number]
        probability = math.exp(min(0.0, tally.logprob - scored.logprob))
        shares: dict[str, float] = {}
        if ranked is not None:
            probability = float(ranked.probabilities[place[number]])
            shares = ranked.shares_of(place[number])
        form = tally.best(request.length_penalty)
        like = None if similarity is None else similarity[i]
        found = candidate(index, number, tally, form, scores[number], probability, like)
        candidates.append(replace(found, shares=shares))
    answer = replace(
        _decoded_part(request, proposed, decoded, scored),
        method=request.method,
        candidates=tuple(candidates),
        num_nodes=scored.num_nodes + (0 if decoded is None else decoded.answer.num_nodes),
        num_scored=scored.num_forms,
        shortlist_size=len(proposed.entities),
        nothing_fits=None if ranked is None else ranked.nothing,
        missing_evidence=ranker.missing(proposed.asked),
    )
    if is_ranked:
        return or_abstain(request, replace(answer, certified=None))
    if proposed.is_everything:
        return or_abstain(request, replace(answer, certified=scored.is_complete))
    if decoded is None or request.decoding == "disc":
        return or_abstain(request, replace(answer, certified=None))
    if weight or not scored.has_all_listed or len(decoded.entities) > MAX_SHORTLIST_SIZE:
        return replace(answer, certified=False)  # rows outside the decoder's bound were not scored
    num_entities = count_entities(index, allowed)
    proven = is_proven(index, scored.tallies, request.k, entity_score, decoded.unseen, num_entities)
    return replace(answer, certified=proven)


def _decoded_part(
    request: RetrieveRequest, proposed: Proposed, decoded: Decoded | None, scored: Scored
) -> RetrievalResult:
    """Return the decoder's part of an answer, with the known bounds of P_L(S)."""
    probability = math.exp(min(0.0, scored.logprob))
    if proposed.is_everything or decoded is None:
        answer = RetrievalResult(request.query, request.method, (), mass_lower=probability)
        if decoded is not None:
            answer = replace(answer, num_steps=decoded.answer.num_steps)
        if request.decoding != "disc":
            return answer
        # All of S was scored, but for rows longer than the model has room for.
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
