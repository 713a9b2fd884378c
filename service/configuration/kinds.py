"""The kinds of values that settings have: their bounds, and how they are read from text and TOML.

Bounds stand beside the field, as `Annotated[int, Bounds(1, 9)]`. The dataclasses check themselves by them,
and the table of settings uses them for flags, files and the manual. `Kind.parse` takes the text of a flag or
variable, `read` a value from tomllib. Both raise `WrongValueError`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
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
# A directory or file with a model, or its id on a hub. In a file of settings it is a path relative to that
# file if something is there, or if it begins with a dot.
Checkpoint = Annotated[str, "checkpoint"]


class WrongValueError(ValueError):
    """A value is not of its kind; the text has what was expected and what was got."""


# By type: the placeholder in the help of a flag, and what a value must be, in the manual's words.
_WORDS: Mapping[Any, tuple[str, str]] = {
    bool: ("BOOLEAN", "true or false"),
    int: ("INTEGER", "a whole number"),
    float: ("FLOAT", "a number"),
    str: ("TEXT", "text"),
    Path: ("FILE", "a path"),
    Checkpoint: ("CHECKPOINT", "a checkpoint directory or hub id"),
}
_SWITCH = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True)
_SWITCH |= dict.fromkeys(("0", "false", "f", "no", "n", "off"), False)


@dataclass(frozen=True, slots=True)
class Kind:
    """The values of a field: their type without None, whether None is one, and their rule, if any."""

    type: Any
    optional: bool = False
    rule: Rule | None = None

    @property
    def metavar(self) -> str:
        """Placeholder of the value in the help of a flag."""
        return "WORD" if isinstance(self.rule, OneOf) else _WORDS[self.type][0]

    @property
    def expected(self) -> str:
        """Requirement on a value, in the manual's words."""
        if isinstance(self.rule, OneOf):
            return str(self.rule)
        noun = _WORDS[self.type][1]
        return f"{noun} in {self.rule}" if self.rule else noun

    def parse(self, text: str) -> Any:
        """Return the value that a flag or an environment variable names."""
        if self.type is bool:
            return self._converted(lambda: _SWITCH[text.strip().lower()], text)
        if self.type in (int, float):
            return self.read(self._converted(lambda: self.type(text), text))
        if isinstance(self.rule, OneOf):
            _check(self.rule, text)
        elif not (text if self.type is Path else text.strip()):
            raise WrongValueError("must not be empty")
        elif self.type is str and not text.isprintable():
            raise WrongValueError(f"must be printable text, got {text!r}")
        elif "\0" in text:
            raise WrongValueError(f"a path has no NUL character, got {text!r}")
        return Path(text) if self.type is Path else text

    def read(self, value: object) -> Any:
        """Return the value that stands in a file: a boolean, a number, or what a text names."""
        accepted = {bool: bool, int: int, float: int | float}.get(self.type, str)
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.type is not bool):
            raise WrongValueError(f"must be {self.expected}, got {described(value)}")
        if isinstance(value, str):
            return self.parse(value)
        if self.rule is not None:
            _check(self.rule, value)
        return self.type(value)

    def _converted(self, convert: Callable[[], Any], text: str) -> Any:
        try:
            return convert()
        except (KeyError, ValueError):
            raise WrongValueError(f"must be {self.expected}, got {text!r}") from None

    def located(self, value: Any, folder: Path) -> Any:
        """Return a value with a relative path in it joined to a folder."""
        if self.type is Path:
            return folder / value
        if self.type == Checkpoint:
            dotted = value.split(os.sep, 1)[0] in (os.curdir, os.pardir)
            return str(folder / value) if dotted or (folder / value).exists() else value
        return value


@cache
def fields_of(owner: type) -> Mapping[str, Kind]:
    """Return the kinds of a dataclass's fields, by name."""
    hints = get_type_hints(owner, include_extras=True)
    return MappingProxyType({name: _kind(hint) for name, hint in hints.items()})


def check_fields(instance: Any) -> None:
    """Check every field of a dataclass; raises InputError for the first that breaks its rule."""
    owner: Any = type(instance)
    for name, kind in fields_of(owner).items():
        value = getattr(instance, name)
        if kind.rule is None or (value is None and kind.optional):
            continue
        complaint = kind.rule.complaint(value)
        if complaint is None and kind.type is int and not isinstance(value, int):
            complaint = f"must be a whole number, got {value!r}"
        if complaint is not None:
            raise InputError(kind.rule.name or name, complaint)


def _kind(hint: Any) -> Kind:
    rule: Rule | None = None
    if get_origin(hint) is Annotated and hint != Checkpoint:
        hint, *extras = get_args(hint)
        rule = next((extra for extra in extras if isinstance(extra, Rule)), None)
    members = get_args(hint) if type(None) in get_args(hint) else ()
    if members:
        (hint,) = (member for member in members if member is not type(None))
    return Kind(hint, bool(members), rule)


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


def _check(rule: Rule, value: object) -> None:
    complaint = rule.complaint(value)
    if complaint is not None:
        raise WrongValueError(complaint)
