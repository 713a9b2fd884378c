"""Numbers the atoms of formulas, which are conditions that are not conjunctions.

Formulas are large immutable trees; hashing them in a loop would cost more than everything else, so they are
told apart by identity, except for the types that most schemas repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

from genret.decoding.grammar.schema.cases import Conjunction, ItemRule, MemberRule
from genret.decoding.grammar.schema.formula import (
    NOTHING,
    AllOf,
    AnyOf,
    Formula,
    Items,
    NotOf,
    NumberIn,
    Place,
    Properties,
    Reference,
    TextIn,
    TypeIs,
)
from genret.decoding.grammar.schema.formula_table import FormulaTable


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
            return self._all_of(formula.parts)
        if type(formula) is Reference:
            return self.conjunction(self._table.resolve(formula.target))
        if type(formula) is NotOf:
            return self.negation(self.conjunction(formula.part), formula.place)
        if type(formula) is AnyOf and not formula.parts:
            return self.nothing
        return self.add(formula)

    def _all_of(self, parts: tuple[Formula, ...]) -> Conjunction:
        atoms: list[int] = []
        for part in parts:
            for atom in self.conjunction(part):
                if atom not in atoms:
                    atoms.append(atom)
        return tuple(atoms)

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
