"""References, and keywords that join schemas."""

from __future__ import annotations

from decoding.grammar.schema.formula import (
    ANYTHING,
    NOTHING,
    And,
    ExactlyOne,
    Formula,
    Not,
    Or,
    Place,
)
from decoding.grammar.schema.translation import Schema, Scope, Translation


def reference(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`$ref`, `$dynamicRef` and `$recursiveRef`."""
    return t.reference(t.referred(schema, keyword, pointer, scope), scope)


def all_of(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`allOf`."""
    parts: list[Formula] = []
    for part in branches(t, schema, keyword, pointer, scope):
        parts += part.parts if isinstance(part, And) else (part,)
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def any_of(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`anyOf`."""
    parts = [part for part in branches(t, schema, keyword, pointer, scope) if part != NOTHING]
    if ANYTHING in parts:
        return ANYTHING
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    return Or(tuple(parts), Place("anyOf", f"{pointer}/anyOf"))


def one_of(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`oneOf`."""
    parts = [part for part in branches(t, schema, keyword, pointer, scope) if part != NOTHING]
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    place = Place("oneOf", f"{pointer}/oneOf")
    if not t.is_inexact:
        return ExactlyOne(tuple(parts), place)
    if scope.outer:
        return Or(tuple(parts), place)
    # A part that does not hold for a text of its format that is not known must not make another part the only
    # one: one holds for sure, and of those that possibly hold there is only one.
    possible = [part for part in branches(t, schema, keyword, pointer, t.flipped(scope)) if part != NOTHING]
    if parts == possible:
        return ExactlyOne(tuple(parts), place)
    return And((Or(tuple(parts), place), ExactlyOne(tuple(possible), place)))


def branches(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> list[Formula]:
    """The formulas of an array of schemas."""
    t.budget.check_time()
    base = f"{pointer}/{keyword}/"
    return [t.formula(inner, f"{base}{n}", scope) for n, inner in enumerate(schema[keyword])]


def negation(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`not`."""
    place = Place("not", f"{pointer}/not")
    return negated(t.formula(schema["not"], place.pointer, t.flipped(scope)), place)


def negated(formula: Formula, place: Place) -> Formula:
    """Not this one."""
    if formula == ANYTHING:
        return NOTHING
    if formula == NOTHING:
        return ANYTHING
    return formula.part if isinstance(formula, Not) else Not(formula, place)


def conditional(t: Translation, schema: Schema, keyword: str, pointer: str, scope: Scope) -> Formula:
    """`if`, `then` and `else`, as two cases that exclude each other."""
    if "then" not in schema and "else" not in schema:
        return ANYTHING
    place = Place("if", f"{pointer}/if")
    asked = t.formula(schema["if"], place.pointer, scope)
    then, otherwise = (
        t.formula(schema[name], f"{pointer}/{name}", scope) if name in schema else ANYTHING
        for name in ("then", "else")
    )
    if then == otherwise:
        return then
    if t.is_inexact:
        refused = negated(t.formula(schema["if"], place.pointer, t.flipped(scope)), place)
    else:
        refused = negated(asked, place)
    cases = [both(asked, then), both(refused, otherwise)]
    cases = [case for case in cases if case != NOTHING]
    return cases[0] if len(cases) == 1 else Or(tuple(cases), place)


def both(one: Formula, other: Formula) -> Formula:
    """Both of two formulas."""
    if one == NOTHING or other == NOTHING:
        return NOTHING
    parts = (
        *(one.parts if isinstance(one, And) else (one,)),
        *(other.parts if isinstance(other, And) else (other,)),
    )
    return parts[0] if len(parts) == 1 else And(parts)
