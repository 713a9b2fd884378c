"""Cases that contradict themselves at sight, so that products and `oneOf` stay small.

What is found here is surely empty; what is not found may be empty all the same, and the fixpoint over the
finished graph tells. Discriminators are what it is for: a required member with different constants, a
required key that is forbidden, different types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import proxy

from decoding.grammar.errors import SchemaLimitError, UnsupportedSchemaError
from decoding.grammar.regular.number_set import NumberSet
from decoding.grammar.schema.cases import (
    NO_CASES,
    STRING,
    ArrayCase,
    Cases,
    Conjunction,
    MemberQuota,
    ObjectCase,
    both_arrays,
    both_objects,
    joined,
    types_of,
)

if TYPE_CHECKING:
    from decoding.grammar.schema.expansion import Expansion

_DEPTH = 3
"""Containers to look into."""


def member_value(case: ObjectCase, name: str) -> Conjunction:
    """What the member of an object with this key must be, all rules taken together."""
    value: Conjunction = ()
    for rule in case.rules:
        own = rule.named.get(name)
        matched = own is not None
        if own is not None:
            value = joined(value, own)
        for keys, part in rule.patterns:
            if keys.accepts(name):
                value, matched = joined(value, part), True
        if not matched:
            value = joined(value, rule.additional)
    return value


def item_value(case: ArrayCase, index: int) -> Conjunction:
    """What an item of an array must be, all rules taken together."""
    value: Conjunction = ()
    for rule in case.rules:
        value = joined(value, rule.prefix[index] if index < len(rule.prefix) else rule.rest)
    return value


class Conflicts:
    """Looks for contradictions in the cases of one schema.

    Args:
        expansion: Says what member formulas allow.
    """

    __slots__ = ("_empty", "_expansion")

    def __init__(self, expansion: Expansion) -> None:
        # Not held, so that all that was made of a schema goes as soon as it is compiled.
        self._expansion: Expansion = proxy(expansion)
        self._empty: dict[tuple[Conjunction, int], bool] = {}

    def split(self, cases: Cases, other: Cases, context: Cases) -> tuple[Cases, Cases]:
        """Split a set into what is surely apart from another one, and what may have values in common with it.

        Args:
            cases: The set to split.
            other: The other one.
            context: What is known besides of all values.
        """
        numbers, texts = cases.numbers, cases.texts
        common = _common_numbers(numbers, context.numbers)
        shares_numbers = _common_numbers(common, other.numbers) is not None
        shares_strings = _share_strings(cases, other)
        arrays = [case for case in cases.arrays if self._shares_array(case, other, context)]
        objects = [case for case in cases.objects if self._shares_object(case, other, context)]
        literals = cases.literals & other.literals & context.literals
        if not (literals or shares_numbers or shares_strings or arrays or objects):
            return cases, NO_CASES
        shared = Cases(
            literals,
            numbers if shares_numbers else None,
            texts if shares_strings else None,
            cases.holes if shares_strings else (),
            tuple(arrays),
            tuple(objects),
        )
        apart = Cases(
            cases.literals & ~literals,
            None if shares_numbers else numbers,
            None if shares_strings else texts,
            () if shares_strings else cases.holes,
            tuple(case for case in cases.arrays if case not in arrays),
            tuple(case for case in cases.objects if case not in objects),
        )
        return apart, shared

    def _shares_array(self, case: ArrayCase, other: Cases, context: Cases) -> bool:
        for known in context.arrays:
            within = both_arrays(known, case)
            for candidate in other.arrays if within is not None else ():
                array = both_arrays(within, candidate)  # type: ignore[arg-type]
                if array is not None and not self._empty_array(array, _DEPTH):
                    return True
        return False

    def _shares_object(self, case: ObjectCase, other: Cases, context: Cases) -> bool:
        for known in context.objects:
            within = both_objects(known, case)
            for candidate in other.objects if within is not None else ():
                both = both_objects(within, candidate)  # type: ignore[arg-type]
                if both is not None and not self._empty_object(both, _DEPTH):
                    return True
        return False

    def pruned(self, cases: Cases) -> Cases:
        """The same set without the alternatives that contradict themselves."""
        return cases._replace(
            arrays=tuple(case for case in cases.arrays if not self._empty_array(case, _DEPTH)),
            objects=tuple(case for case in cases.objects if not self._empty_object(case, _DEPTH)),
        )

    def _empty_object(self, case: ObjectCase, depth: int) -> bool:
        for name in case.required:
            if case.names is not None and not case.names.accepts(name):
                return True
            if self._empty_value(member_value(case, name), depth):
                return True
        return any(self._empty_quota(case, quota, depth) for quota in case.quotas)

    def _empty_quota(self, case: ObjectCase, quota: MemberQuota, depth: int) -> bool:
        """Whether no key that is left can satisfy a quota."""
        nothing = self._expansion.atoms.nothing
        if not any(rule.additional == nothing and not rule.patterns for rule in case.rules):
            return False
        names = dict.fromkeys(name for rule in case.rules for name in rule.named)
        return all(
            (quota.keys is not None and not quota.keys.accepts(name))
            or self._empty_value(joined(member_value(case, name), quota.value), depth)
            for name in names
        )

    def _empty_array(self, case: ArrayCase, depth: int) -> bool:
        prefix = max((len(rule.prefix) for rule in case.rules), default=0)
        return any(self._empty_value(item_value(case, i), depth) for i in range(min(case.least, prefix + 1)))

    def _empty_value(self, value: Conjunction, depth: int) -> bool:
        """Whether a conjunction allows nothing, as far as this can be told without following recursion."""
        if not value:
            return False
        if self._expansion.atoms.nothing[0] in value:
            return True
        known = self._empty.get((value, depth))
        if known is None:
            try:
                known = self._no_case(self._expansion.cases(value), depth - 1)
            except (UnsupportedSchemaError, SchemaLimitError):
                return False  # not a proof; where the value itself is built, it is refused
            self._empty[value, depth] = known
        return known

    def _no_case(self, cases: Cases, depth: int) -> bool:
        if cases.literals or cases.numbers is not None or cases.texts is not None or cases.holes:
            return False
        if depth == 0:
            return not cases.arrays and not cases.objects
        return all(self._empty_array(case, depth) for case in cases.arrays) and all(
            self._empty_object(case, depth) for case in cases.objects
        )


def _common_numbers(first: NumberSet | None, second: NumberSet | None) -> NumberSet | None:
    """Numbers of both sets; None: there are none."""
    if first is None or second is None:
        return None
    common = first & second
    return None if common.is_empty else common


def _share_strings(first: Cases, second: Cases) -> bool:
    """Whether two sets may have strings in common."""
    if types_of(first) & types_of(second) & STRING == 0:
        return False
    if first.texts is None or second.texts is None or first.holes or second.holes:
        return True
    return not (first.texts & second.texts).is_empty
