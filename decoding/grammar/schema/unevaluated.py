"""Handlers of `unevaluatedProperties` and `unevaluatedItems`.

Which members and items count as evaluated depends on which branches hold for the value at hand. Every branch
that holds adds to them, never takes away. So instead of asking which branches hold exactly, cases say "at
least these hold, so at least this is evaluated": one case for every set of branches, joined by or. The case
of exactly the branches that hold is among them, and any other that applies asks for more. Nothing is
negated, except for `else`, which counts only where `if` does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from genret.decoding.grammar.compile_options import check_time
from genret.decoding.grammar.errors import UnsupportedSchemaError
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.schema.applicators import both, contains_bounds, either, item_keywords, negated
from genret.decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    Formula,
    Items,
    Place,
    Properties,
    Required,
)
from genret.decoding.grammar.schema.resources import Spot
from genret.decoding.grammar.schema.schema_document import Json, pointer_step
from genret.decoding.grammar.schema.translation import Schema, SchemaScope, Translation, pattern_dfa

MAX_CASES = 16


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """The members or items that have been looked at."""

    everything: bool = False
    names: tuple[str, ...] = ()  # in the order in which they were found
    patterns: frozenset[Dfa] = frozenset()  # names that match
    items: int = 0  # so many first ones
    items_like: frozenset[Formula] = frozenset()

    def joined(self, other: _Evaluated) -> _Evaluated:
        """The union of both."""
        if self.everything or other.everything:
            return _EVERYTHING
        return _Evaluated(
            False,
            tuple(dict.fromkeys(self.names + other.names)),
            self.patterns | other.patterns,
            max(self.items, other.items),
            self.items_like | other.items_like,
        )

    def holds(self, other: _Evaluated) -> bool:
        """Whether the other is a part of this."""
        if self.everything or other.everything:
            return self.everything
        return (
            set(other.names) <= set(self.names)
            and other.patterns <= self.patterns
            and other.items <= self.items
            and other.items_like <= self.items_like
        )


_EVERYTHING = _Evaluated(everything=True)
_NOTHING = _Evaluated()
Case = tuple[Formula, _Evaluated]
"""A condition, and what is evaluated at least where it holds."""
_ALWAYS: Case = (ANYTHING, _NOTHING)


def unevaluated(t: Translation, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> Formula:
    """`unevaluatedProperties` or `unevaluatedItems`."""
    if t.only_texts:
        return ANYTHING
    place = Place(keyword, f"{pointer}/{keyword}")
    rest = t.formula(schema[keyword], place.pointer, scope)
    if rest == ANYTHING:
        return ANYTHING
    parts = []
    for condition, evaluated in _Cases(t, place, keyword).beside(schema, pointer, scope):
        others: Formula = ANYTHING
        if keyword == "unevaluatedItems" and not evaluated.everything:
            allowed = either([*evaluated.items_like, rest], place)
            others = Items((ANYTHING,) * evaluated.items, allowed, place)
        elif not evaluated.everything:
            names = tuple((name, ANYTHING) for name in evaluated.names)
            patterns = tuple((keys, ANYTHING) for keys in evaluated.patterns)
            others = Properties(names, patterns, rest, True, place)
        parts.append(both(condition, others))
    return either(parts, place)


class _Cases:
    """Finds the cases of one `unevaluated...` keyword, which stands at `place`."""

    def __init__(self, t: Translation, place: Place, keyword: str) -> None:
        self._t = t
        self._place = place
        self._keyword = keyword
        self._of_items = keyword == "unevaluatedItems"
        self._following: list[tuple[str, int]] = []

    def beside(self, schema: Schema, pointer: str, scope: SchemaScope) -> list[Case]:
        """The cases of what the neighbours of the keyword evaluate."""
        return self._pruned(self._neighbours(schema, pointer, scope, own=True))

    def _inside(self, schema: Json, pointer: str, scope: SchemaScope) -> list[Case]:
        """The cases of what a schema that is known to hold evaluates."""
        if not isinstance(schema, dict):
            return [_ALWAYS]
        return self._neighbours(schema, pointer, self._t.scope_of(schema, scope), own=False)

    def _neighbours(self, schema: Schema, pointer: str, scope: SchemaScope, *, own: bool) -> list[Case]:
        check_time()
        if "$ref" in schema and scope.dialect.ref_stands_alone:
            return self._followed(schema, "$ref", pointer, scope)
        known = scope.dialect.keywords
        if not own and self._keyword in schema and self._keyword in known:
            return [(ANYTHING, _EVERYTHING)]
        direct = self._items(schema, pointer, scope) if self._of_items else self._members(schema, pointer)
        cases: list[Case] = [(ANYTHING, direct)]
        if direct.everything:
            return cases
        for keyword in schema:
            if keyword in known:
                cases = self._crossed(cases, self._of_keyword(schema, keyword, pointer, scope))
        return cases

    def _of_keyword(self, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> list[Case]:
        """The cases that one keyword makes; none where it evaluates nothing."""
        if keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            return self._followed(schema, keyword, pointer, scope)
        if keyword in ("allOf", "anyOf", "oneOf"):
            read = self._inside if keyword == "allOf" else self._held
            parts = [
                read(inner, f"{pointer}/{keyword}/{n}", scope) for n, inner in enumerate(schema[keyword])
            ]
            if keyword == "oneOf":
                return self._pruned([case for cases in parts for case in cases])
            # Every set of branches may hold; those that evaluate nothing need not be asked.
            return self._product(parts if keyword == "allOf" else [[_ALWAYS, *held] for held in parts])
        if keyword == "if":
            return self._of_if(schema, pointer, scope)
        if keyword in ("dependentSchemas", "dependencies"):
            return self._of_dependent(schema[keyword], keyword, pointer, scope)
        return []

    def _held(self, schema: Json, pointer: str, scope: SchemaScope) -> list[Case]:
        """The cases of a branch, with the condition that it holds."""
        formula = self._formula(schema, pointer, scope)
        cases = [(both(formula, more), evaluated) for more, evaluated in self._inside(schema, pointer, scope)]
        return [case for case in cases if case[0] != NOTHING]

    def _formula(self, schema: Json, pointer: str, scope: SchemaScope) -> Formula:
        """The formula of a branch; by reference where it holds the very keyword that asks for it."""
        step = (pointer, scope.number, scope.outer)
        if step in self._t.open_places:
            resource = self._t.index.embedded.get(id(schema), scope.resource)
            return self._t.reference(Spot(schema, pointer, resource), scope)
        self._t.open_places.add(step)
        try:
            return self._t.formula(schema, pointer, scope)
        finally:
            self._t.open_places.discard(step)

    def _of_if(self, schema: Schema, pointer: str, scope: SchemaScope) -> list[Case]:
        asked = self._held(schema["if"], f"{pointer}/if", scope)
        cases = [_ALWAYS]
        then = self._inside(schema["then"], f"{pointer}/then", scope) if "then" in schema else []
        cases += self._crossed(asked, then)
        if "else" in schema:
            flipped = self._t.flipped(scope)
            refused = negated(self._formula(schema["if"], f"{pointer}/if", flipped), self._place)
            otherwise = self._inside(schema["else"], f"{pointer}/else", scope)
            cases += [(both(refused, more), evaluated) for more, evaluated in otherwise]
        return self._pruned([case for case in cases if case[0] != NOTHING])

    def _of_dependent(self, schemas: Schema, keyword: str, pointer: str, scope: SchemaScope) -> list[Case]:
        parts = []
        for name, inner in schemas.items():
            if isinstance(inner, list):
                continue
            place = f"{pointer}/{keyword}/{pointer_step(name)}"
            there = Required((name,), Place(keyword, place))
            held = [(both(there, more), found) for more, found in self._held(inner, place, scope)]
            parts.append([_ALWAYS, *held])
        return self._product(parts)

    def _followed(self, schema: Schema, keyword: str, pointer: str, scope: SchemaScope) -> list[Case]:
        spot = self._t.referred(schema, keyword, pointer, scope)
        inside = self._t.enter(spot.resource, scope)
        step = (spot.pointer, inside.number)
        if step in self._following:
            reason = "the reference leads back to itself without looking into the value"
            raise UnsupportedSchemaError(keyword, f"{pointer}/{keyword}", reason)
        self._following.append(step)
        cases = self._inside(spot.schema, spot.pointer, inside)
        self._following.pop()
        return cases

    def _members(self, schema: Schema, pointer: str) -> _Evaluated:
        if "additionalProperties" in schema:
            return _EVERYTHING
        patterns = frozenset(
            pattern_dfa(pattern, "patternProperties", f"{pointer}/patternProperties/{pointer_step(pattern)}")
            for pattern in schema.get("patternProperties", ())
        )
        return _Evaluated(names=tuple(schema.get("properties", ())), patterns=patterns)

    def _items(self, schema: Schema, pointer: str, scope: SchemaScope) -> _Evaluated:
        first, rest = item_keywords(schema, scope)
        if rest is not None:
            return _EVERYTHING
        like: frozenset[Formula] = frozenset()
        if "contains" in schema and scope.dialect.contains_evaluates:
            found = self._formula(schema["contains"], f"{pointer}/contains", scope)
            contains_bounds(schema, pointer, scope)
            like = frozenset((found,))
        return _Evaluated(items=len(schema[first]) if first is not None else 0, items_like=like)

    def _product(self, parts: list[list[Case]]) -> list[Case]:
        """Every case of each part with every case of the others."""
        cases = [_ALWAYS]
        for part in parts:
            cases = self._crossed(cases, part)
        return cases

    def _crossed(self, cases: list[Case], others: list[Case]) -> list[Case]:
        """Every case of the one with every case of the other."""
        if not others:
            return cases
        crossed = [(both(one, other), known.joined(more)) for one, known in cases for other, more in others]
        return self._pruned([case for case in crossed if case[0] != NOTHING])

    def _pruned(self, cases: list[Case]) -> list[Case]:
        """Without cases that evaluate no more than one that holds always, and without repetitions."""
        cases = list(dict.fromkeys(cases))
        always = [known for condition, known in cases if condition == ANYTHING]
        kept = [
            (condition, known)
            for condition, known in cases
            if condition == ANYTHING or not any(more.holds(known) for more in always)
        ]
        if len(kept) > MAX_CASES:
            reason = f"what is evaluated depends on the value in more than {MAX_CASES} ways"
            raise UnsupportedSchemaError.at(self._place, reason)
        return kept
