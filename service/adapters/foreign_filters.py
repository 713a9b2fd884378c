"""Writes filters of Haystack and LlamaIndex as predicates of ours.

Both have truth in two values: a comparison with a missing value is false, and its opposite true. Ours has
three, so negations go down to the comparisons, and a negated one lets missing values pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from genret.retrieval.arguments import not_among
from genret.retrieval.errors import InputError
from genret.retrieval.filters.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    IsNull,
    Literal,
    Membership,
    Not,
    Or,
    Predicate,
    canonical,
)

_OPPOSITES = {"!=": "==", "not in": "in"}
_COMPARISONS = {"==": "=", ">": ">", ">=": ">=", "<": "<", "<=": "<="}
_PREFIX = "meta."
_GROUPS = ("AND", "OR", "NOT")
# Operators of LlamaIndex under other names than Haystack's.
_LLAMA_INDEX = {"nin": "not in"}


def haystack_filter(filters: Mapping[str, Any] | None) -> str | None:
    """Return a filter of Haystack as a predicate; None and an empty one let everything pass.

    Raises:
        InputError: it has an operator or a value that predicates lack, or is no filter; says where.
    """
    return canonical(_predicate(filters, "filters", False)) if filters else None


def llama_index_filter(filters: Any) -> str | None:
    """Return LlamaIndex's `MetadataFilters` as a predicate; None and empty ones let everything pass.

    Raises:
        InputError: they have an operator or a value that predicates lack.
    """
    return haystack_filter(_as_haystack(filters)) if filters is not None and filters.filters else None


def _as_haystack(filters: Any) -> dict[str, Any]:
    if not hasattr(filters, "filters"):
        operator = str(filters.operator.value)
        if filters.value is None:  # to LlamaIndex, nothing equals a missing value
            raise InputError("filters", f"{filters.key!r} {operator} needs a value, got None")
        operator = _LLAMA_INDEX.get(operator, operator)
        return {"field": _PREFIX + filters.key, "operator": operator, "value": filters.value}
    condition = "AND" if filters.condition is None else filters.condition.value.upper()
    conditions = [_as_haystack(one) for one in filters.filters]
    if condition == "NOT":  # none of them holds; of Haystack's: not all of them do
        conditions = [{"operator": "OR", "conditions": conditions}]
    return {"operator": condition, "conditions": conditions}


def _predicate(condition: object, place: str, negated: bool) -> Predicate:
    if not isinstance(condition, Mapping):
        raise InputError(place, f"must be a condition, got {condition!r}")
    needed = ("field", "operator", "value") if "field" in condition else ("operator", "conditions")
    for name in needed:
        if name not in condition:
            raise InputError(place, f"lacks {name!r}; got {dict(condition)!r}")
    if "field" in condition:
        return _test(condition["field"], condition["operator"], condition["value"], place, negated)
    operator, inner = condition["operator"], condition["conditions"]
    if operator not in _GROUPS:
        raise InputError(place, f"operator must be one of {', '.join(_GROUPS)}; got {operator!r}")
    if not isinstance(inner, Sequence) or isinstance(inner, str):
        raise InputError(place, f"conditions must be a list, got {inner!r}")
    negated ^= operator == "NOT"
    parts = tuple(_predicate(one, f"{place}.conditions[{i}]", negated) for i, one in enumerate(inner))
    joins = Or if negated ^ (operator == "OR") else And
    if len(parts) < 2:
        return parts[0] if parts else Constant(joins is And)
    return joins(parts)


def _test(field: object, operator: object, value: Any, place: str, negated: bool) -> Predicate:
    if not isinstance(field, str) or not field.removeprefix(_PREFIX):
        raise InputError(place, f"field must name a column of the index, got {field!r}")
    if isinstance(operator, str) and operator in _OPPOSITES:
        return _test(field, _OPPOSITES[operator], value, place, not negated)
    column = Column("entity_id" if field == "id" else field.removeprefix(_PREFIX))
    found: Predicate
    if operator == "in":
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise InputError(place, f"the operator in needs a list of values, got {value!r}")
        if not value:
            return Constant(negated)
        found = Membership(column, tuple(_literal(one, place) for one in value))
    elif operator == "==" and value is None:
        return Not(IsNull(column)) if negated else IsNull(column)
    elif isinstance(operator, str) and operator in _COMPARISONS:
        found = Comparison(column, _COMPARISONS[operator], _literal(value, place))
    else:
        raise not_among(place, operator, [*_COMPARISONS, "in", *_OPPOSITES], "operator must")
    return Or((Not(found), IsNull(column))) if negated else found


def _literal(value: object, place: str) -> Literal:
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(place, f"value must be text, a finite number, True or False; got {value!r}")
    return Literal(value)
