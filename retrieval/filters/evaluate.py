"""Predicates over Arrow columns: batch by batch, without a copy of any column.

Truth is three-valued as in SQL: a test of a missing value is unknown, `and`, `or` and `not` follow Kleene's
tables, and what is unknown in the end does not pass. Tests of a dictionary-encoded column look at each
different value once and are carried over to the rows by their codes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from retrieval.filters.check import kind_of
from retrieval.filters.expression import (
    And,
    Comparison,
    Constant,
    IsNull,
    Leaf,
    Like,
    Membership,
    Not,
    Or,
    Predicate,
    Truth,
    leaves,
)
from retrieval.filters.numbers import Narrow, narrow_to_float, narrow_to_integer
from retrieval.filters.patterns import match_pattern

BoolArray = npt.NDArray[np.bool_]

_UNKNOWN = pa.nulls(1, pa.bool_())[0]  # pa.scalar would import pandas, where there is one
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
    """Return the rows for which a predicate is true.

    Args:
        predicate: One that `check` let pass for these columns.
        column: Gives a column by name; all have the same chunks.
        num_rows: Length n of the columns.
        poll: Called before every batch; what it raises ends the evaluation.

    Returns:
        Shape: (n,), bool.
    """
    names = {leaf.column.name for leaf in leaves(predicate) if not isinstance(leaf, Constant)}
    if not names:
        return np.full(num_rows, _of_constants(predicate) is True)
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
    """Write the bits of an array without nulls as bytes: a third of the time that Arrow takes for it."""
    bits = np.frombuffer(truth.buffers()[1], dtype=np.uint8)
    begin = truth.offset % 8
    bits = bits[truth.offset // 8 : (truth.offset + len(truth) + 7) // 8]
    out[:] = np.unpackbits(bits, bitorder="little", count=begin + len(truth))[begin:].view(np.bool_)


class _Batches:
    """Evaluates one batch after another; remembers what was found of a dictionary the batches share."""

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
        # Batches of one file share the memory of their dictionary, though not the Python object.
        memory = [buffer.address if buffer else 0 for buffer in dictionary.buffers()]
        identity = (len(dictionary), dictionary.offset, *memory)
        known = self._of_dictionary.get(id(leaf))
        if known is None or known[0] != identity:
            known = self._of_dictionary[id(leaf)] = (identity, _leaf_truth(leaf, dictionary))
        return known[1]


def _by_code(codes: pa.Array, truth: pa.Array) -> pa.Array:
    """Carry the truth of dictionary values over to the rows."""
    if truth.null_count:
        return truth.take(codes)
    found = truth.to_numpy(zero_copy_only=False)
    hits, misses = np.flatnonzero(found), np.flatnonzero(~found)
    if not len(hits) or not len(misses):
        return _where_valid(codes, bool(len(hits)))
    # One run of codes, or all but one, as a sorted dictionary gives for comparisons: no lookup per row.
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
    kind = kind_of(values.type)
    if kind in ("int", "float"):
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
    """`x in (…)`: some `x = value`. With null among the values, what is not found is unknown."""
    literals = {literal.value for literal in leaf.literals}
    wanted: set[Any] = literals - {None}
    if kind_of(values.type) in ("int", "float"):
        narrowed = [_narrow("=", value, values.type) for value in wanted]
        wanted = {found.value for found in narrowed if isinstance(found, Narrow)}
    value_set = sorted(wanted)
    if kind_of(values.type) == "float" and 0.0 in wanted:
        value_set.append(-0.0)  # equal, but not to a hash table
    found = pc.is_in(values, value_set=pa.array(value_set, type=values.type))
    if values.null_count:
        found = pc.if_else(values.is_valid(), found, _UNKNOWN)
    return pc.if_else(found, found, _UNKNOWN) if None in literals else found


def _where_valid(values: pa.Array, truth: bool) -> pa.Array:
    if not values.null_count:
        return pa.repeat(pa.scalar(truth), len(values))
    return pc.if_else(values.is_valid(), pa.scalar(truth), _UNKNOWN)


def _of_constants(predicate: Predicate) -> bool | None:
    """Return the truth of a predicate that looks at no column."""
    match predicate:
        case Constant():
            return predicate.value
        case Not():
            inner = _of_constants(predicate.operand)
            return None if inner is None else not inner
        case And() | Or():
            decisive = isinstance(predicate, Or)
            found = {_of_constants(operand) for operand in predicate.operands}
            return decisive if decisive in found else (None if None in found else not decisive)
    raise TypeError(f"{type(predicate).__name__} looks at a column")
