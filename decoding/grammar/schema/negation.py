"""What does not hold: the negation of a single condition, as cases."""

from __future__ import annotations

from decoding.grammar.errors import UnsupportedSchemaError
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.schema.atoms import Atoms
from decoding.grammar.schema.cases import (
    ALL_NUMBERS,
    ALL_TEXTS,
    ANY_ARRAY,
    ANY_OBJECT,
    LITERALS,
    NO_CASES,
    ArrayCase,
    Cases,
    ItemQuota,
    ItemRule,
    MemberQuota,
    MemberRule,
    ObjectCase,
)
from decoding.grammar.schema.formula import (
    Contains,
    ItemCount,
    Items,
    JsonType,
    NumberIn,
    Place,
    Properties,
    PropertyCount,
    PropertyNames,
    Required,
    TextFromHole,
    TextIn,
    TypeIs,
    UniqueItems,
)


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
    if isinstance(atom, TextFromHole):
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
