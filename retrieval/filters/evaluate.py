"""Checks that a predicate fits the columns of an index, and evaluates it, batch by batch, without copies.

Truth is three-valued as in SQL: a test of a missing value is unknown, `and`, `or` and `not` follow Kleene's
tables, and a row whose result is unknown does not pass. For a dictionary-encoded column each distinct value
is tested once, and the result is mapped to the rows by their codes.

Comparisons with numbers are exact for literals of any size: a literal that the column's type cannot hold is
never rounded; the comparison becomes an equivalent one with a neighbouring value, or a constant. In patterns
of `like`, % is any text, _ one character, and a backslash escapes the next character.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.arguments import Restriction
from genret.retrieval.errors import did_you_mean
from genret.retrieval.filters.predicate import (
    And,
    Column,
    Comparison,
    Constant,
    IsNull,
    Leaf,
    Like,
    Literal,
    Membership,
    Not,
    Or,
    Predicate,
    Truth,
    clipped,
    error_at,
    leaves,
    literal_text,
)
from genret.retrieval.index.layout import ENTITY_ID, TITLE
from genret.retrieval.index.reader import Index

_MAX_LISTED = 30

# Types of the values that a column of each type may be compared with.
_VALUES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "int": (int, float),
    "float": (int, float),
    "bool": (bool,),
}


def kind_of(data_type: pa.DataType) -> str:
    """Return "string", "int", "float" or "bool", or Arrow's name of a type that filters cannot compare."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return "string"
    if pa.types.is_boolean(data_type):
        return "bool"
    if pa.types.is_integer(data_type):
        return "int"
    if pa.types.is_float64(data_type):
        return "float"
    return str(data_type)


def check(predicate: Predicate, columns: Mapping[str, pa.DataType]) -> None:
    """Raise InputError for "filter" if a column is unknown, or has another type than its value."""
    for leaf in leaves(predicate):
        _check_leaf(leaf, columns)


def check_restriction(index: Index, restriction: Restriction) -> None:
    """Raise InputError for "filter" if a predicate does not fit the index; cheap, and from any thread."""
    if restriction.predicate is not None:
        entities = index.entities
        names = (*entities.metadata_columns, ENTITY_ID, TITLE)
        check(restriction.predicate, {name: entities.column_type(name) for name in names})


def entity_mask(index: Index, restriction: Restriction, poll: Callable[[], None] | None = None) -> BoolArray:
    """Return which entities a checked restriction allows. Shape: (num_entities,).

    Unknown ids have no effect. `poll` is called now and then; an exception from it ends the evaluation.
    """
    entities = index.entities
    if restriction.predicate is None:
        allowed = np.ones(len(entities), dtype=np.bool_)
    else:
        allowed = evaluate(restriction.predicate, entities.stored_column, len(entities), poll)
    for ids, is_allowed in ((restriction.allow_ids, True), (restriction.deny_ids or None, False)):
        if ids is not None:
            numbers = entities.find(ids)
            named = np.zeros(len(entities), dtype=np.bool_)
            named[numbers[numbers >= 0]] = True
            allowed &= named if is_allowed else ~named
    return allowed


def _check_leaf(leaf: Leaf, columns: Mapping[str, pa.DataType]) -> None:
    match leaf:
        case IsNull(column):
            _known(column, columns)
        case Truth(column):
            kind = _known(column, columns)
            if kind != "bool":
                why = f"is {kind}, not bool; expected a comparison after it"
                raise error_at(column.at, f"{_named(column)} {why}")
        case Like(column, pattern):
            kind = _known(column, columns)
            if kind != "string":
                raise error_at(column.at, f"like needs a string column, and {_named(column)} is {kind}")
            text = str(pattern.value)
            if (len(text) - len(text.rstrip("\\"))) % 2:
                raise error_at(
                    pattern.at, r"the pattern ends in a single \; a backslash itself is written \\"
                )
        case Membership(column, literals):
            kind = _comparable(column, columns)
            for literal in literals:
                _check_value(column, kind, literal)
        case Comparison(column, operator, literal):
            kind = _comparable(column, columns)
            _check_value(column, kind, literal)
            if kind == "bool" and operator not in ("=", "!="):
                raise error_at(column.at, f"{_named(column)} is bool, which has no order; expected = or !=")


def _known(column: Column, columns: Mapping[str, pa.DataType]) -> str:
    if column.name in columns:
        return kind_of(columns[column.name])
    hint = did_you_mean(column.name, map(clipped, columns), ";")
    names = sorted(columns)
    listed = ", ".join(clipped(name) for name in names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    raise error_at(column.at, f"unknown column {clipped(column.name)!r}{hint} the index has: {listed}{more}")


def _comparable(column: Column, columns: Mapping[str, pa.DataType]) -> str:
    kind = _known(column, columns)
    if kind not in _VALUES:
        raise error_at(column.at, f"{_named(column)} is {kind}, which filters cannot compare")
    return kind


def _check_value(column: Column, kind: str, literal: Literal) -> None:
    value = literal.value
    if value is None or (type(value) in _VALUES[kind]):
        return
    names: dict[type, str] = {str: "a string", bool: "a truth value", int: "a number", float: "a number"}
    shown = clipped(literal_text(value))
    message = f"{_named(column)} is {kind}, got {names[type(value)]}: {shown}"
    if kind == "string" and isinstance(value, int | float):
        message += f"; '{shown}' compares as text"
        if column.name not in (ENTITY_ID, TITLE):
            declared = "bool" if isinstance(value, bool) else "float (or int)"
            message += f"; otherwise build with --type {clipped(column.name)}={declared}"
    elif kind != "bool" and isinstance(value, str) and value.lstrip("+-").replace(".", "", 1).isdecimal():
        message += "; numbers stand without quotes"
    raise error_at(literal.at, message)


def _named(column: Column) -> str:
    return f"column {clipped(column.name)!r}"


BoolArray = npt.NDArray[np.bool_]

_UNKNOWN = pa.nulls(1, pa.bool_())[0]  # pa.scalar would import pandas, if installed
_OPERATORS: dict[str, Callable[..., pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def evaluate(
    predicate: Predicate,
    column: Callable[[str], pa.ChunkedArray],
    num_rows: int,
    poll: Callable[[], None] | None = None,
) -> BoolArray:
    """Return the rows for which a predicate that passed `check` is true. Shape: (num_rows,), bool.

    `column` returns a column by name; all columns have the same chunks. `poll` is called before every batch;
    an exception from it ends the evaluation.
    """
    names = {leaf.column.name for leaf in leaves(predicate) if not isinstance(leaf, Constant)}
    if not names:
        truth = _Batches().truth(predicate, {"": pa.nulls(1)})
        return np.full(num_rows, truth[0].as_py() is True)
    columns = {name: column(name) for name in names}
    mask = np.empty(num_rows, dtype=np.bool_)
    batches = _Batches()
    begin = 0
    for number in range(next(iter(columns.values())).num_chunks):
        if poll is not None:
            poll()
        chunks = {name: values.chunk(number) for name, values in columns.items()}
        truth = pc.fill_null(batches.truth(predicate, chunks), False)
        _unpack(truth, mask[begin : begin + len(truth)])
        begin += len(truth)
    return mask


def _unpack(truth: pa.BooleanArray, out: BoolArray) -> None:
    """Unpack the bits of an array without nulls: takes a third of Arrow's own time."""
    bits = np.frombuffer(truth.buffers()[1], dtype=np.uint8)
    begin = truth.offset % 8
    bits = bits[truth.offset // 8 : (truth.offset + len(truth) + 7) // 8]
    out[:] = np.unpackbits(bits, bitorder="little", count=begin + len(truth))[begin:].view(np.bool_)


class _Batches:
    """Evaluates batches; keeps the results for a dictionary that batches share."""

    def __init__(self) -> None:
        self._of_dictionary: dict[int, tuple[tuple[Any, ...], pa.Array]] = {}

    def truth(self, predicate: Predicate, chunks: dict[str, pa.Array]) -> pa.Array:
        """Return the three-valued truth of a predicate for every row of a batch. Length n, bool."""
        match predicate:
            case And() | Or():
                join = pc.and_kleene if isinstance(predicate, And) else pc.or_kleene
                truth = self.truth(predicate.operands[0], chunks)
                for operand in predicate.operands[1:]:
                    truth = join(truth, self.truth(operand, chunks))
                return truth
            case Not():
                return pc.invert(self.truth(predicate.operand, chunks))
            case Constant():
                length = len(next(iter(chunks.values())))
                return pa.repeat(pa.scalar(predicate.value, pa.bool_()), length)
        chunk = chunks[predicate.column.name]
        if not isinstance(chunk, pa.DictionaryArray):
            return _leaf_truth(predicate, chunk)
        if chunk.dictionary.null_count:
            return _leaf_truth(predicate, chunk.dictionary_decode())
        if isinstance(predicate, IsNull):
            return pc.is_null(chunk)
        return _by_code(chunk.indices, self._dictionary_truth(predicate, chunk.dictionary))

    def _dictionary_truth(self, leaf: Leaf, dictionary: pa.Array) -> pa.Array:
        # Batches of one file share the memory of a dictionary, though not the Python object.
        memory = [buffer.address if buffer else 0 for buffer in dictionary.buffers()]
        identity = (len(dictionary), dictionary.offset, *memory)
        known = self._of_dictionary.get(id(leaf))
        if known is None or known[0] != identity:
            known = self._of_dictionary[id(leaf)] = (identity, _leaf_truth(leaf, dictionary))
        return known[1]


def _by_code(codes: pa.Array, truth: pa.Array) -> pa.Array:
    """Map the truth of dictionary values to the rows."""
    if truth.null_count:
        return truth.take(codes)
    found = truth.to_numpy(zero_copy_only=False)
    hits, misses = np.flatnonzero(found), np.flatnonzero(~found)
    if not len(hits) or not len(misses):
        return _where_valid(codes, bool(len(hits)))
    # One run of codes, or all but one, as comparisons give for a sorted dictionary: no lookup per row.
    if _is_run(hits):
        return _in_run(codes, hits)
    if _is_run(misses):
        return pc.invert(_in_run(codes, misses))
    return truth.take(codes)


def _is_run(numbers: npt.NDArray[np.intp]) -> bool:
    return bool(numbers[-1] - numbers[0] + 1 == len(numbers))


def _in_run(codes: pa.Array, run: npt.NDArray[np.intp]) -> pa.Array:
    low, high = pa.scalar(int(run[0]), codes.type), pa.scalar(int(run[-1]), codes.type)
    if len(run) == 1:
        return pc.equal(codes, low)
    return pc.and_(pc.greater_equal(codes, low), pc.less_equal(codes, high))


def _leaf_truth(leaf: Leaf, values: pa.Array) -> pa.Array:
    match leaf:
        case Truth():
            return values
        case IsNull():
            return pc.is_null(values)
        case Like():
            return match_pattern(values, str(leaf.pattern.value))
        case Comparison():
            return _compare(values, leaf.operator, leaf.literal.value)
        case Membership():
            return _is_among(values, leaf)
        case Constant():
            raise TypeError("a constant looks at no column")


def _compare(values: pa.Array, operator: str, literal: Any) -> pa.Array:
    if literal is None:
        return pa.repeat(_UNKNOWN, len(values))
    if kind_of(values.type) in ("int", "float"):
        narrowed = _narrow(operator, literal, values.type)
        if isinstance(narrowed, bool):
            return _where_valid(values, narrowed)
        operator, literal = narrowed
    return _OPERATORS[operator](values, pa.scalar(literal, values.type))


def _narrow(operator: str, literal: int | float, data_type: pa.DataType) -> Narrow | bool:
    if kind_of(data_type) == "int":
        return narrow_to_integer(operator, literal, data_type)
    return narrow_to_float(operator, literal)


def _is_among(values: pa.Array, leaf: Membership) -> pa.Array:
    """`x in (…)` is true if some `x = value` is; with null among the values, it is unknown otherwise."""
    literals = {literal.value for literal in leaf.literals}
    wanted: set[Any] = literals - {None}
    if kind_of(values.type) in ("int", "float"):
        narrowed = [_narrow("=", value, values.type) for value in wanted]
        wanted = {found.value for found in narrowed if isinstance(found, Narrow)}
    value_set = sorted(wanted)
    if kind_of(values.type) == "float" and 0.0 in wanted:
        value_set.append(-0.0)  # equal, but hashed differently
    found = pc.is_in(values, value_set=pa.array(value_set, type=values.type))
    if values.null_count:
        found = pc.if_else(values.is_valid(), found, _UNKNOWN)
    return pc.if_else(found, found, _UNKNOWN) if None in literals else found


def _where_valid(values: pa.Array, truth: bool) -> pa.Array:
    if not values.null_count:
        return pa.repeat(pa.scalar(truth), len(values))
    return pc.if_else(values.is_valid(), pa.scalar(truth), _UNKNOWN)


# Result of a comparison when all values of the column are below, or above, the literal.
_BELOW = {"=": False, "!=": True, "<": True, "<=": True, ">": False, ">=": False}
_ABOVE = {"=": False, "!=": True, "<": False, "<=": False, ">": True, ">=": True}


class Narrow(NamedTuple):
    """A comparison with a value of the column's own type."""

    operator: str
    value: int | float


def narrow_to_integer(operator: str, literal: int | float, data_type: pa.DataType) -> Narrow | bool:
    """Return the equivalent of `integer column operator literal`; a bool if it is the same for all values."""
    bounds = np.iinfo(data_type.to_pandas_dtype())
    if literal > bounds.max:
        return _BELOW[operator]
    if literal < bounds.min:
        return _ABOVE[operator]
    whole = math.floor(literal)
    if whole == literal:
        return Narrow(operator, whole)
    if operator in ("=", "!="):
        return operator == "!="
    # Between two integers, the lower one and all below it are below the literal.
    return Narrow("<=" if operator in ("<", "<=") else ">", whole)


def narrow_to_float(operator: str, literal: int | float) -> Narrow | bool:
    """Return the equivalent of `double column operator literal`; a bool if it is the same for all values.

    NaN in the column equals nothing and is neither below nor above anything.
    """
    try:
        nearest = float(literal)
    except OverflowError:
        nearest = math.inf if literal > 0 else -math.inf
    if nearest == literal:  # Python compares integers and floats exactly
        return Narrow(operator, nearest)
    if operator in ("=", "!="):
        return operator == "!="
    # No double lies between the literal and the one nearest to it.
    nearest_is_above = nearest > literal
    if operator in ("<", "<="):
        return Narrow("<" if nearest_is_above else "<=", nearest)
    return Narrow(">=" if nearest_is_above else ">", nearest)


def match_pattern(texts: pa.Array, pattern: str) -> pa.Array:
    """Match whole texts against a pattern without a trailing escape; null where the text is null."""
    characters = re.findall(r"\\.|.", pattern, re.DOTALL)
    literal = "".join(one[-1] for one in characters if one not in ("%", "_"))
    shape = "".join(one if one in ("%", "_") else "x" for one in characters)
    match re.sub(r"([x%])\1+", r"\1", shape):
        case "" | "x":
            return pc.equal(texts, pa.scalar(literal, texts.type))
        case "x%":
            return pc.starts_with(texts, literal)
        case "%x":
            return pc.ends_with(texts, literal)
        case "%x%":
            return pc.match_substring(texts, literal)
    # Arrow takes some escapes of ordinary characters for the backslash itself.
    known = (one if one in (r"\%", r"\_", r"\\") else one[-1] for one in characters)
    return pc.match_like(texts, "".join(known))
