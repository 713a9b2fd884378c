"""The kinds of values that settings have: their bounds, and how they are read from text and TOML.

Bounds stand beside the field, as `Annotated[int, Bounds(1, 9)]`. The dataclasses check themselves by them,
and the table of settings uses them for flags, files and the manual. A kind's `parse` takes the text of a
flag or variable, `read` a value from tomllib. Both raise `WrongValueError`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from genret.retrieval.errors import InputError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers in [low, high]; errors call the field `name`, by default its own name."""

    low: float
    high: float
    name: str = ""

    def complaint(self, value: object) -> str | None:
        """Return what is wrong with a value, if anything."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number in {self}, got {value!r}"
        if not math.isfinite(value) or not self.low <= value <= self.high:
            return f"must be in {self}, got {value!r}"
        return None

    def __str__(self) -> str:
        return f"[{self.low}, {self.high}]"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of `words`; errors call the field `name`, by default its own name."""

    words: tuple[str, ...]
    name: str = ""

    def complaint(self, value: object) -> str | None:
        """Return what is wrong with a value, if anything."""
        return None if value in self.words else f"must be {self}, got {value!r}"

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


Rule = Bounds | OneOf


@dataclass(frozen=True, slots=True)
class FieldType:
    """The declaration of a field: its type without None, whether it may be None, and its rule, if any."""

    type: Any
    optional: bool
    rule: Rule | None


@cache
def fields_of(owner: type) -> Mapping[str, FieldType]:
    """Return the declarations of a dataclass's fields, by name."""
    hints = get_type_hints(owner, include_extras=True)
    return MappingProxyType({name: _read(hint) for name, hint in hints.items()})


def check_fields(instance: Any) -> None:
    """Check every field of a dataclass; raises InputError for the first that breaks its rule."""
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
    """A value is not of its kind; the text has what was expected and what was got."""


class Kind:
    """Base of the kinds of values that settings have.

    Attributes:
        metavar: Placeholder of the value in the help of a flag.
        expected: Requirement on a value, in the manual's words.
    """

    metavar: str
    expected: str

    def parse(self, text: str) -> Any:
        """Return the value that a flag or an environment variable names."""
        raise NotImplementedError

    def read(self, value: object) -> Any:
        """Return the value that stands in a file, by default as text."""
        if not isinstance(value, str):
            raise WrongValueError(f"must be {self.expected}, got {described(value)}")
        return self.parse(value)


class Switch(Kind):
    """True or false; as text also yes, no, on, off, 1, 0."""

    metavar = "BOOLEAN"
    expected = "true or false"

    def parse(self, text: str) -> bool:
        """Return the value of a word."""
        word = text.strip().lower()
        if word in ("1", "true", "t", "yes", "y", "on"):
            return True
        if word in ("0", "false", "f", "no", "n", "off"):
            return False
        raise WrongValueError(f"must be true or false, got {text!r}")

    def read(self, value: object) -> bool:
        """Return a boolean."""
        if not isinstance(value, bool):
            raise WrongValueError(f"must be true or false, got {described(value)}")
        return value


class Number(Kind):
    """A number within bounds, whole or not."""

    metavar = "FLOAT"
    _noun = "a number"
    _type: type[int] | type[float] = float
    _accepted: tuple[type, ...] = (int, float)

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.expected = f"{self._noun} in {bounds}"

    def parse(self, text: str) -> float:
        """Return the number that a text writes."""
        try:
            value = self._type(text)
        except ValueError:
            raise WrongValueError(f"must be {self.expected}, got {text!r}") from None
        return self.read(value)

    def read(self, value: object) -> float:
        """Return a number within the bounds."""
        if isinstance(value, bool) or not isinstance(value, self._accepted):
            raise WrongValueError(f"must be {self.expected}, got {described(value)}")
        _check(self.bounds, value)
        number: Any = value
        return self._type(number)


class Whole(Number):
    """A whole number within bounds."""

    metavar = "INTEGER"
    _noun = "a whole number"
    _type = int
    _accepted = (int,)


class Text(Kind):
    """Printable text that is not empty."""

    metavar = "TEXT"
    expected = "text"

    def parse(self, text: str) -> str:
        """Return the text."""
        if not text.strip():
            raise WrongValueError("must not be empty")
        if not text.isprintable():
            raise WrongValueError(f"must be printable text, got {text!r}")
        return text


class Word(Kind):
    """One of a few words."""

    metavar = "WORD"

    def __init__(self, rule: OneOf) -> None:
        self.rule = rule
        self.expected = str(rule)

    def parse(self, text: str) -> str:
        """Return the word."""
        _check(self.rule, text)
        return text


class FilePath(Kind):
    """A path, in a file of settings relative to that file. Whether anything is there is not checked."""

    metavar = "PATH"
    expected = "a path"

    def parse(self, text: str) -> Path:
        """Return the path."""
        if not text:
            raise WrongValueError("must not be empty")
        _check_no_nul(text)
        return Path(text)


class CheckpointName(Kind):
    """A directory or file with a model, or its id on a hub.

    In a file of settings it is a path relative to that file if something is there, or if it begins with a
    dot.
    """

    metavar = "CHECKPOINT"
    expected = "a checkpoint directory or hub id"

    def parse(self, text: str) -> str:
        """Return the text."""
        _check_no_nul(text)
        if not text.strip():
            raise WrongValueError("must not be empty")
        return text


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
    """Return a value with a relative path in it joined to a folder."""
    if isinstance(kind, FilePath):
        return folder / value
    if isinstance(kind, CheckpointName):
        place = folder / value
        dotted = value.split(os.sep, 1)[0] in (os.curdir, os.pardir)
        return str(place) if dotted or place.exists() else value
    return value


def described(value: object) -> str:
    """Return a value from tomllib with its type, for messages."""
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


def _check_no_nul(text: str) -> None:
    if "\0" in text:
        raise WrongValueError(f"a path has no NUL character, got {text!r}")
