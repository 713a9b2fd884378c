"""Decides the meaning of each column of a source, and the types of its metadata columns.

Cells travel as text. A column gets the narrowest type that keeps every cell's value: int before float, bool,
else string.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.errors import InputError, SourceError, did_you_mean
from genret.retrieval.index.layout import ALIASES, ENTITY_ID, METADATA_TYPES, RESERVED_COLUMNS, TITLE
from genret.retrieval.normalize import find_control, find_surrogate, normalize

ALIAS_SEPARATOR = "|"
# Advice about a column that cannot be metadata.
LEAVE_OUT = "leave the column out: --metadata names those to keep, --no-metadata keeps none"


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """The meaning of a source's columns. Names are matched exactly, else without regard to case.

    Raises:
        InputError: an empty name or separator, one column for two purposes, a type for a column left out.
    """

    title: str = TITLE  # column of titles; required
    entity_id: str = ENTITY_ID  # column of ids. One by the default name may be missing
    aliases: str = ALIASES  # column of aliases. One by the default name may be missing
    # Text between the aliases of one cell; lists are taken as they are
    alias_separator: str = ALIAS_SEPARATOR
    metadata: tuple[str, ...] | None = None  # columns kept as metadata; None keeps all others
    # Declared types of metadata columns
    types: Mapping[str, ColumnType] = field(default_factory=lambda: MappingProxyType({}))
    # Column of weights, which say how often people mean each entity, and are metadata too; or None
    weight: str | None = None
    # Columns that files may lack; those of titles, ids and aliases may have their default names there
    may_miss: tuple[str, ...] = ()
    delimiter: str | None = None  # character between the cells of a CSV file; None: found out for each

    @property
    def kept(self) -> tuple[str, ...] | None:
        """The columns kept as metadata, with that of weights; None keeps all others."""
        if self.metadata is None or self.weight is None or same_case(self.metadata, self.weight) is not None:
            return self.metadata
        return (*self.metadata, self.weight)

    def __post_init__(self) -> None:
        for name in ("title", "entity_id", "aliases", "alias_separator", "weight"):
            if getattr(self, name) == "":
                raise InputError("aliases_column" if name == "aliases" else name, "must not be empty")
        between = self.delimiter
        if between is not None and (len(between) != 1 or between.isalnum() or between in "\"' \r\n"):
            raise InputError(
                "delimiter",
                "expected one character, no letter, digit, quote, space or line end, such as ; or a tab, got "
                f"{self.delimiter!r}",
            )
        used = [self.title, self.entity_id, self.aliases]
        if len(set(used)) < len(used):
            raise InputError("columns", f"title, entity_id and aliases must be three columns, got {used}")
        if self.weight is not None and self.weight.casefold() in map(str.casefold, used):
            raise InputError(
                "weight", f"titles, ids and aliases are no weights: got the column {self.weight!r}"
            )
        for name in self.metadata or ():
            if self.metadata is not None and self.metadata.count(name) > 1:
                raise InputError("metadata", f"{name!r} is named more than once")
        for name, column_type in self.types.items():
            if column_type not in tuple(ColumnType):
                raise InputError("types", f"{name}: expected {', '.join(ColumnType)}, got {column_type!r}")
            if self.kept is not None and name not in self.kept:
                raise InputError("types", f"{name!r} is not among the metadata columns {list(self.kept)}")


@dataclass(frozen=True, slots=True)
class Columns:
    """The metadata columns of a source."""

    names: tuple[str, ...] = ()  # names in the order in which the files first have them
    declared: tuple[ColumnType | None, ...] = ()  # declared types; None if the cells decide
    weight: int | None = None  # position of the column of weights among them, or None


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the fields in one file's rows."""

    count: int  # cells per row
    title: int  # position of the title
    entity_id: int | None  # position of the id, or None
    aliases: int | None  # position of the aliases, or None
    # Position of every metadata column of the source; None if this file lacks it
    metadata: tuple[int | None, ...]

    @property
    def used(self) -> list[int]:
        """Positions of the cells that are read, ascending."""
        places = (self.title, self.entity_id, self.aliases, *self.metadata)
        return sorted(place for place in places if place is not None)


def check_header(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the normalised names of a file's columns.

    Raises:
        SourceError: a column without a name, or two of one name.
    """
    cleaned = [normalize(name) for name in names]
    if "" in cleaned:
        raise SourceError(f"{where}: column {cleaned.index('') + 1} of the header has no name")
    twice = sorted({name for name in cleaned if cleaned.count(name) > 1})
    if twice:
        raise SourceError(f"{where}: the header names these columns more than once: {twice}")
    return tuple(cleaned)


def find_column(names: Sequence[str], wanted: str, where: str) -> int | None:
    """Return the position of a column: the exact name first, else the only one that differs in case.

    Raises:
        SourceError: several have that name, or none has and several differ from it in case alone.
    """
    if names.count(wanted) > 1:
        raise SourceError(f"{where}: {names.count(wanted)} columns are called {wanted!r}")
    if wanted in names:
        return names.index(wanted)
    folded = normalize(wanted).casefold()
    found = [i for i, name in enumerate(names) if name.casefold() == folded]
    if len(found) > 1:
        raise SourceError(f"{where}: several columns are called {wanted!r}: {[names[i] for i in found]}")
    return found[0] if found else None


def find_entity_columns(names: Sequence[str], wanted: str, files: str, where: str) -> tuple[int, int, bool]:
    """Return the places of a column and of the one that names entities, and whether that is by id.

    Ids go before titles. `files` says in messages what such files hold.

    Raises:
        SourceError: there is no such column, none that names entities, or several.
    """
    place, key = find_column(names, wanted, where), find_column(names, ENTITY_ID, where)
    by_id = key is not None
    key = key if by_id else find_column(names, TITLE, where)
    if place is None or key is None:
        raise SourceError(
            f"{where}: a file of {files} needs the column {wanted!r} and one of 'entity_id' and 'title'; the "
            f"columns are {', '.join(map(repr, names))}"
        )
    return place, key, by_id


def plan_columns(
    headers: Sequence[tuple[str, Sequence[str]]], mapping: ColumnMapping
) -> tuple[Columns, tuple[Layout, ...]]:
    """Return the metadata columns of a source, and the layout of each file.

    `headers` are the name of each file, and the names of its columns.

    Raises:
        SourceError: a named or required column is missing, or a metadata column has a reserved name.
        InputError: weights are declared to be no numbers.
    """
    places = [_places(names, mapping, where) for where, names in headers]
    _require_ids_everywhere(headers, places)
    may_miss = (ENTITY_ID, ALIASES, *mapping.may_miss)
    for number, name in ((1, mapping.entity_id), (2, mapping.aliases)):
        _require(headers, name, name in may_miss or any(place[number] is not None for place in places))
    per_file = [
        _metadata(names, set(place), mapping, where)
        for (where, names), place in zip(headers, places, strict=True)
    ]
    found = list(dict.fromkeys(name for kept in per_file for name in kept))
    for name in mapping.metadata or ():
        _require(headers, name, name in found or name in may_miss)
    for name in mapping.types:
        _require(headers, name, same_case(found, name) is not None)
    order = tuple(found if mapping.kept is None else (name for name in mapping.kept if name in found))
    declared = {same_case(found, name) or name: ColumnType(t) for name, t in mapping.types.items()}
    weight = None if mapping.weight is None else find_column(order, mapping.weight, headers[0][0])
    if mapping.weight is not None:
        _require(headers, mapping.weight, weight is not None or mapping.weight in may_miss)
    if weight is not None and declared.get(order[weight]) in (ColumnType.STRING, ColumnType.BOOL):
        wrong = declared[order[weight]]
        raise InputError("types", f"{order[weight]}: weights are int or float, the declared type is {wrong}")
    columns = Columns(order, tuple(declared.get(name) for name in order), weight)
    layouts = tuple(
        Layout(len(names), *place, metadata=tuple(kept.get(name) for name in order))
        for (_, names), place, kept in zip(headers, places, per_file, strict=True)
    )
    return columns, layouts


_Places = tuple[int, int | None, int | None]  # of title, id and aliases


def _places(names: Sequence[str], mapping: ColumnMapping, where: str) -> _Places:
    def place(wanted: str, usual: str) -> int | None:
        found = find_column(names, wanted, where)
        return find_column(names, usual, where) if found is None and wanted in mapping.may_miss else found

    title = place(mapping.title, TITLE)
    if title is None:
        told = _no_column(where, mapping.title, names)
        is_list = len(names) == 1 and ".csv" in where.lower()
        without = "; --format lines reads titles without a header" * is_list
        raise SourceError(f"{told} (build: --title-column names another{without})")
    return title, place(mapping.entity_id, ENTITY_ID), place(mapping.aliases, ALIASES)


def _metadata(
    names: Sequence[str], taken: set[int | None], mapping: ColumnMapping, where: str
) -> dict[str, int]:
    """Return name -> position of the metadata columns of one file."""
    if mapping.kept is not None:
        kept = {name: at for name in mapping.kept if (at := find_column(names, name, where)) is not None}
    else:
        kept = {name: i for i, name in enumerate(names) if i not in taken}
    for name, place in kept.items():
        _check_name(name, names, where)
        if place in taken or name.casefold() in RESERVED_COLUMNS:
            raise SourceError(
                f"{where}: the column {name!r} cannot be metadata: an index uses that name, or the column "
                f"serves as title, entity_id or aliases; {LEAVE_OUT}"
            )
    return kept


def _check_name(name: str, names: Sequence[str], where: str) -> None:
    """Refuse a name that no metadata column can have; JSON and Parquet allow any name."""
    if not name:
        raise SourceError(f"{where}: column {names.index(name) + 1} has no name; {LEAVE_OUT}")
    if names.count(name) > 1:
        raise SourceError(f"{where}: {names.count(name)} columns are called {name!r}; {LEAVE_OUT}")
    odd = find_control(name) or find_surrogate(name)
    if odd is not None:
        raise SourceError(f"{where}: the name of the column {name!r} holds {odd}; {LEAVE_OUT}")


def _require_ids_everywhere(headers: Sequence[tuple[str, Sequence[str]]], places: Sequence[_Places]) -> None:
    with_ids = [where for (where, _), place in zip(headers, places, strict=True) if place[1] is not None]
    without = [where for (where, _), place in zip(headers, places, strict=True) if place[1] is None]
    if with_ids and without:
        raise SourceError(
            f"{without[0]}: there is no column of ids, but {with_ids[0]} has one; either all files name "
            "their entities or none does"
        )


def _require(headers: Sequence[tuple[str, Sequence[str]]], name: str, is_found: bool) -> None:
    if not is_found:
        everywhere = list(dict.fromkeys(column for _, names in headers for column in names))
        files = headers[0][0] if len(headers) == 1 else f"{len(headers)} files"
        raise SourceError(_no_column(files, name, everywhere))


def _no_column(where: str, wanted: str, names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, names)) or "none"
    return (
        f"{where}: no column is called {wanted!r}{did_you_mean(wanted, names, ';')} the columns are {listed}"
    )


def no_such_column(wanted: str, types: Mapping[str, str], what: str, kinds: Collection[str]) -> str:
    """Return why a metadata column of `types` holds none of `what`, and which columns do."""
    fitting = [name for name, kind in types.items() if kind in kinds]
    is_there, hint = wanted in types, did_you_mean(wanted, fitting, ";")
    why = f"the column is {types[wanted]};" if is_there else f"there is no such column{hint}"
    return f"{wanted!r}: {why} the metadata columns of {what} are {', '.join(map(repr, fitting)) or 'none'}"


def same_case(found: Sequence[str], name: str) -> str | None:
    """Return the column meant by a name: itself, else one that differs in case."""
    if name in found:
        return name
    return next((other for other in found if other.casefold() == name.casefold()), None)


_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
EXACT_DOUBLE = 1 << 53  # every integer up to here is a double
_INT = re.compile(r"(?:0|-?[1-9][0-9]{0,18})\Z")
_DECIMAL = re.compile(r"-?(?=.{1,16}\Z)(?:0|[1-9][0-9]*)\.[0-9]+\Z")  # also "1200.00"; floats hold 15 digits
# The repr() of a finite float: "1.5", "-0.0", "1e-07", "2.5e+20".
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?\Z")
_INT_PATTERN = r"^(?:0|-?[1-9][0-9]{0,14})$"  # shorter than 2**53, so neither range needs a look
_DECLARED_INT = re.compile(r"([+-]?[0-9]{1,30})(?:\.0*)?\Z")
_DECLARED_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_BOOLS = {"true": "true", "1": "true", "1.0": "true", "false": "false", "0": "false", "0.0": "false"}
_SAMPLE = 8


class ColumnType(StrEnum):
    """Type of a metadata column."""

    STRING = "string"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"


class Kinds(IntFlag):
    """Kinds of the cells of a column, as a set."""

    NONE = 0
    EMPTY = 1
    INT = 2  # of 64 bits, in canonical text
    FLOAT = 4  # decimals, and the text that `repr` gives
    BOOL = 8  # "true" or "false"
    STRING = 16  # anything else
    LONG_INT = 32  # beside INT: one that no float holds exactly


def kind_of_text(text: str) -> Kinds:
    """Return the kind of one non-empty cell."""
    if _INT.match(text):
        return kind_of_int(int(text))
    if text in ("true", "false"):
        return Kinds.BOOL
    if _DECIMAL.match(text) or (_FLOAT.match(text) and repr(float(text)) == text):
        return Kinds.FLOAT
    return Kinds.STRING


def kind_of_int(value: int) -> Kinds:
    """Return the kind of an integer; STRING beyond 64 bits."""
    if -EXACT_DOUBLE <= value <= EXACT_DOUBLE:
        return Kinds.INT
    if not _INT64_MIN <= value <= _INT64_MAX:
        return Kinds.STRING
    return Kinds.INT | (Kinds.NONE if int(float(value)) == value else Kinds.LONG_INT)


def classify(cells: Sequence[str | None]) -> Kinds:
    """Return the kinds of the canonical texts of a column; incomplete with STRING, which decides the type."""
    seen = Kinds.NONE
    for cell in cells[:_SAMPLE]:
        seen |= Kinds.EMPTY if cell is None else kind_of_text(cell)
    if seen & Kinds.STRING or len(cells) <= _SAMPLE:
        return seen
    rest = pa.array(cells[_SAMPLE:], type=pa.string())
    if rest.null_count:
        seen |= Kinds.EMPTY
        rest = rest.drop_null()
    short_int = pc.match_substring_regex(rest, _INT_PATTERN)
    if short_int.true_count:
        seen |= Kinds.INT
    for text in pc.unique(rest.filter(pc.invert(short_int))).to_pylist():
        seen |= kind_of_text(text)
        if seen & Kinds.STRING:
            break
    return seen


def resolve(kinds: Kinds, declared: ColumnType | None = None) -> ColumnType:
    """Return the type of a column: the declared one, else by the kinds of all its cells."""
    if declared is not None:
        return declared
    values = kinds & ~Kinds.EMPTY
    if not values or values & Kinds.STRING:
        return ColumnType.STRING
    if values & Kinds.BOOL:
        return ColumnType.BOOL if values == Kinds.BOOL else ColumnType.STRING
    if not values & Kinds.FLOAT:
        return ColumnType.INT
    return ColumnType.STRING if values & Kinds.LONG_INT else ColumnType.FLOAT


def fit(text: str, column_type: ColumnType) -> str | None:
    """Return the canonical text of a cell in a column of a declared type; None if it does not fit.

    A declaration permits more than inference: leading zeros and a plus sign, "1984.0" for an int, "1.50",
    "TRUE", 0 and 1 for a bool.
    """
    if column_type is ColumnType.STRING:
        return text
    if column_type is ColumnType.BOOL:
        return _BOOLS.get(text.lower())
    if column_type is ColumnType.INT:
        whole = _DECLARED_INT.match(text)
        return str(value) if whole and _INT64_MIN <= (value := int(whole[1])) <= _INT64_MAX else None
    number = float(text) if _DECLARED_FLOAT.match(text) else float("inf")
    return repr(number) if abs(number) != float("inf") else None


def fit_number(text: str) -> str | None:
    """Return the canonical text of an int of 64 bits, else of a float, such as 3.0; None for other text."""
    return (fit(text, ColumnType.INT) if "." not in text else None) or fit(text, ColumnType.FLOAT)


def cast(cells: pa.Array, column_type: ColumnType) -> pa.Array:
    """Turn canonical text (string or large_string, null if empty) into the type that `resolve` gave, exactly.

    Raises:
        pa.ArrowInvalid: a cell is not of this type.
    """
    if column_type is ColumnType.STRING:
        return cells
    if column_type is ColumnType.BOOL:
        unknown = pc.invert(pc.is_in(cells, pa.array(["true", "false", None], type=cells.type)))
        if pc.any(unknown).as_py():
            raise pa.ArrowInvalid("a cell of a bool column is neither 'true' nor 'false'")
        return pc.equal(cells, pa.scalar("true", type=cells.type))
    return cells.cast(METADATA_TYPES[column_type])
