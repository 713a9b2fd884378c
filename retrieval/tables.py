"""Shows results and reports: short reprs, tables for notebooks, plain values, Arrow tables, pandas frames.

All of it is made of the fields of the classes, which name those that matter most (`Shown`). Names are those
of the HTTP API: a field that messages call otherwise says so where it is declared (`wire_name`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from html import escape
from numbers import Integral, Real
from operator import attrgetter
from pathlib import PurePath
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin, get_type_hints

from genret.retrieval.errors import InputError, require_package

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_HEAD_CHARS, _LINE_CHARS, _TEXT_CHARS = 180, 110, 60  # of a repr: of its first line, others, and a text
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_HTML_ROWS, _CELL_CHARS = 50, 200  # of a table in a notebook; of a cell of it


def wire_name(name: str) -> dict[str, str]:
    """Return the metadata of a dataclass's field that messages call otherwise."""
    return {"wire": name}


@cache
def wire_names(kind: Any) -> Mapping[str, str]:
    """Return what messages call the fields of a dataclass, by the names of the fields."""
    return {one.name: one.metadata.get("wire", one.name) for one in fields(kind)}


def plain(value: Any) -> Any:
    """Return a value as JSON has it: objects, lists, texts, numbers; NaN and infinities are None.

    TypeError for what JSON has nothing for.
    """
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        return {wire: plain(getattr(value, name)) for name, wire in wire_names(kind).items()}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is no value of JSON")


class Shown:
    """A value that shows itself in few lines, in a notebook as a table, and to programs as plain values.

    `_told` names the attributes that matter, `_rows` the one that holds the rows of its table, and
    `_has_ranks` says whether these are numbered from 1.
    """

    __slots__ = ()
    _told: ClassVar[tuple[str, ...]] = ()
    _rows: ClassVar[str] = ""
    _has_ranks: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Return all that it holds as values that JSON has, by the names of the HTTP API.

        NaN and infinities are None. Candidates have their `rank`, from 1.
        """
        if not is_dataclass(self):
            return dict(_facts(self))
        found: dict[str, Any] = plain(self)
        if self._rows in found:
            found[self._rows] = _shown_rows(self)
        return found

    def __repr__(self) -> str:
        rows = attrgetter(self._rows)(self) if self._rows else ()
        told = [f"{name}={_short(value)}" for name, value in _facts(self)]
        if self._rows:
            noun = self._rows.rpartition(".")[2]
            told.append(f"{len(rows)} {noun.removesuffix('s') if len(rows) == 1 else noun}")
        lines = [_clipped(f"{type(self).__name__}({', '.join(told)}", _HEAD_CHARS)]
        for number, row in enumerate(rows[:2], start=1):
            facts = _facts(row) if isinstance(row, Shown) else plain(row).items()
            line = f"  {number}: " + ", ".join(f"{name} {_short(value)}" for name, value in facts)
            lines.append(_clipped(line, _LINE_CHARS))
        return "\n".join(lines) + ")"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the rows, or names and values where there are none."""
        rows = _shown_rows(self)
        if self._rows:
            told = [f"{name}: {_short(value)}" for name, value in _facts(self)]
            names = [name for name in rows[0] if any(row[name] not in _EMPTY for row in rows)] if rows else []
            cells = [[row[name] for name in names] for row in rows[:_HTML_ROWS]]
            more = len(rows) - len(cells)
            told += [f"{more:,} more rows"] if more else [] if rows else [f"no {self._rows}"]
        else:
            told, names = [], ["", ""]
            cells = [[name, value] for name, value in self.to_dict().items()]
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in cells)
        caption = escape(", ".join([type(self).__name__, *told]))
        return (
            f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


class Tabular(Shown):
    """A result that is also an Arrow table: a row per candidate, or one row where a result has no list.

    `_shared` names the fields that every row repeats.
    """

    __slots__ = ()
    _shared: ClassVar[tuple[str, ...]] = ("query",)

    def to_arrow(self) -> pa.Table:
        """Return a table of `arrow_schema(type(self))`, with no row where nothing matched."""
        return to_arrow([self])

    def to_pandas(self) -> pd.DataFrame:
        """Return `to_arrow` as a pandas frame; MissingExtraError where pandas is not installed."""
        return to_pandas([self])


def to_arrow(results: Any) -> pa.Table:
    """Return one Arrow table of results of one kind, of one or many queries.

    Args:
        results: A result, or an iterable of results or of a client's replies. Of an empty one the columns are
            those of retrieval.

    Returns:
        A table of the schema `arrow_schema` of the results' class. Metadata are JSON text in it.

    Raises:
        InputError: an item is no result, or results of several kinds stand together.
    """
    return _arrow_table(*_rows_of(results))


def to_pandas(results: Any) -> pd.DataFrame:
    """Return `to_arrow` as one pandas frame; metadata, shares and lists are objects, as of `to_dict`.

    Raises:
        InputError: as of `to_arrow`.
        MissingExtraError: pandas is not installed.
    """
    require_package("pandas", "pandas")
    import pandas as pd
    import pyarrow as pa

    kind, rows = _rows_of(results)
    table = _arrow_table(kind, rows)
    frame = table.to_pandas(integer_object_nulls=True)  # as doubles, large ones would be others
    for field in table.schema:
        if pa.types.is_nested(field.type) or field.name == "metadata":
            frame[field.name] = pd.Series([row[field.name] for row in rows], dtype=object)
    return frame


def _arrow_table(kind: Any, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    import pyarrow as pa

    columns = _columns(kind).items()
    cells = [{name: convert(row[name]) for name, (_, convert) in columns} for row in rows]
    return pa.Table.from_pylist(cells, schema=arrow_schema(kind))


def arrow_schema(kind: Any) -> pa.Schema:
    """Return the schema of the table of a class of results; what may be missing is nullable."""
    import pyarrow as pa

    return pa.schema([field for field, _ in _columns(kind).values()])


def _facts(value: Shown) -> Iterator[tuple[str, Any]]:
    """Yield names and plain values of what matters, but for what is empty or has its default."""
    kind: Any = type(value)
    defaults: dict[str, Any] = {one.name: one.default for one in fields(kind)} if is_dataclass(kind) else {}
    for path in value._told:
        found = attrgetter(path)(value)
        if found not in (*_EMPTY, defaults.get(path, ...)):
            yield path.rpartition(".")[2], plain(found)


def _shown_rows(value: Shown) -> list[dict[str, Any]]:
    rows = plain(attrgetter(value._rows)(value)) if value._rows else []
    return [{"rank": rank, **row} for rank, row in enumerate(rows, start=1)] if value._has_ranks else rows


def _rows_of(results: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return the class of results, and the rows of their table as plain values; InputError names an item."""
    from genret.retrieval.types import RetrievalResult

    is_one = isinstance(results, Shown) or not isinstance(results, Iterable)
    items = [getattr(one, "result", one) for one in ([results] if is_one else results)]
    kind = type(items[0]) if items else RetrievalResult
    for place, item in enumerate(items):
        if not isinstance(item, Tabular) or type(item) is not kind:
            expected = kind.__name__ if issubclass(kind, Tabular) else "result"
            raise InputError(f"results[{place}]", f"must be a {expected}, got a {type(item).__name__}")
    rows: list[dict[str, Any]] = []
    for item in items:
        shared = {name: plain(getattr(item, name)) for name in item._shared}
        rows += [{**shared, **row} for row in _shown_rows(item)] if item._rows else [item.to_dict()]
    return kind, rows


@cache
def _columns(kind: Any) -> Mapping[str, tuple[Any, Callable[[Any], Any]]]:
    """Return the columns of a class's table by name: field, and what makes cells of plain values."""
    import pyarrow as pa

    hints = get_type_hints(kind)
    found = {name: _column(name, hints[name]) for name in (kind._shared if kind._rows else ())}
    if kind._has_ranks:
        found["rank"] = (pa.field("rank", pa.int64(), nullable=False), _same)
    row = get_args(hints[kind._rows])[0] if kind._rows else kind
    return found | _members(row)


def _members(kind: Any) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    hints = get_type_hints(kind)
    return {wire: _column(wire, hints[name]) for name, wire in wire_names(kind).items()}


def _column(name: str, hint: Any) -> tuple[Any, Callable[[Any], Any]]:
    import pyarrow as pa

    options = get_args(hint)
    may_be_none = NoneType in options or hint is float  # NaN is None
    if NoneType in options:
        (hint,) = (one for one in options if one is not NoneType)
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    kind, convert = kinds.get(hint), _same
    if is_dataclass(hint):
        members = _members(hint)
        kind = pa.struct([field for field, _ in members.values()])
        convert = lambda value: {at: one(value[at]) for at, (_, one) in members.items()}  # noqa: E731
    elif get_origin(hint) is tuple:
        field, one = _column("item", get_args(hint)[0])
        kind = pa.list_(field)
        convert = lambda value: [one(item) for item in value]  # noqa: E731
    elif get_origin(hint) is Mapping and get_args(hint)[1] is float:
        kind, convert = pa.map_(pa.string(), pa.float64()), lambda value: list(value.items())
    elif get_origin(hint) is Mapping:  # values of several types, which no column of Arrow has in pandas too
        kind, convert = pa.string(), lambda value: json.dumps(value, ensure_ascii=False)
    if kind is None:
        raise TypeError(f"no type of Arrow for {name}: {hint}")
    return pa.field(name, kind, nullable=may_be_none), convert


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_text(one)}" for name, one in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _short(value: Any) -> str:
    text = _clipped(_text(value), _TEXT_CHARS)
    return repr(text) if isinstance(value, str) else text


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _cell(value: Any) -> str:
    return f"<td>{'' if value is None else escape(_clipped(_text(value), _CELL_CHARS))}</td>"
