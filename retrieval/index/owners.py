"""Finds the entities that own a form and how they share its probability, and the rows of an entity.

A language model gives a probability to a string; people mean an entity. Every probability of an entity is
P(e | q) = Σ_f P(f | q) · P(e | f), and the share P(e | f) is computed here alone:

    P(e | f) = strength(role) / Σ strengths · w(e) / Σ w(owners in that role)
    strength(role) = the role's own weight · the largest w among its owners

An owner's role is to have the form as its title (role weight `title_weight`) or as an alias (1); w is the
index's weight of the entity, 1 where it has none. Roles compete by their best owner and not by their number
of owners: the entity titled "Chicago" is meant as often beside twenty railways with the alias "Chicago" as
beside two (docs/numbers.md has the measurement).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genret.retrieval.index.reader import Index

FloatArray = npt.NDArray[np.float64]


class Owners(NamedTuple):
    """The numbers of the entities that own a form, ascending, and P(e | f) of each, which sum to 1."""

    entities: Sequence[int]
    shares: Sequence[float]

    def log_share(self, entity: int) -> float:
        """Return log P(e | f); -inf of an entity that does not own the form, or whose share is 0."""
        at = bisect_left(self.entities, entity)
        if at == len(self.entities) or self.entities[at] != entity:
            return -math.inf
        return log_or_nothing(self.shares[at])


def log_or_nothing(share: float) -> float:
    """Return the natural log of a share; -inf of 0."""
    return math.log(share) if share else -math.inf


class FormOwners:
    """Finds the owners of forms and their shares, for one request.

    Args:
        index: An open index.
        allowed: Which entities may share, by number; None: all. Shape: (num_entities,).
        title_weight: How much more a title counts than an alias, above 0.
    """

    def __init__(self, index: Index, allowed: npt.NDArray[np.bool_] | None, title_weight: float) -> None:
        self._index = index
        self._postings = None if index.is_one_to_one else index.postings
        self._allowed = allowed
        self._title_weight = title_weight

    def __call__(self, row: int) -> Owners:
        """Return the allowed entities that own the form of a row; none where none is allowed."""
        postings, allowed = self._postings, self._allowed
        if postings is None:
            return Owners((row,), (1.0,)) if allowed is None or allowed[row] else Owners((), ())
        begin, end = int(postings.offsets[row]), int(postings.offsets[row + 1])
        entities, forms = postings.entity[begin:end], postings.form[begin:end]
        if allowed is not None:
            kept = allowed[entities]
            entities, forms = entities[kept], forms[kept]
        return form_owners(self._index, entities, forms == 0, self._title_weight)


def form_owners(
    index: Index, entities: npt.NDArray[np.integer[Any]], is_title: npt.NDArray[np.bool_], title_weight: float
) -> Owners:
    """Return the owners of a form with their shares. Shapes: `entities`, ascending, and `is_title` (n,)."""
    if len(entities) < 2:  # nearly always
        return Owners(entities.tolist(), (1.0,) * len(entities))
    shares = shares_by_role(weights_of(index, entities), is_title, np.where(is_title, title_weight, 1.0))
    return Owners(entities.tolist(), shares.tolist())


def weights_of(index: Index, entities: Sequence[int] | npt.NDArray[np.integer[Any]]) -> FloatArray:
    """Return the weights of entities, 1 each in an index without weights. Shape: (len(entities),)."""
    return np.ones(len(entities)) if index.weights is None else index.weights[entities]


def title_owners(index: Index, entities: Sequence[int]) -> Owners:
    """Return the owners of a title among entities with it, ascending: they share it by weight alone."""
    numbers = np.array(entities, dtype=np.int64)
    return form_owners(index, numbers, np.ones(len(numbers), dtype=np.bool_), 1.0)


def shares_by_role(weights: FloatArray, roles: npt.NDArray[np.generic], strengths: FloatArray) -> FloatArray:
    """Share a form among its owners, by their roles and their weights in these.

    Where all weights are 0, all owners count alike.

    Args:
        weights: Weight of each owner, not negative. Shape: (n,), n at least 1.
        roles: Role of each owner, as any value that compares. Shape: (n,).
        strengths: Weight of each owner's role, above 0. Shape: (n,).

    Returns:
        Shares, which sum to 1. Shape: (n,), float64.
    """
    peak = float(weights.max())
    weights = weights / peak if peak else np.ones(len(weights))  # neither overflows nor vanishes
    shares = np.zeros(len(weights))
    for role in np.unique(roles):
        members = roles == role
        mine = weights[members]
        if total := math.fsum(mine):
            shares[members] = strengths[members] * mine.max() * (mine / total)
    return shares / math.fsum(shares)


# Parts of a sort key: the entity above, then whether it is an alias, then the rank, which is below 2**31.
_ENTITY_SHIFT, _ALIAS_SHIFT = 32, 31


class EntityRows:
    """Finds the rows of entities. Safe to use from several threads.

    Where entities have aliases, the postings are inverted on first use: one sort, a quarter of a second for
    eight million of them, and from then on four bytes for each and eight for each entity.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._turned: tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None = None

    def of(self, entity: int) -> list[int]:
        """Return the ranks of the distinct rows of an entity, its title's first."""
        if self._index.is_one_to_one:
            return [entity]
        offsets, ranks = self._postings()
        mine: list[int] = ranks[offsets[entity] : offsets[entity + 1]].tolist()
        return mine

    def of_all(self, entities: Sequence[int], most: int) -> tuple[list[list[int]], bool]:
        """Return the rows of distinct entities, as far as there is space for them.

        Where they have more than `most` rows together, the longest lists are cut to one length, never below
        their title's row.

        Returns:
            rows: Per entity its rows, its title's first.
            is_whole: Whether none was left out.
        """
        rows = [self.of(entity) for entity in entities]
        counts = np.array([len(mine) for mine in rows], dtype=np.int64)
        if counts.sum() <= most:
            return rows, True
        cuts = range(2, int(counts.max()))
        cut = 1 + bisect_right(cuts, most, key=lambda cut: int(np.minimum(counts, cut).sum()))
        return [mine[:cut] for mine in rows], cut == int(counts.max())

    def _postings(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        if self._turned is None:
            index = self._index
            postings = index.postings
            keys = postings.entity.astype(np.int64) << _ENTITY_SHIFT
            keys |= (postings.form > 0).astype(np.int64) << _ALIAS_SHIFT
            keys |= np.repeat(np.arange(index.num_rows, dtype=np.int64), np.diff(postings.offsets))
            keys.sort()
            ranks = (keys & ((1 << _ALIAS_SHIFT) - 1)).astype(np.int32)
            offsets = np.zeros(index.num_entities + 1, dtype=np.int64)
            np.cumsum(index.forms_per_entity, out=offsets[1:])
            self._turned = (offsets, ranks)
        return self._turned


def best_first(index: Index, scores: Mapping[int, Any], k: int) -> list[int]:
    """Return the k entities with the largest scores, the best first.

    Of equal ones the one with the greater weight comes first, then by title, then by id: nothing depends on
    the order of a catalogue's file.
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
