"""Checks arguments (text, numbers, sequences), names the item that an error is about, and chooses seeds."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import TypeVar

from retrieval.errors import InputError

Item = TypeVar("Item")


@contextmanager
def named(field: str, name: str) -> Iterator[None]:
    """Say which item of a sequence an error about `field` concerns."""
    try:
        yield
    except InputError as error:
        raise InputError(name if error.field == field else error.field, error.message) from None


def sequence(field: str, value: Item | Iterable[Item], kind: type[Item]) -> list[Item]:
    """Return one item, or a sequence of items, as a list.

    Raises:
        InputError: it is neither; names the item.
    """
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
    """Refuse what is not text, and text that no tokenizer and no file can take.

    Raises:
        InputError: `value` is no string, or holds half a surrogate pair, as JSON escapes can.
    """
    if not isinstance(value, str):
        raise InputError(field_name, f"must be text, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            field_name, f"not valid Unicode: half a surrogate pair at character {error.start + 1}"
        ) from None


def check_filled(field_name: str, value: object) -> None:
    """Refuse what `check_text` refuses, and text that is empty or all white space.

    Raises:
        InputError: `value` is no such text.
    """
    check_text(field_name, value)
    if not str(value).strip():
        raise InputError(field_name, "must not be empty")


def integer(field_name: str, value: object, low: int, high: int, when: str = "") -> int:
    """Return an integer in [low, high].

    Args:
        field_name: What it is called.
        value: What was given.
        low: The least allowed.
        high: The most allowed.
        when: Where this range holds, if it is another one elsewhere: " with ...".

    Raises:
        InputError: it is none, or out of range.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(field_name, f"must be an integer, got {value!r}")
    found = operator.index(value)  # NumPy's integers too
    if not low <= found <= high:
        raise InputError(field_name, f"must be in [{low}, {high}]{when}, got {found}")
    return found


def number(field_name: str, value: object, low: float, high: float) -> float:
    """Return a number in [low, high].

    Raises:
        InputError: it is none, or out of range; NaN is.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(field_name, f"must be a number, got {value!r}")
    if not low <= (found := float(value)) <= high:  # also refuses NaN
        raise InputError(field_name, f"must be in [{low:g}, {high:g}], got {value}")
    return found


# Seeds that are chosen here survive JSON readers whose only numbers are doubles.
_SEED_BITS = 53


def new_seed() -> int:
    """Return a seed that nobody could have guessed."""
    return secrets.randbits(_SEED_BITS)
