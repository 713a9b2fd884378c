"""Cells to text, and why a cell cannot be one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from retrieval.normalize import find_control, find_surrogate, normalize, resolve_html
from retrieval.rejects import Reason
from retrieval.sources.column_types import Kinds, kind_of_int
from retrieval.sources.columns import LEAVE_OUT
from retrieval.sources.json_lines import json_kind
from retrieval.sources.rows import Cell

_LINE_SPACE = str.maketrans("\t\n\r", "   ")


class Refusal(Exception):  # noqa: N818 - it never leaves the package: it carries a bad row's reason to the row
    """Why a row is bad."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class TypedCell(NamedTuple):
    """Canonical text of a cell, None where it is empty, and its kind."""

    text: str | None
    kind: Kinds


def is_nan(value: Cell) -> bool:
    """Return whether a cell is NaN, which is how Parquet tables without nulls say that a value is missing."""
    return isinstance(value, float) and math.isnan(value)


def value_text(value: str | bytes) -> str:
    """Return the text of a JSON or Parquet string: tabs and line ends in it are white space.

    Raises:
        Refusal: it holds control characters or what is no Unicode text.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise Refusal(Reason.BAD_UTF8, f"byte {error.start + 1} of a value") from None
    if value.isprintable():
        return value
    value = value.translate(_LINE_SPACE)
    control = find_control(value)
    if control is not None:
        raise Refusal(Reason.CONTROL_CHARACTER, control)
    surrogate = find_surrogate(value)
    if surrogate is not None:
        raise Refusal(Reason.BAD_VALUE, f"half of a surrogate pair, {surrogate}")
    return value


def resolved_text(text: str) -> str:
    """Resolve HTML entities; what comes out is under the same rules as any text.

    Raises:
        Refusal: a control character came out, or what is no Unicode text.
    """
    resolved = resolve_html(text) if "&" in text else text
    return resolved if resolved == text else value_text(resolved)


def name_text(value: Cell, field: str) -> str:
    """Return the text of a cell that names something; integers are welcome as ids.

    Raises:
        Refusal: it is neither text nor an integer.
    """
    if value is None or is_nan(value):
        return ""
    if isinstance(value, str | bytes):
        return value_text(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Refusal(Reason.BAD_VALUE, f"{field}: expected a string, got {json_kind(value)}")


def alias_texts(value: Cell, separator: str) -> list[str]:
    """Return the aliases of a cell: a list, or text with separators.

    Raises:
        Refusal: it is neither.
    """
    if isinstance(value, str | bytes):
        return normalize(value_text(value)).split(separator)
    if is_nan(value):
        return []
    if isinstance(value, list):
        return [name_text(item, "aliases") for item in value]
    raise Refusal(Reason.BAD_VALUE, f"aliases: expected a list of strings, got {json_kind(value)}")


def typed_cell(value: Cell, name: str) -> TypedCell:
    """Return the canonical text of a JSON or Parquet cell, and its kind.

    Raises:
        Refusal: it is a list or an object.
    """
    if value is None or is_nan(value):
        return TypedCell(None, Kinds.EMPTY)
    if isinstance(value, str | bytes):
        text = normalize(value_text(value))
        return TypedCell(text, Kinds.STRING) if text else TypedCell(None, Kinds.EMPTY)
    if isinstance(value, bool):
        return TypedCell("true" if value else "false", Kinds.BOOL)
    if isinstance(value, int):
        return TypedCell(str(value), kind_of_int(value))
    if isinstance(value, float):
        return TypedCell(repr(value), Kinds.FLOAT)
    raise Refusal(
        Reason.BAD_VALUE,
        f"{name}: expected a string, number, bool or null, got {json_kind(value)}; {LEAVE_OUT}",
    )


def refuse_wrong_width(row: Sequence[Cell], count: int) -> None:
    """Check the number of cells.

    Raises:
        Refusal: there are too few or too many.
    """
    if len(row) == count:
        return
    if not any(isinstance(cell, str) and cell.strip() for cell in row):
        raise Refusal(Reason.NO_TITLE)
    reason = Reason.TOO_MANY_FIELDS if len(row) > count else Reason.TOO_FEW_FIELDS
    raise Refusal(reason, f"expected {count} fields, got {len(row)}")


def shown(row: Sequence[Cell]) -> str:
    """Return a row as a message shows it."""
    return "\t".join("" if cell is None else str(cell) for cell in row)
