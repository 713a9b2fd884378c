"""Arguments that are one item or many, and errors that say which item they are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
