"""Rates that need no labels: how often there is no answer, no title, the same answer again, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from retrieval.evaluation.types import Ranking


def no_match(ranking: Ranking) -> float:
    """Return 1.0 where the method said that nothing answers."""
    return float(not ranking.entities and ranking.error is None)


def invalid(ranking: Ranking) -> float:
    """Return the share of the answers that are no entity of the index."""
    return _share(sum(not entity.is_valid for entity in ranking.entities), ranking)


def invalid_first(ranking: Ranking) -> float:
    """Return 1.0 where the first answer is no entity of the index."""
    return float(bool(ranking.entities) and not ranking.entities[0].is_valid)


def duplicates(ranking: Ranking) -> float:
    """Return the share of the answers that were given before, for the same query."""
    distinct = {entity.entity_id for entity in ranking.entities}
    return _share(len(ranking.entities) - len(distinct), ranking)


def errors(ranking: Ranking) -> float:
    """Return 1.0 where there is no answer because of an error."""
    return float(ranking.error is not None)


RATES: Mapping[str, Callable[[Ranking], float]] = {
    "NO_MATCH": no_match,
    "invalid": invalid,
    "invalid@1": invalid_first,
    "duplicates": duplicates,
    "errors": errors,
}


def _share(number: int, ranking: Ranking) -> float:
    return number / len(ranking.entities) if ranking.entities else 0.0
