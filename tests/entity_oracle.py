"""Entities by brute force: P(e | q) = Σ_f P(f | q) · P(e | f), from the catalogue's texts alone.

Nothing is shared with the library but how an index is read: owners are found by asking every entity for its
forms, and shares are computed as docs/numbers.md derives them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from retrieval.index.reader import Index

TITLE_WEIGHT = 10.0


def owners(index: Index) -> dict[int, dict[int, bool]]:
    """Return row -> entity number -> whether the row is its title, of all rows."""
    found: dict[int, dict[int, bool]] = {}
    for rank in range(index.num_rows):
        for number in index.entities_of(rank):
            entity = index.entity(number)
            own = index.surface(rank, number)
            found.setdefault(rank, {})[number] = own == entity.title
    return found


def shares(
    owners: Mapping[int, bool], weights: Mapping[int, float] | None = None, title_weight: float = TITLE_WEIGHT
) -> dict[int, float]:
    """Return P(e | f) of the owners of one form.

    Args:
        owners: Entity -> whether the form is its title.
        weights: Entity -> weight; None: all 1.
        title_weight: How much more a title counts than an alias.
    """
    weight = {e: 1.0 if weights is None else weights[e] for e in owners}
    if not any(weight.values()):
        weight = dict.fromkeys(owners, 1.0)
    roles = {True: title_weight, False: 1.0}
    members = {role: [e for e in owners if owners[e] is role] for role in roles}
    strength = {role: roles[role] * max((weight[e] for e in members[role]), default=0.0) for role in roles}
    total = sum(strength.values())
    return {
        e: strength[role] / total * weight[e] / sum(weight[other] for other in members[role])
        if strength[role]
        else 0.0
        for e, role in owners.items()
    }


@dataclass(frozen=True)
class EntityOracle:
    """What every entity of an index has, given the log-probability of every row.

    Attributes:
        index: An open index.
        rows: log P(f | q) by rank.
        allowed: Entity numbers that a filter allows; None: all.
        weights: By entity number; None: those of the index.
        title_weight: How much more a title counts than an alias.
    """

    index: Index
    rows: Mapping[int, float]
    allowed: Collection[int] | None = None
    weights: Mapping[int, float] | None = None
    title_weight: float = TITLE_WEIGHT
    log_shares: dict[int, dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weights = self.weights
        if weights is None and self.index.weights is not None:
            weights = dict(enumerate(self.index.weights.tolist()))
        for rank, mine in owners(self.index).items():
            kept = {e: role for e, role in mine.items() if self.allowed is None or e in self.allowed}
            for e, share in shares(kept, weights, self.title_weight).items():
                log_share = math.log(share) if share else -math.inf
                self.log_shares.setdefault(e, {})[rank] = log_share

    @property
    def entities(self) -> list[int]:
        """Those that own a row and are allowed."""
        return sorted(self.log_shares)

    def forms(self, entity: int) -> dict[int, float]:
        """Return log P(f | q) · P(e | f) by row."""
        return {rank: self.rows[rank] + share for rank, share in self.log_shares[entity].items()}

    def logprob(self, entity: int) -> float:
        """Return log P(e | q)."""
        total = math.fsum(math.exp(value) for value in self.forms(entity).values())
        return math.log(total) if total else -math.inf

    def score(self, entity: int, aggregate: str = "sum", length_penalty: float = 0.0) -> float:
        """Return what a beam search orders the entity by."""
        if aggregate == "sum":
            return self.logprob(entity)
        return max(
            self.rows[rank] / len(self.index.row_token_ids(rank)) ** length_penalty + share
            for rank, share in self.log_shares[entity].items()
        )

    def surface(self, entity: int) -> str:
        """Return the form that says most for an entity."""
        forms = self.forms(entity)
        return self.index.surface(max(forms, key=lambda rank: (forms[rank], -rank)), entity)

    @property
    def mass(self) -> float:
        """P_L of the rows that name an allowed entity."""
        ranks = {rank for mine in self.log_shares.values() for rank in mine}
        return math.fsum(math.exp(self.rows[rank]) for rank in ranks)

    def ranking(self, aggregate: str = "sum", length_penalty: float = 0.0) -> list[int]:
        """Return the entities in their order: by score, then weight, then title, then id."""
        weights = self.weights or (
            {} if self.index.weights is None else dict(enumerate(self.index.weights.tolist()))
        )
        scores = {e: self.score(e, aggregate, length_penalty) for e in self.entities}
        return sorted(
            (e for e in scores if scores[e] > -math.inf),
            key=lambda e: (
                -scores[e],
                -weights.get(e, 1.0),
                self.index.entity(e).title,
                self.index.entity(e).entity_id,
            ),
        )

    def by_id(self) -> dict[str, tuple[float, str]]:
        """Return entity id -> (log P(e | q), form that says most for it)."""
        return {
            self.index.entity(e).entity_id: (self.logprob(e), self.surface(e))
            for e in self.entities
            if self.logprob(e) > -math.inf
        }
