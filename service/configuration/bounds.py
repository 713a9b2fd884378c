"""What a field of the configuration may hold, said once beside the field, as `Annotated[int, Bounds(1, 9)]`.

The dataclasses check themselves by it, and the table of settings reads it for flags, files and the manual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from retrieval.errors import InputError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers in [low, high].

    Attributes:
        low: Least value.
        high: Greatest value.
        name: What errors call the field; empty: as the field is called.
    """

    low: float
    high: float
    name: str = ""

    def complaint(self, value: object) -> str | None:
        """Say what is wrong with a value; None if nothing is."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number in {self}, got {value!r}"
        if not math.isfinite(value) or not self.low <= value <= self.high:
            return f"must be in {self}, got {value!r}"
        return None

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}]"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words.

    Attributes:
        words: The words.
        name: What errors call the field; empty: as the field is called.
    """

    words: tuple[str, ...]
    name: str = ""

    def complaint(self, value: object) -> str | None:
        """Say what is wrong with a value; None if nothing is."""
        return None if value in self.words else f"must be {self}, got {value!r}"

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


Rule = Bounds | OneOf


@dataclass(frozen=True, slots=True)
class FieldType:
    """What is declared of a field.

    Attributes:
        type: Its type without None.
        optional: Whether it may be None.
        rule: What its values are held to, if anything.
    """

    type: Any
    optional: bool
    rule: Rule | None


@cache
def fields_of(owner: type) -> Mapping[str, FieldType]:
    """Return what a dataclass declares of its fields, by name."""
    hints = get_type_hints(owner, include_extras=True)
    return MappingProxyType({name: _read(hint) for name, hint in hints.items()})


def check_fields(instance: Any) -> None:
    """Hold every field of a dataclass to its rule.

    Raises:
        InputError: names the first field that breaks it.
    """
    owner: Any = type(instance)
    for name, declared in fields_of(owner).items():
        value = getattr(instance, name)
        if declared.rule is None or (value is None and declared.optional):
            continue
        complaint = declared.rule.complaint(value)
        if complaint is None and declared.type is int and not isinstance(value, int):
            complaint = f"must be a whole number, got {value!r}"
        if complaint is not None:
            raise InputError(declared.rule.name or name, complaint)


def _read(hint: Any) -> FieldType:
    rule: Rule | None = None
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        rule = next((extra for extra in extras if isinstance(extra, Rule)), None)
    members = get_args(hint) if type(None) in get_args(hint) else ()
    if members:
        (hint,) = (member for member in members if member is not type(None))
    return FieldType(hint, bool(members), rule)
