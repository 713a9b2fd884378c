"""Scores of entities from those of their surface forms, and when a list of entities is proven.

A search says of every row it did not list that its score is at most a bound, the *unseen* one. What that
means for an entity depends on how its forms make its score, so both stand here together. As P(e | f) <= 1,
what bounds the probability of a form bounds what it adds to any entity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from retrieval.index.reader import Index
from retrieval.tallies import Tally


@dataclass(frozen=True, slots=True)
class EntityScore:
    """How the surface forms of an entity make its score.

    Attributes:
        takes_best: The score is that of the best form; otherwise it is the log of the forms' probability.
        length_penalty: A form's score is logprob / length ** length_penalty; 0 unless `takes_best`.
    """

    takes_best: bool = False
    length_penalty: float = 0.0

    def of(self, tally: Tally) -> float:
        """Return the score that the forms found give: a lower bound of the entity's own."""
        if not self.takes_best:
            return tally.logprob
        return tally.best(self.length_penalty).score(self.length_penalty)

    def bound(self, known: float, num_missing: int, unseen: float) -> float:
        """Return what the score of an entity is at most.

        Args:
            known: What the forms found give; -inf without any.
            num_missing: Forms that may not have been found.
            unseen: What the score of each of these is at most.
        """
        if num_missing <= 0:
            return known
        if self.takes_best:
            return max(known, unseen)
        return float(np.logaddexp(known, unseen + math.log(num_missing)))


def is_proven(
    index: Index, tallies: dict[int, Tally], k: int, score: EntityScore, unseen: float, num_entities: int
) -> bool:
    """Whether the k best entities are known, in their order, counting every surface form.

    An entity stands where it does when its score, from the forms that were found, is at least what any entity
    behind it has, and more than what one may have of which a form was not found: an equal score might belong
    in front of it, by weight or title (`retrieval.tallies.best_first`). Forms that were not found only add to
    a score, so nothing else has to be known of those in front. It holds under a filter as it does without: an
    allowed entity makes every row it has allowed, so that none of its forms is out of reach, and what bounds
    the rows not seen bounds those.

    Args:
        index: Knows how many surface forms an entity has.
        tallies: The entities found.
        k: Entities wanted.
        score: How forms make a score.
        unseen: No row that was not found has a better score.
        num_entities: How many there are to be found.
    """
    if unseen == -math.inf:
        return True
    scores = {entity: score.of(tally) for entity, tally in tallies.items()}
    missing = {e: int(index.forms_per_entity[e]) - len(tally.forms) for e, tally in tallies.items()}
    # Of equal scores those that may still grow stand last, so that the others are compared with their bounds.
    order = sorted(scores, key=lambda entity: (-scores[entity], missing[entity] > 0))
    if len(order) < min(k, num_entities) or scores[order[min(k, len(order)) - 1]] == -math.inf:
        return False
    # Upper bound of everything behind a position that is not known exactly, from the end of the list upwards.
    behind = -math.inf
    if len(order) < num_entities:
        behind = score.bound(-math.inf, index.max_forms, unseen)
    for position in range(len(order) - 1, -1, -1):
        entity = order[position]
        if position < k and scores[entity] <= behind:
            return False
        if missing[entity] > 0:
            behind = max(behind, score.bound(scores[entity], missing[entity], unseen))
    return True
