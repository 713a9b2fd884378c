"""Entities by brute force: P(e | q) = Σ_f P(f | q) · P(e | f), from the catalogue's texts alone.

Nothing is shared with the library but how an index is read: owners are found by asking every entity for its
forms, and shares are computed as docs/numbers.md derives them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Self

import numpy as np

from genret.retrieval.filters.entity_filter import EntityFilter
from genret.retrieval.index.reader import Index
from tests.fakes import TableModel

TITLE_WEIGHT = 10.0


def with_weights(index: Index, values: Sequence[float] | None) -> Index:
    """Give an open index weights, as if a metadata column held them; None: it has none.

    Stands in for `build-index --weight-column`, so that one index serves many random weights.
    """
    index._weights = None if values is None else np.array(values, dtype=np.float64)
    return index


@lru_cache(maxsize=64)
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
    """Scores of every entity of an index, given the log-probability of every row.

    Attributes:
        index: An open index.
        rows: log P(f | q) by rank.
        allowed: Entity numbers that a filter allows; None: all.
        title_weight: How much more a title counts than an alias.
        log_shares: Entity -> rank -> log P(e | f), of all allowed entities; made when left empty. It does not
            depend on `rows`: `dataclasses.replace` keeps it.
    """

    index: Index
    rows: Mapping[int, float]
    allowed: Collection[int] | None = None
    title_weight: float = TITLE_WEIGHT
    log_shares: dict[int, dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.log_shares:
            return
        weights = None if self.index.weights is None else self.index.weights.tolist()
        for rank, mine in owners(self.index).items():
            kept = {e: role for e, role in mine.items() if self.allowed is None or e in self.allowed}
            mine_weights = None if weights is None else {e: weights[e] for e in kept}
            for e, share in shares(kept, mine_weights, self.title_weight).items():
                log_share = math.log(share) if share else -math.inf
                self.log_shares.setdefault(e, {})[rank] = log_share

    @classmethod
    def of(
        cls,
        index: Index,
        model: TableModel,
        prompt: Sequence[int],
        allowed: EntityFilter | None = None,
        temperature: float = 1.0,
        **options: Any,
    ) -> Self:
        """Return the oracle of a model behind a prompt."""
        rows = {r: model.logprob(prompt, index.row_token_ids(r), temperature) for r in range(index.num_rows)}
        numbers = None if allowed is None else set(np.flatnonzero(allowed.allowed).tolist())
        return cls(index, rows, numbers, **options)

    @property
    def entities(self) -> list[int]:
        """Allowed entities, ascending."""
        return sorted(self.log_shares)

    def forms(self, entity: int, found: Collection[int] | None = None) -> dict[int, float]:
        """Return log P(f | q) · P(e | f) by row; of the rows `found` alone, unless None."""
        mine = self.log_shares[entity]
        return {r: self.rows[r] + mine[r] for r in mine if found is None or r in found}

    def logprob(self, entity: int, found: Collection[int] | None = None) -> float:
        """Return log P(e | q); a lower bound of it where only some rows are found."""
        total = math.fsum(math.exp(value) for value in self.forms(entity, found).values())
        return math.log(total) if total else -math.inf

    def form_scores(self, entity: int, length_penalty: float = 0.0) -> dict[int, float]:
        """Return row -> score of an entity's form: its logprob under a length penalty, and log P(e | f)."""
        return {
            rank: self.rows[rank] / len(self.index.row_token_ids(rank)) ** length_penalty + share
            for rank, share in self.log_shares[entity].items()
        }

    def score(self, entity: int, aggregate: str = "sum", length_penalty: float = 0.0) -> float:
        """Return the score by which a beam search orders entities."""
        return (
            self.logprob(entity)
            if aggregate == "sum"
            else max(self.form_scores(entity, length_penalty).values())
        )

    def surface(self, entity: int, length_penalty: float = 0.0) -> str:
        """Return an entity's best form; of equal ones the first."""
        forms = self.form_scores(entity, length_penalty)
        return self.index.surface(max(forms, key=lambda rank: (forms[rank], -rank)), entity)

    @property
    def ranks(self) -> set[int]:
        """Rows that name an allowed entity."""
        return {rank for mine in self.log_shares.values() for rank in mine}

    def mass(self, ranks: Iterable[int] | None = None) -> float:
        """Return P_L of rows; None: of those that name an allowed entity."""
        return math.fsum(math.exp(self.rows[rank]) for rank in (self.ranks if ranks is None else ranks))

    def scores(self, aggregate: str = "sum", length_penalty: float = 0.0) -> dict[int, float]:
        """Return entity -> score, of entities of any probability."""
        scores = {e: self.score(e, aggregate, length_penalty) for e in self.entities}
        return {e: score for e, score in scores.items() if score > -math.inf}

    def tie_key(self, entity: int) -> tuple[float, str, str]:
        """Return the key by which entities of one score stand: by weight, then title, then id."""
        weight = 1.0 if self.index.weights is None else float(self.index.weights[entity])
        found = self.index.entity(entity)
        return -weight, found.title, found.entity_id

    def assert_is_ranking(
        self,
        told: Sequence[int],
        k: int,
        aggregate: str = "sum",
        length_penalty: float = 0.0,
        tolerance: float = 1e-9,
    ) -> None:
        """Fail unless `told` are the k best entities in their order.

        Entities whose forms have the same probabilities tie: they stand by `tie_key`. Scores that are equal
        by other sums, or differ by less than the tolerance, may stand either way, as rounding decides.
        """
        scores = self.scores(aggregate, length_penalty)
        best = sorted(scores.values(), reverse=True)[:k]
        assert len(set(told)) == len(told) == len(best)
        assert all(abs(scores[e] - value) <= tolerance for e, value in zip(told, best, strict=True))
        listed = Counter(self._kind(e, scores[e], aggregate) for e in told)
        twins: dict[Any, list[int]] = {}
        for e in scores:
            if (kind := self._kind(e, scores[e], aggregate)) in listed:
                twins.setdefault(kind, []).append(e)
        for kind, mine in twins.items():
            in_order = [e for e in told if self._kind(e, scores[e], aggregate) == kind]
            assert in_order == sorted(mine, key=self.tie_key)[: listed[kind]]

    def _kind(self, entity: int, score: float, aggregate: str) -> tuple[float, ...]:
        """Return what entities have in common that tie exactly."""
        return tuple(sorted(self.forms(entity).values())) if aggregate == "sum" else (score,)

    def id_of(self, entity: int) -> str:
        """Return an entity's id."""
        return self.index.entity(entity).entity_id

    def numbers(self, candidates: Iterable[Any]) -> list[int]:
        """Return the numbers of candidates."""
        return self.index.entities.numbers([c.entity_id for c in candidates]).tolist()
