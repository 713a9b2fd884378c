"""Sets of JSON values as alternatives per type: the form between formulas and shapes.

Scalars are closed sets. Arrays and objects are lists of cases, any of which may hold; a case is a conjunction
whose member formulas are not looked into: they are named by `Conjunction`s, tuples of numbers of atoms.

Atoms are conditions that are not conjunctions; `Atoms` numbers those of one schema. Formulas are large
immutable trees; hashing them in a loop would cost more than everything else, so they are told apart by
identity, except for the types that most schemas repeat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from genret.decoding.grammar.errors import SchemaLimitError, UnsupportedSchemaError
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.formula import (
    NOTHING,
    AllOf,
    AnyOf,
    Formula,
    Items,
    JsonType,
    NotOf,
    NumberIn,
    Place,
    Properties,
    Reference,
    TextFromSlot,
    TextIn,
    TypeIs,
)
from genret.decoding.grammar.schema.formula_table import FormulaTable

Thing = TypeVar("Thing")
Closed = TypeVar("Closed", NumberSet, TextSet)

Conjunction = tuple[int, ...]
"""Atoms that all hold; of none: anything."""

LITERALS = int(JsonType.NULL | JsonType.FALSE | JsonType.TRUE)
NUMBER, STRING, ARRAY, OBJECT = (
    int(kind) for kind in (JsonType.NUMBER, JsonType.STRING, JsonType.ARRAY, JsonType.OBJECT)
)
ALL_NUMBERS = NumberSet.of()
ALL_TEXTS = TextSet.of()
MAX_CASES = 2000
"""Most alternatives of one container at one place; past them a schema is refused rather than slow."""


@dataclass(slots=True, eq=False)
class MemberRule:
    """The conditions of one `Properties` on the members of an object. Equal only to itself."""

    named: Mapping[str, Conjunction]  # Values by key, in the schema's order
    patterns: tuple[tuple[Dfa, Conjunction], ...]  # Values by set of keys
    additional: Conjunction  # Value of all other keys
    # Whether it comes from the schema as written, so that its keys count as declared; not from a negation.
    declares: bool
    says_additional: bool  # Whether the schema says something of other keys
    place: Place


@dataclass(slots=True, eq=False)
class ItemRule:
    """The conditions of one `Items`: on the first items and on all others. Equal only to itself."""

    prefix: tuple[Conjunction, ...]
    rest: Conjunction
    place: Place


class ItemQuota(NamedTuple):
    """From item `start` on, `least` to `most` items are as `item` says; None is no bound."""

    start: int
    item: Conjunction
    least: int
    most: int | None
    place: Place


class MemberQuota(NamedTuple):
    """At least one member has a key in `keys` (None: any) and a value as `value` says."""

    keys: TextSet | None
    value: Conjunction
    place: Place


class ArrayCase(NamedTuple):
    """Arrays that obey all of this."""

    rules: tuple[ItemRule, ...] = ()
    least: int = 0
    most: int | None = None
    quotas: tuple[ItemQuota, ...] = ()
    unique: Place | None = None


class ObjectCase(NamedTuple):
    """Objects that obey all of this; `required` in the schema's order, `names` is the set of allowed keys."""

    rules: tuple[MemberRule, ...] = ()
    required: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    names: TextSet | None = None
    quotas: tuple[MemberQuota, ...] = ()


ANY_ARRAY = ArrayCase()
ANY_OBJECT = ObjectCase()


class Cases(NamedTuple):
    """A set of JSON values; None and () stand for no value of a type."""

    literals: int = 0  # Bits of `JsonType` NULL, FALSE and TRUE
    numbers: NumberSet | None = None
    texts: TextSet | None = None
    holes: tuple[TextFromSlot, ...] = ()  # Strings from sets outside the schema, besides `texts`
    arrays: tuple[ArrayCase, ...] = ()  # Alternatives
    objects: tuple[ObjectCase, ...] = ()  # Alternatives


NO_CASES = Cases()
ALL_CASES = Cases(LITERALS, ALL_NUMBERS, ALL_TEXTS, (), (ANY_ARRAY,), (ANY_OBJECT,))


def only_types(cases: Cases, types: int) -> Cases:
    """Those values of a set that are of some types, bits of `JsonType`."""
    if types == JsonType.ANY:
        return cases
    return Cases(
        cases.literals & types,
        cases.numbers if types & NUMBER else None,
        cases.texts if types & STRING else None,
        cases.holes if types & STRING else (),
        cases.arrays if types & ARRAY else (),
        cases.objects if types & OBJECT else (),
    )


def types_of(cases: Cases) -> int:
    """Types that a set has values of, bits of `JsonType`, as far as can be told at sight."""
    types = cases.literals
    types |= NUMBER if cases.numbers is not None else 0
    types |= STRING if cases.texts is not None or cases.holes else 0
    types |= ARRAY if cases.arrays else 0
    return types | (OBJECT if cases.objects else 0)


def least_of(first: int | None, second: int | None) -> int | None:
    """The smaller of two upper bounds; None is no bound."""
    if first is None:
        return second
    return first if second is None or first < second else second


def joined(first: tuple[Thing, ...], second: tuple[Thing, ...]) -> tuple[Thing, ...]:
    """Both at once, as of conjunctions: the things of the first, then those only the second has."""
    if not second or first == second:
        return first
    return tuple(dict.fromkeys(first + second)) if first else second


def both_arrays(first: ArrayCase, second: ArrayCase) -> ArrayCase | None:
    """Arrays of both cases; None where there is surely none."""
    if second is ANY_ARRAY or first is second:
        return first
    if first is ANY_ARRAY:
        return second
    least = max(first.least, second.least)
    most = least_of(first.most, second.most)
    if most is not None and least > most:
        return None
    return ArrayCase(
        joined(first.rules, second.rules),
        least,
        most,
        joined(first.quotas, second.quotas),
        first.unique or second.unique,
    )


def both_objects(first: ObjectCase, second: ObjectCase) -> ObjectCase | None:
    """Objects of both cases; None where there is surely none."""
    if second is ANY_OBJECT or first is second:
        return first
    if first is ANY_OBJECT:
        return second
    least = max(first.least, second.least)
    most = least_of(first.most, second.most)
    required = joined(first.required, second.required)
    if most is not None and (least > most or len(required) > most):
        return None
    names = second.names if first.names is None else first.names
    if first.names is not None and second.names is not None:
        names = first.names & second.names
    rules = joined(first.rules, second.rules)
    return ObjectCase(rules, required, least, most, names, joined(first.quotas, second.quotas))


def both_texts(first: Cases, second: Cases) -> tuple[TextSet | None, tuple[TextFromSlot, ...]]:
    """The strings of both; UnsupportedSchemaError where a set outside the schema meets another condition."""
    texts = both_sets(first.texts, second.texts, ALL_TEXTS)
    if not first.holes and not second.holes:
        return texts, ()
    holes: dict[TextFromSlot, None] = {}
    for one, other in ((first, second), (second, first)):
        for hole in one.holes:
            if other.texts is ALL_TEXTS or any(hole.name == known.name for known in other.holes):
                holes[hole] = None
            elif other.texts is not None or other.holes:
                raise mixed_texts(hole)
    return texts, tuple(holes)


def mixed_texts(hole: TextFromSlot) -> UnsupportedSchemaError:
    """The error for a title slot that other conditions on strings apply to."""
    return UnsupportedSchemaError.at(hole.place, "it cannot be combined with other conditions on strings")


def intersection(first: Cases, second: Cases, place: Place | None) -> Cases:
    """The values of both sets; members of the first come first.

    Raises SchemaLimitError for more than `MAX_CASES` alternatives, which the condition at `place` is blamed
    for, and UnsupportedSchemaError as `both_texts` does.
    """
    if first is ALL_CASES:
        return second
    if second is ALL_CASES:
        return first
    numbers = both_numbers(first.numbers, second.numbers)
    texts, holes = both_texts(first, second)
    if len(first.arrays) * len(second.arrays) + len(first.objects) * len(second.objects) > MAX_CASES:
        raise _too_many(place)
    arrays = {both_arrays(one, other): None for one in first.arrays for other in second.arrays}
    objects = {both_objects(one, other): None for one in first.objects for other in second.objects}
    return Cases(
        first.literals & second.literals,
        numbers,
        texts,
        holes,
        tuple(case for case in arrays if case is not None),
        tuple(case for case in objects if case is not None),
    )


def union(first: Cases, second: Cases, place: Place | None) -> Cases:
    """The values of either set; SchemaLimitError where there are more than `MAX_CASES` alternatives."""
    if first is NO_CASES or second is ALL_CASES:
        return second
    if second is NO_CASES or first is ALL_CASES:
        return first
    arrays, objects = joined(first.arrays, second.arrays), joined(first.objects, second.objects)
    if len(arrays) + len(objects) > MAX_CASES:
        raise _too_many(place)
    return Cases(
        first.literals | second.literals,
        _either(first.numbers, second.numbers, ALL_NUMBERS),
        _either(first.texts, second.texts, ALL_TEXTS),
        joined(first.holes, second.holes),
        (ANY_ARRAY,) if ANY_ARRAY in arrays else arrays,
        (ANY_OBJECT,) if ANY_OBJECT in objects else objects,
    )


def _too_many(place: Place | None) -> SchemaLimitError:
    return SchemaLimitError.at(place, f"it expands to more than {MAX_CASES:,} alternatives")


def both_numbers(first: NumberSet | None, second: NumberSet | None) -> NumberSet | None:
    """The numbers of both sets; None: there are none."""
    return both_sets(first, second, ALL_NUMBERS)


def both_sets(first: Closed | None, second: Closed | None, everything: Closed) -> Closed | None:
    """The values of both sets; None: there are none. `everything` is the object that stands for all."""
    if first is None or second is None or second is everything:
        return first if second is everything else None
    result = second if first is everything or first is second else first & second
    return None if result.is_empty else result


def _either(first: Closed | None, second: Closed | None, everything: Closed) -> Closed | None:
    if first is None or second is everything or first is second:
        return second
    return first if second is None or first is everything else first | second


@dataclass(frozen=True, slots=True, eq=False)
class Negation:
    """Not all of these atoms."""

    of: Conjunction
    place: Place


Atom = Formula | Negation
"""A formula other than `AllOf`, `NotOf` and `Reference`, or a negation."""


class Atoms:
    """Interns the formulas of one schema, whose `table` resolves references."""

    def __init__(self, table: FormulaTable) -> None:
        self._table = table
        self._conjunctions: dict[int, Conjunction] = {}
        self._kept: list[Formula] = []
        self._types: dict[int, Conjunction] = {}
        self._negations: dict[Conjunction, Conjunction] = {}
        self._rules: dict[int, MemberRule | ItemRule] = {}
        self.list: list[Atom] = []
        self.nothing = self.add(NOTHING)

    def add(self, atom: Atom) -> Conjunction:
        """A conjunction of one new atom."""
        self.list.append(atom)
        return (len(self.list) - 1,)

    def conjunction(self, formula: Formula) -> Conjunction:
        """The atoms of a formula, references resolved; raises as `FormulaTable.resolve` does."""
        known = self._conjunctions.get(id(formula))
        if known is None:
            known = self._conjunction(formula)
            self._conjunctions[id(formula)] = known
            self._kept.append(formula)  # so that its id is not used again
        return known

    def _conjunction(self, formula: Formula) -> Conjunction:
        if type(formula) is TypeIs:
            types = int(formula.types)
            known = self._types.get(types)
            if known is None:
                known = self._types[types] = self.add(formula)
            return known
        if type(formula) is AllOf:
            return tuple(dict.fromkeys(chain.from_iterable(map(self.conjunction, formula.parts))))
        if type(formula) is Reference:
            return self.conjunction(self._table.resolve(formula.target))
        if type(formula) is NotOf:
            return self.negation(self.conjunction(formula.part), formula.place)
        if type(formula) is AnyOf and not formula.parts:
            return self.nothing
        return self.add(formula)

    def negation(self, of: Conjunction, place: Place) -> Conjunction:
        """The conjunction of what another one does not hold for."""
        known = self._negations.get(of)
        if known is None:
            known = self._negations[of] = self._negation(of, place)
        return known

    def _negation(self, of: Conjunction, place: Place) -> Conjunction:
        if not of:
            return self.nothing
        if len(of) == 1:
            atom = self.list[of[0]]
            if isinstance(atom, Negation):
                return atom.of
            if of == self.nothing:
                return ()
        return self.add(Negation(of, place))

    def place_of(self, conjunction: Conjunction) -> Place | None:
        """A place to name in messages: of an atom about numbers or strings if there is one, else of any."""
        place: Place | None = None
        for number in conjunction:
            atom = self.list[number]
            if isinstance(atom, NumberIn | TextIn):
                return atom.place
            place = place or getattr(atom, "place", None)
        return place

    def member_rule(self, number: int) -> MemberRule:
        """The rule of a `Properties`."""
        known = self._rules.get(number)
        if known is None:
            formula: Properties = self.list[number]  # type: ignore[assignment]
            of = self.conjunction
            known = self._rules[number] = MemberRule(
                {name: of(value) for name, value in formula.named},
                tuple((keys, of(value)) for keys, value in formula.patterns),
                of(formula.additional),
                True,
                formula.says_additional,
                formula.place,
            )
        return known  # type: ignore[return-value]

    def item_rule(self, number: int) -> ItemRule:
        """The rule of an `Items`."""
        known = self._rules.get(number)
        if known is None:
            formula: Items = self.list[number]  # type: ignore[assignment]
            prefix = tuple(self.conjunction(part) for part in formula.prefix)
            known = self._rules[number] = ItemRule(prefix, self.conjunction(formula.rest), formula.place)
        return known  # type: ignore[return-value]
