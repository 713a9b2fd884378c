"""Checks arguments (text, numbers, sequences), names the item that an error is about, and chooses seeds."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TypeVar

from genret.retrieval.errors import InputError

Item = TypeVar("Item")


@contextmanager
def named(field: str, name: str) -> Iterator[None]:
    """Let an error about `field` in the block name the item of a sequence."""
    try:
        yield
    except InputError as error:
        if error.field != field:
            raise
        raise InputError(name, error.message) from None


def sequence(field: str, value: Item | Iterable[Item], kind: type[Item]) -> list[Item]:
    """Return one item, or a sequence of items, as a list; InputError names an item of another type."""
    if isinstance(value, kind):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise InputError(field, f"must be a {kind.__name__} or a list of them, got {type(value).__name__}")
    items = list(value)
    for i, item in enumerate(items):
        if not isinstance(item, kind):
            raise InputError(f"{field}[{i}]", f"must be a {kind.__name__}, got {type(item).__name__}")
    return items


def check_text(field_name: str, value: object) -> None:
    """Raise InputError for a value that is no text, or has half a surrogate pair, as JSON can."""
    if not isinstance(value, str):
        raise InputError(field_name, f"must be text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            field_name, f"not valid Unicode: half a surrogate pair at character {error.start + 1}"
        ) from None


def check_filled(field_name: str, value: object) -> None:
    """Raise InputError as `check_text` does, and for text that is empty or all white space."""
    check_text(field_name, value)
    if not str(value).strip():
        raise InputError(field_name, "must not be empty")


def integer(field_name: str, value: object, low: int, high: int, when: str = "") -> int:
    """Return an integer in [low, high]; InputError otherwise. `when`: the range's condition, " with ..."."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(field_name, f"must be an integer, got {value!r}")
    found = operator.index(value)  # NumPy's integers too
    if not low <= found <= high:
        raise InputError(field_name, f"must be in [{low}, {high}]{when}, got {found}")
    return found


def number(field_name: str, value: object, low: float, high: float) -> float:
    """Return a number in [low, high]; InputError otherwise, for NaN too."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(field_name, f"must be a number, got {value!r}")
    if not low <= (found := float(value)) <= high:  # also refuses NaN
        raise InputError(field_name, f"must be in [{low:g}, {high:g}], got {value}")
    return found


# Seeds that are chosen here survive JSON readers whose only numbers are doubles.
_SEED_BITS = 53


def new_seed() -> int:
    """Return a seed that nobody can guess."""
    return secrets.randbits(_SEED_BITS)
