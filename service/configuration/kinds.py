"""Kinds of values: how one is read from the text of a flag or variable, and from a TOML file.

`parse` takes text, `read` what tomllib made of the file. Both raise `WrongValueError`, whose text says what
was expected and what was got.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service.configuration.bounds import Bounds, FieldType, OneOf


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
class Checkpoint:
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
    if isinstance(kind, Checkpoint):
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
