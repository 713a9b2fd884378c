"""What rows that were found say about entities: P(e | q) = Σ_f P(f | q) · P(e | f), one entity at a time.

Under a filter only allowed entities share a form, and only they are credited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from decoding.types import Hypothesis
from retrieval.filters.entity_filter import EntityFilter
from retrieval.index.order import best_first
from retrieval.index.owners import Owners, log_or_nothing
from retrieval.index.reader import Index
from retrieval.types import Candidate


def log_sum(logprobs: Sequence[float]) -> float:
    """Return the log of the sum of probabilities; -inf for none."""
    largest = max(logprobs, default=-math.inf)
    if largest == -math.inf:
        return -math.inf
    return largest + math.log(math.fsum(math.exp(v - largest) for v in logprobs))


@dataclass(frozen=True, slots=True)
class OwnForm:
    """A surface form of an entity, as a decoder wrote it.

    Attributes:
        hypothesis: The row and log P(f | q).
        log_share: log P(e | f); -inf where the entity has no share in it.
    """

    hypothesis: Hypothesis
    log_share: float = 0.0

    @property
    def logprob(self) -> float:
        """Log of P(f | q) · P(e | f)."""
        return self.hypothesis.logprob + self.log_share

    def score(self, length_penalty: float) -> float:
        """Return what `logprob` is with a length penalty on the form."""
        return self.hypothesis.score(length_penalty) + self.log_share


@dataclass(slots=True)
class Tally:
    """What is known of one entity: its surface forms by rank, and its share of the samples."""

    forms: dict[int, OwnForm] = field(default_factory=dict)
    share: float = 0.0

    @property
    def logprob(self) -> float:
        """Log P(e | q), from the distinct surface forms found."""
        return log_sum([form.logprob for form in self.forms.values()])

    def best(self, length_penalty: float = 0.0) -> OwnForm:
        """Return the form that says most for the entity; of equal ones the first in order."""
        return max(self.forms.values(), key=lambda form: (form.score(length_penalty), -form.hypothesis.row))


def count_entities(index: Index, allowed: EntityFilter | None) -> int:
    """Return how many entities there are to be found."""
    return index.num_entities if allowed is None else allowed.num_allowed


def all_entities(index: Index, allowed: EntityFilter | None) -> tuple[int, ...]:
    """Return the numbers of the entities that are to be found, in order."""
    if allowed is None:
        return tuple(range(index.num_entities))
    return tuple(np.flatnonzero(allowed.allowed).tolist())


def credit(tallies: dict[int, Tally], hypothesis: Hypothesis, owners: Owners) -> None:
    """Credit a row to its owners, each with its share."""
    for entity, share in zip(*owners, strict=True):
        tally = tallies.setdefault(entity, Tally())
        tally.forms[hypothesis.row] = OwnForm(hypothesis, log_or_nothing(share))


def owners_best_first(index: Index, owners: Owners) -> dict[int, float]:
    """Return P(e | f) of the owners of a form, in the order of `best_first`."""
    shares = dict(zip(*owners, strict=True))
    return {entity: shares[entity] for entity in best_first(index, shares, len(shares))}


def by_share(tallies: Mapping[int, Tally]) -> dict[int, tuple[float, float]]:
    """Return scores by which entities with more of the samples come first, of equal ones the likelier."""
    return {number: (tally.share, tally.logprob) for number, tally in tallies.items()}


def possible(scores: Mapping[int, float]) -> dict[int, float]:
    """Return the scores of entities that have any probability: nothing else is an answer."""
    return {entity: score for entity, score in scores.items() if score > -math.inf}


def candidate(
    index: Index,
    number: int,
    tally: Tally,
    form: OwnForm,
    score: float,
    probability: float | None,
    similarity: float | None = None,
) -> Candidate:
    """Return an entity under one of its surface forms."""
    entity = index.entity(number)
    return Candidate(
        entity_id=entity.entity_id,
        title=entity.title,
        surface=index.surface(form.hypothesis.row, number),
        logprob=tally.logprob,
        probability=probability,
        metadata=entity.metadata,
        score=score,
        similarity=similarity,
    )
