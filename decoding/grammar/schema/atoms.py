"""Numbers the atoms of formulas, which are conditions that are not conjunctions, and negates single ones.

Formulas are large immutable trees; hashing them in a loop would cost more than everything else, so they are
told apart by identity, except for the types that most schemas repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from decoding.grammar.errors import UnsupportedSchemaError
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.schema.cases import (
    ALL_NUMBERS,
    ALL_TEXTS,
    ANY_ARRAY,
    ANY_OBJECT,
    LITERALS,
    NO_CASES,
    ArrayCase,
    Cases,
    Conjunction,
    ItemQuota,
    ItemRule,
    MemberQuota,
    MemberRule,
    ObjectCase,
)
from decoding.grammar.schema.formula import (
    NOTHING,
    And,
    Contains,
    Formula,
    ItemCount,
    Items,
    JsonType,
    Not,
    NumberIn,
    Or,
    Place,
    Properties,
    PropertyCount,
    PropertyNames,
    Reference,
    Required,
    TextFromSlot,
    TextIn,
    TypeIs,
    UniqueItems,
)


@dataclass(frozen=True, slots=True, eq=False)
class Negation:
    """Not all of these atoms."""

    of: Conjunction
    place: Place


class Formulas(Protocol):
    """What a schema says, place by place."""

    @property
    def root(self) -> Formula:
        """The formula of the schema as a whole."""

    @property
    def plain_integers(self) -> bool:
        """Whether a number that must be an integer is written without a fraction, as draft 4 has it."""

    def resolve(self, target: str) -> Formula:
        """The formula a `Reference` stands for."""


Atom = Formula | Negation
"""A formula other than `And`, `Not` and `Reference`, or a negation."""


class Atoms:
    """Interns the formulas of one schema.

    Args:
        table: Resolves references.
    """

    __slots__ = (
        "_conjunctions",
        "_kept",
        "_negations",
        "_open_references",
        "_rules",
        "_table",
        "_types",
        "list",
        "nothing",
    )

    def __init__(self, table: Formulas) -> None:
        self._table = table
        self._conjunctions: dict[int, Conjunction] = {}
        self._kept: list[Formula] = []
        self._types: dict[int, Conjunction] = {}
        self._negations: dict[Conjunction, Conjunction] = {}
        self._rules: dict[int, MemberRule | ItemRule] = {}
        self._open_references: dict[str, None] = {}
        self.list: list[Atom] = []
        self.nothing = self.add(NOTHING)

    def add(self, atom: Atom) -> Conjunction:
        """A conjunction of one new atom."""
        self.list.append(atom)
        return (len(self.list) - 1,)

    def conjunction(self, formula: Formula) -> Conjunction:
        """The atoms of a formula, references resolved.

        Raises:
            UnsupportedSchemaError: a reference leads back to itself with nothing in between.
        """
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
        if type(formula) is And:
            return self._all_of(formula.parts)
        if type(formula) is Reference:
            return self._resolved(formula.target)
        if type(formula) is Not:
            return self.negation(self.conjunction(formula.part), formula.place)
        if type(formula) is Or and not formula.parts:
            return self.nothing
        return self.add(formula)

    def _all_of(self, parts: tuple[Formula, ...]) -> Conjunction:
        atoms: list[int] = []
        for part in parts:
            for atom in self.conjunction(part):
                if atom not in atoms:
                    atoms.append(atom)
        return tuple(atoms)

    def _resolved(self, target: str) -> Conjunction:
        if target in self._open_references:
            raise endless(target)
        self._open_references[target] = None
        try:
            return self.conjunction(self._table.resolve(target))
        finally:
            del self._open_references[target]

    def negation(self, of: Conjunction, place: Place) -> Conjunction:
        """What is not in a conjunction."""
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
        """A place to name when the conjunction's scalars stand in the way; of any atom if need be."""
        place: Place | None = None
        for number in conjunction:
            atom = self.list[number]
            if isinstance(atom, NumberIn | TextIn):
                return atom.place
            place = place or getattr(atom, "place", None)
        return place

    def member_rule(self, number: int) -> MemberRule:
        """The rule of a `Properties` or the like."""
        known = self._rules.get(number)
        if known is None:
            known = self._rules[number] = self._member_rule(self.list[number])  # type: ignore[arg-type]
        return known  # type: ignore[return-value]

    def _member_rule(self, formula: Properties) -> MemberRule:
        of = self.conjunction
        return MemberRule(
            {name: of(value) for name, value in formula.named},
            tuple((keys, of(value)) for keys, value in formula.patterns),
            of(formula.additional),
            True,
            formula.says_additional,
            formula.place,
        )

    def item_rule(self, number: int) -> ItemRule:
        """The rule of an `Items`."""
        known = self._rules.get(number)
        if known is None:
            formula: Items = self.list[number]  # type: ignore[assignment]
            prefix = tuple(self.conjunction(part) for part in formula.prefix)
            known = self._rules[number] = ItemRule(prefix, self.conjunction(formula.rest), formula.place)
        return known  # type: ignore[return-value]


def endless(target: str) -> UnsupportedSchemaError:
    """The error for a reference that leads back to itself without a container in between."""
    pointer = "#" + target.partition("#")[2]
    return UnsupportedSchemaError("$ref", pointer, "it refers to itself with no array or object in between")


def negated_atom(atoms: Atoms, number: int, place: Place) -> Cases:
    """What a single condition does not allow; of other types than its own it allows all.

    Args:
        atoms: The schema's.
        number: Of the condition; not a disjunction or negation.
        place: The `not` or the like, for messages.

    Raises:
        UnsupportedSchemaError: it cannot be represented.
    """
    atom = atoms.list[number]
    if isinstance(atom, TypeIs):
        return _other_types(int(JsonType.ANY) & ~int(atom.types))
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
        raise UnsupportedSchemaError(
            place.keyword, place.pointer, "a set outside the schema cannot be negated"
        )
    raise TypeError(f"not a condition: {type(atom).__name__}")


def _other_types(types: int) -> Cases:
    return Cases(
        types & LITERALS,
        ALL_NUMBERS if types & JsonType.NUMBER else None,
        ALL_TEXTS if types & JsonType.STRING else None,
        (),
        (ANY_ARRAY,) if types & JsonType.ARRAY else (),
        (ANY_OBJECT,) if types & JsonType.OBJECT else (),
    )


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
    """Some item is not as it should be."""
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
    atoms: Atoms,
    number: int,
    atom: Properties | Required | PropertyCount | PropertyNames,
    place: Place,
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
    """Some member is not as it should be."""
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
    """Counts that are not in a range."""
    counts: list[tuple[int, int | None]] = []
    if least > 0:
        counts.append((0, least - 1))
    if most is not None:
        counts.append((most + 1, None))
    return counts
