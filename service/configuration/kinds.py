"""Defines the kinds of values that settings have: their bounds, and the reading of text and TOML.

Bounds stand beside the field, as `Annotated[int, Bounds(1, 9)]`. The dataclasses check themselves by them,
and the table of settings reads them for flags, files and the manual. A kind's `parse` takes the text of a
flag or variable, `read` what tomllib made of a file. Both raise `WrongValueError`, whose text says what was
expected and what was got.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

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


class WrongValueError(ValueError):
    """A value is not of its kind: what was expected, what was got."""


class Kind(Protocol):
    """How values of a setting are read."""

    @property
    def metavar(self) -> str:
        """What stands for the value in the help of a flag."""

    @property
    def expected(self) -> str:
        """What a value must be, as the manual says it."""

    def parse(self, text: str) -> Any:
        """Return the value that a flag or an environment variable names."""

    def read(self, value: object) -> Any:
        """Return the value that stands in a file."""


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    metavar: str = "BOOLEAN"
    expected: str = "true or false"

    def parse(self, text: str) -> bool:
        """Return the value of the usual words: true, false, yes, no, on, off, 1, 0."""
        word = text.strip().lower()
        if word in ("1", "true", "t", "yes", "y", "on"):
            return True
        if word in ("0", "false", "f", "no", "n", "off"):
            return False
        raise WrongValueError(f"must be true or false, got {text!r}")

    def read(self, value: object) -> bool:
        """Return a boolean as it is."""
        if not isinstance(value, bool):
            raise WrongValueError(f"must be true or false, got {described(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    bounds: Bounds
    metavar: str = "INTEGER"

    @property
    def expected(self) -> str:
        """What a value must be."""
        return f"a whole number in {self.bounds}"

    def parse(self, text: str) -> int:
        """Return the number that a text writes in decimal digits."""
        try:
            return self.read(int(text))
        except ValueError as error:
            if isinstance(error, WrongValueError):
                raise
            raise WrongValueError(f"must be {self.expected}, got {text!r}") from None

    def read(self, value: object) -> int:
        """Return a whole number within the bounds."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongValueError(f"must be {self.expected}, got {described(value)}")
        _check(self.bounds, value)
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number, whole or not."""

    bounds: Bounds
    metavar: str = "FLOAT"

    @property
    def expected(self) -> str:
        """What a value must be."""
        return f"a number in {self.bounds}"

    def parse(self, text: str) -> float:
        """Return the number that a text writes."""
        try:
            return self.read(float(text))
        except ValueError as error:
            if isinstance(error, WrongValueError):
                raise
            raise WrongValueError(f"must be {self.expected}, got {text!r}") from None

    def read(self, value: object) -> float:
        """Return a number within the bounds."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongValueError(f"must be {self.expected}, got {described(value)}")
        _check(self.bounds, value)
        return float(value)


@dataclass(frozen=True, slots=True)
class Text:
    """Words that are taken as they are."""

    metavar: str = "TEXT"
    expected: str = "text"

    def parse(self, text: str) -> str:
        """Return the text, which must not be empty."""
        if not text.strip():
            raise WrongValueError("must not be empty")
        if not text.isprintable():
            raise WrongValueError(f"must be printable text, got {text!r}")
        return text

    def read(self, value: object) -> str:
        """Return a text, which must not be empty."""
        return self.parse(_text(value, self.expected))


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words."""

    rule: OneOf
    metavar: str = "WORD"

    @property
    def expected(self) -> str:
        """What a value must be."""
        return str(self.rule)

    def parse(self, text: str) -> str:
        """Return the word."""
        _check(self.rule, text)
        return text

    def read(self, value: object) -> str:
        """Return the word."""
        return self.parse(_text(value, self.expected))


@dataclass(frozen=True, slots=True)
class FilePath:
    """A path of a file or a directory. In a file of settings it is relative to that file."""

    metavar: str = "PATH"
    expected: str = "a path"

    def parse(self, text: str) -> Path:
        """Return the path; whether anything is there is seen when it is opened."""
        if not text:
            raise WrongValueError("must not be empty")
        if "\0" in text:
            raise WrongValueError(f"a path has no NUL character, got {text!r}")
        return Path(text)

    def read(self, value: object) -> Path:
        """Return the path as it stands in the file."""
        return self.parse(_text(value, self.expected))


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """A directory or file with a model, or the id of one on a hub.

    In a file of settings it is a path relative to that file if something is there, or if it begins with
    a dot.
    """

    metavar: str = "CHECKPOINT"
    expected: str = "a checkpoint directory or hub id"

    def parse(self, text: str) -> str:
        """Return the text, which must not be empty."""
        if "\0" in text:
            raise WrongValueError(f"a path has no NUL character, got {text!r}")
        if not text.strip():
            raise WrongValueError("must not be empty")
        return text

    def read(self, value: object) -> str:
        """Return the text as it stands in the file."""
        return self.parse(_text(value, self.expected))


def kind_of(declared: FieldType) -> Kind:
    """Return the kind of values that a field holds."""
    if isinstance(declared.rule, OneOf):
        return Word(declared.rule)
    if declared.type is bool:
        return Switch()
    if declared.type is Path:
        return FilePath()
    if isinstance(declared.rule, Bounds):
        return Whole(declared.rule) if declared.type is int else Number(declared.rule)
    if declared.type is str:
        return Text()
    raise TypeError(f"no kind of setting holds {declared}: numbers need Bounds, words OneOf")


def locate(kind: Kind, value: Any, folder: Path) -> Any:
    """Return a value with what is relative in it taken as relative to a folder."""
    if isinstance(kind, FilePath):
        return folder / value
    if isinstance(kind, CheckpointName):
        place = folder / value
        dotted = value.split(os.sep, 1)[0] in (os.curdir, os.pardir)
        return str(place) if dotted or place.exists() else value
    return value


def described(value: object) -> str:
    """Say what tomllib read, with its type."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return f"the text {value!r}"
        case dict():
            return "a table"
        case list():
            return "an array"
        case _:
            return f"the date or time {value}"


def _check(rule: Bounds | OneOf, value: object) -> None:
    complaint = rule.complaint(value)
    if complaint is not None:
        raise WrongValueError(complaint)


def _text(value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise WrongValueError(f"must be {expected}, got {described(value)}")
    return value
