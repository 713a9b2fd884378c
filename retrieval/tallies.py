"""What a decoder's rows say about entities: the surface forms found of each, and its share of the samples.

Under a filter only allowed entities are credited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.types import Hypothesis
from retrieval.filters.entity_filter import EntityFilter
from retrieval.index.reader import Index
from retrieval.types import Candidate


def log_sum(logprobs: Sequence[float]) -> float:
    """Return the log of the sum of probabilities; -inf for none."""
    largest = max(logprobs, default=-math.inf)
    if largest == -math.inf:
        return -math.inf
    return largest + math.log(math.fsum(math.exp(v - largest) for v in logprobs))


@dataclass(slots=True)
class Tally:
    """What is known of one entity: its surface forms by rank, and its share of the samples."""

    forms: dict[int, Hypothesis] = field(default_factory=dict)
    share: float = 0.0

    @property
    def logprob(self) -> float:
        """Log-sum-exp over the distinct surface forms found."""
        return log_sum([form.logprob for form in self.forms.values()])

    def best(self, length_penalty: float = 0.0) -> Hypothesis:
        """Return the form with the best score; of equal ones the first in order."""
        return max(self.forms.values(), key=lambda form: (form.score(length_penalty), -form.row))


def entities_of(index: Index, row: int, allowed: EntityFilter | None) -> list[int]:
    """Return the numbers of the entities a row names and the filter allows."""
    entities = index.entities_of(row)
    return entities if allowed is None else [entity for entity in entities if allowed.allowed[entity]]


def count_entities(index: Index, allowed: EntityFilter | None) -> int:
    """Return how many entities there are to be found."""
    return index.num_entities if allowed is None else allowed.num_allowed


def all_entities(index: Index, allowed: EntityFilter | None) -> tuple[int, ...]:
    """Return the numbers of the entities that are to be found, in order."""
    if allowed is None:
        return tuple(range(index.num_entities))
    return tuple(np.flatnonzero(allowed.allowed).tolist())


def credit(
    index: Index,
    tallies: dict[int, Tally],
    hypothesis: Hypothesis,
    share: float,
    allowed: EntityFilter | None,
) -> None:
    """Credit a row to every allowed entity it names; those that share it share the probability equally."""
    entities = entities_of(index, hypothesis.row, allowed)
    for entity in entities:
        tally = tallies.setdefault(entity, Tally())
        tally.forms[hypothesis.row] = hypothesis
        tally.share += share / len(entities)


def order_by_share(tallies: dict[int, Tally]) -> list[int]:
    """Return the entities, those with the largest shares of the samples first, of equal ones the likelier."""
    # Entity numbers break ties, here and below, so that equal scores come out in one order everywhere.
    return sorted(tallies, key=lambda number: (-tallies[number].share, -tallies[number].logprob, number))


def rank_by_share(index: Index, tallies: dict[int, Tally], k: int) -> tuple[Candidate, ...]:
    """Return the k entities with the largest shares of the samples, of equal ones the likelier first."""
    return tuple(
        candidate(index, number, tallies[number], tallies[number].best(), share, share)
        for number in order_by_share(tallies)[:k]
        for share in (tallies[number].share,)
    )


def rank_by_score(
    index: Index,
    tallies: dict[int, Tally],
    k: int,
    score: Callable[[Tally], float],
    length_penalty: float = 0.0,
) -> tuple[Candidate, ...]:
    """Return the k entities with the best scores, each under its best surface form."""
    scores = {number: score(tally) for number, tally in tallies.items()}
    order = sorted(scores, key=lambda number: (-scores[number], number))[:k]
    return tuple(
        candidate(index, number, tallies[number], tallies[number].best(length_penalty), scores[number], None)
        for number in order
    )


def candidate(
    index: Index,
    number: int,
    tally: Tally,
    form: Hypothesis,
    score: float,
    probability: float | None,
    similarity: float | None = None,
) -> Candidate:
    """Return an entity under one of its surface forms."""
    entity = index.entity(number)
    return Candidate(
        entity_id=entity.entity_id,
        title=entity.title,
        surface=index.surface(form.row, number),
        logprob=tally.logprob,
        probability=probability,
        metadata=entity.metadata,
        score=score,
        similarity=similarity,
    )
