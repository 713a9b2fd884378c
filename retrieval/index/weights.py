"""Weights of entities: how often people mean each one, as numbers in a metadata column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from retrieval.index.entities import EntityTable


def filled_weights(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return the weights of a column as one read-only array, 1 where a value is missing. Shape: (n,)."""
    filled = np.empty(len(column), dtype=np.float64)
    begin = 0
    for chunk in column.chunks:
        end = begin + len(chunk)
        filled[begin:end] = chunk.cast(pa.float64(), safe=False).fill_null(1.0).to_numpy()
        begin = end
    filled.flags.writeable = False
    return filled


def weight_problem(
    entities: EntityTable, column: str, kept: npt.NDArray[np.bool_] | None = None
) -> str | None:
    """Return what is wrong with the first value of a column that can be no weight, or None.

    Args:
        entities: All entities.
        column: Name of a metadata column of numbers.
        kept: Which entities are looked at; None: all. Shape: (num_entities,).
    """
    values = entities.stored_column(column)
    wrong = pc.invert(pc.and_(pc.is_finite(values), pc.greater_equal(values, 0)))  # null where missing
    if kept is not None:
        wrong = pc.and_(wrong, pa.array(kept))
    number = pc.index(wrong, True).as_py()
    if number < 0:
        return None
    entity = entities.entity(number)
    return (
        f"column {column!r}: the entity {entity.entity_id!r} has the value {entity.metadata[column]}; "
        "a weight is a finite number, at least 0"
    )


def weight_facts(name: str, column: pa.ChunkedArray) -> dict[str, Any]:
    """Return what there is to say about a column of weights; `largest` is None where all are missing."""
    return {
        "column": name,
        "missing": column.null_count,
        "zeros": pc.sum(pc.equal(column, 0)).as_py() or 0,
        "largest": pc.max(column).as_py(),
    }


def weight_line(facts: dict[str, Any]) -> str:
    """Return a line of text for `weight_facts`."""
    largest = "" if facts["largest"] is None else f", the largest {facts['largest']:,}"
    return f"{facts['column']}: {facts['missing']:,} missing (weight 1), {facts['zeros']:,} zero{largest}"
