"""Expands formulas to cases: alternatives per type, whose member formulas are left as they are.

Cases that contradict themselves at sight are left out, so that products and `oneOf` stay small. What is found
so is surely empty; what is not found may be empty all the same, and the fixpoint over the finished graph
tells. Discriminators are what it is for: a required member with different constants, a required key that is
forbidden, different types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.errors import SchemaLimitError, UnsupportedSchemaError
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.cases import (
    ALL_CASES,
    ALL_NUMBERS,
    ALL_TEXTS,
    ANY_ARRAY,
    ANY_OBJECT,
    ARRAY,
    LITERALS,
    NO_CASES,
    NUMBER,
    OBJECT,
    STRING,
    ArrayCase,
    Atoms,
    Cases,
    Conjunction,
    ItemQuota,
    ItemRule,
    MemberQuota,
    MemberRule,
    Negation,
    ObjectCase,
    both_arrays,
    both_numbers,
    both_objects,
    both_sets,
    intersection,
    joined,
    mixed_texts,
    only_types,
    types_of,
    union,
)
from genret.decoding.grammar.schema.formula import (
    AnyOf,
    Contains,
    ExactlyOne,
    ItemCount,
    Items,
    JsonType,
    NumberIn,
    Place,
    Properties,
    PropertyCount,
    PropertyNames,
    Required,
    TextFromSlot,
    TextIn,
    TypeIs,
    UniqueItems,
)
from genret.decoding.grammar.schema.formula_table import FormulaTable

Case = TypeVar("Case", ArrayCase, ObjectCase)
Condition = TypeVar("Condition")


class _Gathered:
    """Conditions that hold at once, none of them a choice: at most one case of each container."""

    def __init__(self, atoms: Atoms, numbers: Iterable[int]) -> None:
        self._atoms = atoms
        self._numbers: dict[type, list[int]] = {}
        for number in numbers:
            self._numbers.setdefault(type(atoms.list[number]), []).append(number)

    def _of(self, kind: type[Condition]) -> list[Condition]:
        return [self._atoms.list[number] for number in self._numbers.get(kind, ())]  # type: ignore[misc]

    def cases(self) -> Cases:
        """The values that all of the conditions allow."""
        types = int(JsonType.ANY)
        for condition in self._of(TypeIs):
            types &= int(condition.types)
        numbers = texts = None
        holes = self._of(TextFromSlot)[:1] if types & STRING else []
        if types & NUMBER:
            numbers = ALL_NUMBERS
            for number_in in self._of(NumberIn):
                numbers = both_numbers(numbers, number_in.numbers)
        if types & STRING:
            texts = ALL_TEXTS
            for text_in in self._of(TextIn):
                texts = both_sets(texts, text_in.texts, ALL_TEXTS)
        if holes:
            if texts is not ALL_TEXTS or any(hole.name != holes[0].name for hole in self._of(TextFromSlot)):
                raise mixed_texts(holes[0])
            texts = None
        return Cases(
            types & LITERALS,
            numbers,
            texts,
            tuple(holes),
            self._arrays() if types & ARRAY else (),
            self._objects() if types & OBJECT else (),
        )

    def _arrays(self) -> tuple[ArrayCase, ...]:
        rules = tuple(map(self._atoms.item_rule, self._numbers.get(Items, ())))
        least, most = _bounds(self._of(ItemCount))
        quotas = tuple(
            ItemQuota(0, self._atoms.conjunction(kind.item), kind.least, kind.most, kind.place)
            for kind in self._of(Contains)
        )
        unique = next((condition.place for condition in self._of(UniqueItems)), None)
        if most is not None and least > most:
            return ()
        case = ArrayCase(rules, least, most, quotas, unique)
        return (ANY_ARRAY if case == ANY_ARRAY else case,)

    def _objects(self) -> tuple[ObjectCase, ...]:
        rules = tuple(map(self._atoms.member_rule, self._numbers.get(Properties, ())))
        required = tuple(dict.fromkeys(name for keys in self._of(Required) for name in keys.names))
        least, most = _bounds(self._of(PropertyCount))
        names = None
        for condition in self._of(PropertyNames):
            names = condition.names if names is None else names & condition.names
        if most is not None and max(least, len(required)) > most:
            return ()
        case = ObjectCase(rules, required, least, most, names)
        return (ANY_OBJECT if case == ANY_OBJECT else case,)


def _bounds(counts: list[ItemCount] | list[PropertyCount]) -> tuple[int, int | None]:
    """The bounds of all counts at once."""
    least = max((count.least for count in counts), default=0)
    return least, min((count.most for count in counts if count.most is not None), default=None)


# Containers to look into for contradictions.
_DEPTH = 3


class Expansion:
    """Turns the formulas of one schema into cases, each conjunction once."""

    __slots__ = ("_empty", "_known", "_open", "atoms")

    def __init__(self, formulas: FormulaTable) -> None:
        self.atoms = Atoms(formulas)
        self._empty: dict[tuple[Conjunction, int], bool] = {}
        self._known: dict[Conjunction, Cases] = {(): ALL_CASES}
        self._open: set[Conjunction] = set()

    def cases(self, conjunction: Conjunction) -> Cases:
        """The values that a conjunction of atoms allows.

        Raises:
            UnsupportedSchemaError: something in it cannot be represented.
            SchemaLimitError: it has too many alternatives.
            CompileTimeoutError: time is up.
        """
        known = self._known.get(conjunction)
        if known is not None:
            return known
        if conjunction in self._open:
            place = self.atoms.place_of(conjunction)
            reason = "it refers to itself with no array or object in between"
            raise UnsupportedSchemaError("$ref", place.pointer if place else "#", reason)
        self._open.add(conjunction)
        try:
            known = self._known[conjunction] = self._expanded(conjunction)
        finally:
            self._open.discard(conjunction)
        return known

    def _expanded(self, conjunction: Conjunction) -> Cases:
        atoms, result = self.atoms, ALL_CASES
        gathered: list[int] = []
        plain = [n for n in conjunction if not isinstance(atoms.list[n], AnyOf | ExactlyOne | Negation)]
        # The cases of a conjunction but for its choices: they may tell choices apart.
        context = _Gathered(atoms, plain).cases() if len(plain) < len(conjunction) else ALL_CASES
        context = ALL_CASES if context == ALL_CASES else context
        for number in conjunction:
            atom = atoms.list[number]
            if not isinstance(atom, AnyOf | ExactlyOne | Negation):
                gathered.append(number)
                continue
            if gathered:
                result = self.both(result, _Gathered(atoms, gathered).cases(), atom.place)
                gathered = []
            result = self.both(result, self._composite((number,), atom, context), atom.place)
        return self.both(result, _Gathered(atoms, gathered).cases(), None) if gathered else result

    def _composite(self, alone: Conjunction, atom: AnyOf | ExactlyOne | Negation, context: Cases) -> Cases:
        """The cases of a disjunction or negation; at least those in which the context holds too."""
        known = self._known.get(alone)
        if known is not None:
            return known
        if isinstance(atom, AnyOf):
            known = self._any_of(atom)
        elif isinstance(atom, ExactlyOne):
            known = self._one_of(atom, context)
        else:
            known = self.negated(atom.of, atom.place, types_of(context))
        if context is ALL_CASES or isinstance(atom, AnyOf):
            self._known[alone] = known
        return known

    def both(self, first: Cases, second: Cases, place: Place | None) -> Cases:
        """The values of both; alternatives that contradict themselves at sight are left out of products."""
        result = intersection(first, second, place)
        if any(len(cases) > 1 for cases in (first.objects, second.objects, first.arrays, second.arrays)):
            check_time()
            return self._pruned(result)
        return result

    def _any_of(self, atom: AnyOf) -> Cases:
        result = NO_CASES
        for part in atom.parts:
            check_time()
            result = union(result, self.cases(self.atoms.conjunction(part)), atom.place)
        return result

    def _one_of(self, atom: ExactlyOne, context: Cases) -> Cases:
        """Union over all parts of: this part, and none of those that overlap it where the context holds."""
        parts = [self.atoms.conjunction(part) for part in atom.parts]
        cases = [self.cases(part) for part in parts]
        result = NO_CASES
        for i, alone in enumerate(cases):
            for j, other in enumerate(cases):
                if i == j:
                    continue
                apart, shared = self._split(alone, other, context)
                if shared is not NO_CASES:
                    others = self.negated(parts[j], atom.place, types_of(shared))
                    alone = union(apart, self.both(shared, others, atom.place), atom.place)
            result = union(result, alone, atom.place)
            check_time()
        return result

    def negated(self, conjunction: Conjunction, place: Place, types: int) -> Cases:
        """The values that a conjunction does not allow, of some types, bits of `JsonType`."""
        result = NO_CASES
        for number in conjunction:
            atom = self.atoms.list[number]
            if isinstance(atom, AnyOf):
                part = self._none_of(atom, place, types)
            elif isinstance(atom, ExactlyOne):
                part = self._not_one_of(atom, place, types)
            elif isinstance(atom, Negation):
                part = only_types(self.cases(atom.of), types)
            else:
                part = only_types(_negated_atom(self.atoms, number, place), types)
            result = union(result, part, place)
        return result

    def _none_of(self, atom: AnyOf | ExactlyOne, place: Place, types: int) -> Cases:
        result = only_types(ALL_CASES, types)
        for part in atom.parts:
            result = self.both(result, self.negated(self.atoms.conjunction(part), place, types), place)
        return result

    def _not_one_of(self, atom: ExactlyOne, place: Place, types: int) -> Cases:
        """The values for which none of the parts hold, or at least two."""
        result = self._none_of(atom, place, types)
        cases = [only_types(self.cases(self.atoms.conjunction(part)), types) for part in atom.parts]
        for i, first in enumerate(cases):
            for second in cases[:i]:
                result = union(result, self.both(first, second, place), place)
        return result

    def _split(self, cases: Cases, other: Cases, context: Cases) -> tuple[Cases, Cases]:
        """Split a set into what is surely apart from `other`, and what may have values in common with it.

        All values are known to be in `context`.
        """
        numbers, texts = cases.numbers, cases.texts
        shares_numbers = both_numbers(both_numbers(numbers, context.numbers), other.numbers) is not None
        shares_strings = _share_strings(cases, other)
        arrays = [
            case
            for case in cases.arrays
            if _overlaps(case, other.arrays, context.arrays, both_arrays, self._empty_array)
        ]
        objects = [
            case
            for case in cases.objects
            if _overlaps(case, other.objects, context.objects, both_objects, self._empty_object)
        ]
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

    def _pruned(self, cases: Cases) -> Cases:
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
        nothing = self.atoms.nothing
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
        if self.atoms.nothing[0] in value:
            return True
        known = self._empty.get((value, depth))
        if known is None:
            try:
                known = self._no_case(self.cases(value), depth - 1)
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


def _negated_atom(atoms: Atoms, number: int, place: Place) -> Cases:
    """The values that a condition, no choice or negation, does not allow; all of other types than its own."""
    atom = atoms.list[number]
    if isinstance(atom, TypeIs):
        return only_types(ALL_CASES, int(JsonType.ANY) & ~int(atom.types))
    if isinstance(atom, NumberIn):
        numbers = ~atom.numbers
        return NO_CASES if numbers.is_empty else Cases(numbers=numbers)
    if isinstance(atom, TextIn):
        texts = ~atom.texts
        return NO_CASES if texts.is_empty else Cases(texts=texts)
    if isinstance(atom, Items | ItemCount | Contains | UniqueItems):
        return Cases(arrays=tuple(_arrays(atoms, number, atom, place)))
    if isinstance(atom, Properties | Required | PropertyCount | PropertyNames):
        return Cases(objects=tuple(_objects(atoms, number, atom, place)))
    if isinstance(atom, TextFromSlot):
        raise UnsupportedSchemaError.at(place, "a set outside the schema cannot be negated")
    raise TypeError(f"not a condition: {type(atom).__name__}")


def _arrays(
    atoms: Atoms, number: int, atom: Items | ItemCount | Contains | UniqueItems, place: Place
) -> list[ArrayCase]:
    if isinstance(atom, Items):
        return _other_items(atoms, number, place)
    if isinstance(atom, ItemCount):
        return [ArrayCase(least=least, most=most) for least, most in _other_counts(atom.least, atom.most)]
    if isinstance(atom, Contains):
        item = atoms.conjunction(atom.item)
        return [
            ArrayCase(quotas=(ItemQuota(0, item, least, most, place),))
            for least, most in _other_counts(atom.least, atom.most)
        ]
    raise UnsupportedSchemaError("uniqueItems", place.pointer, "arrays with equal items cannot be asked for")


def _other_items(atoms: Atoms, number: int, place: Place) -> list[ArrayCase]:
    """The arrays some of whose items are not as they should be."""
    rule = atoms.item_rule(number)
    cases = []
    for i, item in enumerate(rule.prefix):
        other = atoms.negation(item, place)
        if other != atoms.nothing:
            wrong = ItemRule(((),) * i + (other,), (), place)
            cases.append(ArrayCase(rules=(wrong,), least=i + 1))
    other = atoms.negation(rule.rest, place)
    if other == ():
        cases.append(ArrayCase(least=len(rule.prefix) + 1))
    elif other != atoms.nothing:
        quota = ItemQuota(len(rule.prefix), other, 1, None, place)
        cases.append(ArrayCase(least=len(rule.prefix) + 1, quotas=(quota,)))
    return cases


def _objects(
    atoms: Atoms, number: int, atom: Properties | Required | PropertyCount | PropertyNames, place: Place
) -> list[ObjectCase]:
    if isinstance(atom, Properties):
        return _other_members(atoms, number, place)
    if isinstance(atom, Required):
        return [
            ObjectCase(rules=(MemberRule({name: atoms.nothing}, (), (), False, False, place),))
            for name in atom.names
        ]
    if isinstance(atom, PropertyCount):
        return [ObjectCase(least=least, most=most) for least, most in _other_counts(atom.least, atom.most)]
    others = ~atom.names
    return [] if others.is_empty else [ObjectCase(quotas=(MemberQuota(others, (), place),))]


def _other_members(atoms: Atoms, number: int, place: Place) -> list[ObjectCase]:
    """The objects some of whose members are not as they should be."""
    rule = atoms.member_rule(number)
    cases = []
    for name, value in rule.named.items():
        other = atoms.negation(value, place)
        if other == ():
            cases.append(ObjectCase(required=(name,)))
        elif other != atoms.nothing:
            wrong = MemberRule({name: other}, (), (), False, False, place)
            cases.append(ObjectCase(rules=(wrong,), required=(name,)))
    for keys, value in rule.patterns:
        other = atoms.negation(value, place)
        if other != atoms.nothing:
            cases.append(ObjectCase(quotas=(MemberQuota(TextSet.of(automaton=keys), other, place),)))
    other = atoms.negation(rule.additional, place)
    if other != atoms.nothing:
        keys = ~Dfa.of_texts(rule.named)
        for pattern, _ in rule.patterns:
            keys = keys - pattern
        if not keys.is_empty:
            free = TextSet.of(automaton=keys) if rule.named or rule.patterns else None
            cases.append(ObjectCase(quotas=(MemberQuota(free, other, place),)))
    return cases


def _other_counts(least: int, most: int | None) -> list[tuple[int, int | None]]:
    """The ranges of counts beside a range."""
    counts: list[tuple[int, int | None]] = []
    if least > 0:
        counts.append((0, least - 1))
    if most is not None:
        counts.append((most + 1, None))
    return counts


def member_value(case: ObjectCase, name: str) -> Conjunction:
    """The conjunction that the member of an object with this key obeys, all rules taken together."""
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
    """The conjunction that an item of an array obeys, all rules taken together."""
    value: Conjunction = ()
    for rule in case.rules:
        value = joined(value, rule.prefix[index] if index < len(rule.prefix) else rule.rest)
    return value


def _overlaps(
    case: Case,
    others: tuple[Case, ...],
    context: tuple[Case, ...],
    both: Callable[[Case, Case], Case | None],
    is_empty: Callable[[Case, int], bool],
) -> bool:
    """Whether a case may have values in common with one of the others and one of the context."""
    for known in context:
        within = both(known, case)
        for candidate in others if within is not None else ():
            common = both(within, candidate)  # type: ignore[arg-type]
            if common is not None and not is_empty(common, _DEPTH):
                return True
    return False


def _share_strings(first: Cases, second: Cases) -> bool:
    if types_of(first) & types_of(second) & STRING == 0:
        return False
    if first.texts is None or second.texts is None or first.holes or second.holes:
        return True
    return not (first.texts & second.texts).is_empty
