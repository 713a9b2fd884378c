"""What all entities together say about how they are stored: ids, aliases, dictionaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_builder.canonical import canonical
from index_builder.runs import Run
from retrieval.errors import SourceError
from retrieval.index.layout import ALIASES, ENTITY_BATCH_ROWS, ENTITY_ID, MAX_DICTIONARY, TITLE
from retrieval.index.manifest import MetadataColumn


@dataclass(frozen=True, slots=True)
class EntitySurvey:
    """The facts.

    Attributes:
        entities: Entities that take part.
        has_ids: Whether any id differs from its entity's title.
        has_aliases: Whether any entity has an alias.
        dictionaries: Of every metadata column that is dictionary-encoded, its values in ascending order.
    """

    entities: int
    has_ids: bool
    has_aliases: bool
    dictionaries: dict[str, pa.Array] = field(default_factory=dict)


def survey(runs: Sequence[Run], metadata: Sequence[MetadataColumn]) -> EntitySurvey:
    """Pass over the entities of all runs that take part.

    Memory: 65,536 entities, and at most as many values per metadata column.
    """
    entities = sum(int(np.count_nonzero(run.keep)) for run in runs)
    most = min(MAX_DICTIONARY, entities // 2)
    seen = {c.name: pa.array([], type=pa.string()) for c in metadata if c.type == "string"}
    has_ids = has_aliases = False
    for run in runs:
        for table in _kept(run):
            if run.has_ids and not has_ids:
                has_ids = bool(pc.any(pc.not_equal(table.column(ENTITY_ID), table.column(TITLE))).as_py())
            has_aliases = has_aliases or _any_alias(table.column(ALIASES))
            for name, values in list(seen.items()):
                united = _unite(values, table.column(name))
                if len(united) > most:
                    del seen[name]
                else:
                    seen[name] = united
    dictionaries = {name: canonical(v.take(pc.array_sort_indices(v))) for name, v in seen.items()}
    return EntitySurvey(entities, has_ids, has_aliases, dictionaries)


def check_weights(runs: Sequence[Run], column: str | None) -> None:
    """Refuse weights by which nobody is ever meant; no more is read than up to the first other one.

    Args:
        runs: Sorted runs.
        column: Name of the metadata column of weights; None: there are none.

    Raises:
        SourceError: all entities that take part have the weight 0.
    """
    num_zeros = 0
    for table in () if column is None else chain.from_iterable(map(_kept, runs)):
        weights = table.column(column)
        if weights.null_count or pc.any(pc.greater(weights, 0)).as_py():
            return
        num_zeros += len(weights)
    if num_zeros:
        raise SourceError(
            f"the column {column!r} gives every entity the weight 0 ({num_zeros:,} in all); "
            "at least one needs a larger weight, or none, which counts as 1"
        )


def _kept(run: Run) -> Iterator[pa.Table]:
    for begin in range(0, run.num_entities, ENTITY_BATCH_ROWS):
        end = min(begin + ENTITY_BATCH_ROWS, run.num_entities)
        keep = run.keep[begin:end]
        if keep.all():
            yield run.entities(begin, end)
        elif keep.any():
            yield run.entities(begin, end).filter(pa.array(keep))


def _any_alias(aliases: pa.ChunkedArray) -> bool:
    return any(len(chunk.flatten()) > 0 for chunk in aliases.chunks)


def _unite(values: pa.Array, column: pa.ChunkedArray) -> pa.Array:
    """Return the different values of both, without null."""
    new = column.unique().drop_null().cast(pa.string())
    new = new.filter(pc.invert(pc.is_in(new, value_set=values)))
    return pa.concat_arrays([values, new]) if len(new) else values
