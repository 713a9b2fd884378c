"""What a decoder's rows say about entities: the surface forms found of each, and its share of the samples.

Under a filter only allowed entities are credited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from decoding.types import Hypothesis
from retrieval.filters.entity_filter import EntityFilter
from retrieval.index.reader import Index
from retrieval.types import Candidate


@dataclass(slots=True)
class Tally:
    """What is known of one entity: its surface forms by rank, and its share of the samples."""

    logprobs: dict[int, float] = field(default_factory=dict)
    share: float = 0.0

    @property
    def logprob(self) -> float:
        """Log-sum-exp over the distinct surface forms found."""
        largest = max(self.logprobs.values())
        return largest + math.log(sum(math.exp(v - largest) for v in self.logprobs.values()))

    @property
    def best_row(self) -> int:
        """The likeliest form found; of equal ones the first in order."""
        return max(self.logprobs, key=lambda row: (self.logprobs[row], -row))


def entities_of(index: Index, row: int, allowed: EntityFilter | None) -> list[int]:
    """Return the numbers of the entities a row names and the filter allows."""
    entities = index.entities_of(row)
    return entities if allowed is None else [entity for entity in entities if allowed.allowed[entity]]


def count_entities(index: Index, allowed: EntityFilter | None) -> int:
    """Return how many entities there are to be found."""
    return index.num_entities if allowed is None else allowed.num_allowed


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
        tally.logprobs[hypothesis.row] = hypothesis.logprob
        tally.share += share / len(entities)


def rank(index: Index, tallies: dict[int, Tally], k: int, by_share: bool) -> tuple[Candidate, ...]:
    """Return the k best entities, by share of the samples or by log-probability alone."""
    # Entity numbers break ties, so that equal scores come out in one order everywhere.
    order = sorted(tallies.items(), key=lambda item: (-item[1].share, -item[1].logprob, item[0]))
    return tuple(
        _candidate(index, number, tally, tally.share if by_share else None) for number, tally in order[:k]
    )


def _candidate(index: Index, number: int, tally: Tally, probability: float | None) -> Candidate:
    entity = index.entity(number)
    return Candidate(
        entity_id=entity.entity_id,
        title=entity.title,
        surface=index.surface(tally.best_row, number),
        logprob=tally.logprob,
        probability=probability,
        metadata=entity.metadata,
    )
