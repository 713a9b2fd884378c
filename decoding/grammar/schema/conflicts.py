"""Cases that contradict themselves at sight, so that products and `oneOf` stay small.

What is found here is surely empty; what is not found may be empty all the same, and the fixpoint over the
finished graph tells. Discriminators are what it is for: a required member with different constants, a
required key that is forbidden, different types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.grammar.errors import SchemaLimitError, UnsupportedSchemaError
from decoding.grammar.schema.cases import (
    ARRAY,
    NUMBER,
    OBJECT,
    STRING,
    ArrayCase,
    Cases,
    Conjunction,
    ObjectCase,
    both_arrays,
    both_objects,
    joined,
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
        self._expansion = expansion
        self._empty: dict[tuple[Conjunction, int], bool] = {}

    def overlap(self, first: Cases, second: Cases) -> int:
        """Types of which two sets may have values in common, as bits of `JsonType`."""
        types = first.literals & second.literals
        if first.numbers is not None and second.numbers is not None:
            types |= 0 if (first.numbers & second.numbers).is_empty else NUMBER
        if self._common_strings(first, second):
            types |= STRING
        for one in first.arrays:
            for other in second.arrays:
                array = both_arrays(one, other)
                if array is not None and not self._empty_array(array, _DEPTH):
                    types |= ARRAY
        for left in first.objects:
            for right in second.objects:
                case = both_objects(left, right)
                if case is not None and not self._empty_object(case, _DEPTH):
                    types |= OBJECT
        return types

    def _common_strings(self, first: Cases, second: Cases) -> bool:
        if not ((first.texts or first.holes) and (second.texts or second.holes)):
            return False
        if first.texts is None or second.texts is None or first.holes or second.holes:
            return True
        return not (first.texts & second.texts).is_empty

    def pruned(self, cases: Cases) -> Cases:
        """The same set without the alternatives that contradict themselves."""
        return cases._replace(
            arrays=tuple(case for case in cases.arrays if not self._empty_array(case, _DEPTH)),
            objects=tuple(case for case in cases.objects if not self._empty_object(case, _DEPTH)),
        )

    def _empty_object(self, case: ObjectCase, depth: int) -> bool:
        for name in case.required:
            if case.names is not None and not case.names.automaton().accepts(name):
                return True
            if self._empty_value(member_value(case, name), depth):
                return True
        return False

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
