"""Formulas: a schema's conditions on JSON values without its syntax, joined by and, or, not.

Every condition but `TypeIs` speaks of values of one type and says nothing about the others, as keywords do.
`Reference` stands for the formula of another place in the schema, so that recursion is a graph. Formulas are
immutable and hashable; equal ones may be treated as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

from genret.decoding.grammar.leaves.leaf import TitleSlotName
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.text_set import TextSet


class JsonType(IntFlag):
    """Types of JSON values; integers are a set of numbers. Booleans are one bit each."""

    NULL = 1
    FALSE = 2
    TRUE = 4
    NUMBER = 8
    STRING = 16
    ARRAY = 32
    OBJECT = 64
    ANY = 127


@dataclass(frozen=True, slots=True)
class Place:
    """The keyword that a condition comes from, for messages, and its pointer: "#/properties/a/minLength"."""

    keyword: str
    pointer: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """All of the parts; of none: anything. Earlier parts say the order of properties."""

    parts: tuple[Formula, ...] = ()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of the parts; of none: nothing."""

    parts: tuple[Formula, ...] = ()
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class ExactlyOne:
    """`oneOf`. The algebra looks for parts that exclude each other before it negates anything."""

    parts: tuple[Formula, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class NotOf:
    """The negation of a formula."""

    part: Formula
    place: Place


@dataclass(frozen=True, slots=True)
class Reference:
    """The formula of another place; `FormulaTable.resolve(target)` returns it. Targets are absolute URIs."""

    target: str


@dataclass(frozen=True, slots=True)
class TypeIs:
    """The value's type is one of these."""

    types: JsonType


@dataclass(frozen=True, slots=True)
class NumberIn:
    """A number is in the set."""

    numbers: NumberSet
    place: Place


@dataclass(frozen=True, slots=True)
class TextIn:
    """A string is in the set."""

    texts: TextSet
    place: Place


@dataclass(frozen=True, slots=True)
class TextFromSlot:
    """A string is a member of a named set."""

    name: TitleSlotName
    place: Place


@dataclass(frozen=True, slots=True)
class Items:
    """The first items obey `prefix` one by one, all others `rest`."""

    prefix: tuple[Formula, ...]
    rest: Formula
    place: Place


@dataclass(frozen=True, slots=True)
class ItemCount:
    """An array has at least `least` and at most `most` items; None is no bound."""

    least: int
    most: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class Contains:
    """Between `least` and `most` items obey `item`; None is no bound."""

    item: Formula
    least: int
    most: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """No two items are equal."""

    place: Place


@dataclass(frozen=True, slots=True)
class Properties:
    """Values of members, by key.

    A key that is named or matches patterns obeys all that apply; any other obeys `additional`.
    """

    named: tuple[tuple[str, Formula], ...]  # By key, in the schema's order
    patterns: tuple[tuple[Dfa, Formula], ...]  # By set of keys, as automata
    additional: Formula  # `AllOf()` where the schema allows anything
    says_additional: bool  # Whether the schema itself says something of such keys
    place: Place


@dataclass(frozen=True, slots=True)
class Required:
    """These keys are there."""

    names: tuple[str, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class PropertyCount:
    """An object has at least `least` and at most `most` members; None is no bound."""

    least: int
    most: int | None
    place: Place


@dataclass(frozen=True, slots=True)
class PropertyNames:
    """Every key is in the set."""

    names: TextSet
    place: Place


Formula = (
    AllOf
    | AnyOf
    | ExactlyOne
    | NotOf
    | Reference
    | TypeIs
    | NumberIn
    | TextIn
    | TextFromSlot
    | Items
    | ItemCount
    | Contains
    | UniqueItems
    | Properties
    | Required
    | PropertyCount
    | PropertyNames
)

ANYTHING = AllOf()
NOTHING = AnyOf()
