"""The order of entities with scores: the same wherever answers are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby, takewhile
from typing import Any

from retrieval.index.reader import Index


def best_first(index: Index, scores: Mapping[int, Any], k: int) -> list[int]:
    """Return the k entities with the largest scores, the best first.

    Of equal ones the one with the greater weight comes first, then the one whose title comes first, then its
    id: nothing depends on the order of a catalogue's file.
    """
    order = sorted(scores, key=lambda entity: scores[entity], reverse=True)
    if len(order) > k:
        least = scores[order[k - 1]]
        order = list(takewhile(lambda entity: scores[entity] >= least, order))
    groups: Iterable[list[int]] = (list(group) for _, group in groupby(order, key=lambda e: scores[e]))
    return [entity for group in groups for entity in _tied(index, group)][:k]


def _tied(index: Index, entities: list[int]) -> list[int]:
    if len(entities) == 1:
        return entities
    weights = index.weights
    names = index.entities.names(entities)
    ordered = sorted(
        zip(entities, names, strict=True),
        key=lambda pair: (0.0 if weights is None else -weights[pair[0]], pair[1]),
    )
    return [entity for entity, _ in ordered]
