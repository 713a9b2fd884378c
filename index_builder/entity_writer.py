"""Writes the entities of a version in their final order, gathered from the runs batch by batch.

A first pass over all entities (`survey`) decides how they are stored: ids, aliases, dictionaries. The layout
of arrays is canonical: equal values give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.index_builder.runs import IntArray, Run, windows
from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import (
    ALIASES,
    ENTITY_BATCH_ROWS,
    ENTITY_ID,
    MAX_DICTIONARY,
    TITLE,
    entities_schema,
    metadata_field,
)
from genret.retrieval.index.manifest import MetadataColumn


@dataclass(frozen=True, slots=True)
class EntitySurvey:
    """Facts about the kept entities that decide how they are stored."""

    entities: int
    has_ids: bool  # whether any id differs from its entity's title
    has_aliases: bool
    dictionaries: dict[str, pa.Array] = field(default_factory=dict)  # by metadata column: values, ascending


def survey(runs: Sequence[Run], metadata: Sequence[MetadataColumn]) -> EntitySurvey:
    """Survey the kept entities. Memory: 65,536 entities and as many values per metadata column."""
    entities = sum(int(np.count_nonzero(run.keep)) for run in runs)
    most = min(MAX_DICTIONARY, entities // 2)
    seen = {c.name: pa.array([], type=pa.string()) for c in metadata if c.type == "string"}
    has_ids = has_aliases = False
    for run in runs:
        for table in _kept(run):
            if run.has_ids and not has_ids:
                has_ids = bool(pc.any(pc.not_equal(table.column(ENTITY_ID), table.column(TITLE))).as_py())
            has_aliases = has_aliases or len(pc.list_flatten(table.column(ALIASES))) > 0
            for name, values in list(seen.items()):
                united = _unite(values, table.column(name))
                if len(united) > most:
                    del seen[name]
                else:
                    seen[name] = united
    dictionaries = {name: canonical(v.take(pc.array_sort_indices(v))) for name, v in seen.items()}
    return EntitySurvey(entities, has_ids, has_aliases, dictionaries)


def check_weights(runs: Sequence[Run], column: str | None) -> None:
    """Refuse weights that are all 0; reads no further than the first other one.

    Raises:
        SourceError: all kept entities have the weight 0 in `column`, the metadata column of weights.
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


def _unite(values: pa.Array, column: pa.ChunkedArray) -> pa.Array:
    """Return the distinct values of both, without null."""
    new = column.unique().drop_null().cast(pa.string())
    new = new.filter(pc.invert(pc.is_in(new, value_set=values)))
    return pa.concat_arrays([values, new]) if len(new) else values


_ID_SCHEMA = pa.schema([pa.field(ENTITY_ID, pa.string())])


class RunSources:
    """Entities of several runs under one numbering: run i's begin at `begins[i]`."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        sizes = [run.num_entities for run in runs]
        self.begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.begins[-1])

    def gather(self, sources: IntArray, schema: pa.Schema) -> pa.Table:
        """Return columns of entities in the given order. Memory: these twice, and 65,536 of a run."""
        tables: list[pa.Table] = []
        visited: list[IntArray] = []
        for run, places, numbers in self._by_run(sources):
            by_number = np.argsort(numbers, kind="stable")
            places, numbers = places[by_number], numbers[by_number]
            for low, high, inside in windows(numbers):
                slice_ = run.entities(low, high).select(schema.names).cast(schema)
                wanted = numbers[inside] - low
                # Most of a run may lie between the wanted ones.
                tables.append(slice_ if len(wanted) == high - low else slice_.take(pa.array(wanted)))
                visited.append(places[inside])
        joined = pa.concat_tables(tables)
        order = np.concatenate(visited)
        if bool((order[1:] > order[:-1]).all()):
            return joined
        return joined.combine_chunks().take(pa.array(np.argsort(order)))

    def ids(self, sources: IntArray) -> pa.Array:
        """Return the ids of entities in the given order."""
        return _joined(self.gather(sources, _ID_SCHEMA).column(ENTITY_ID))

    def _by_run(self, sources: IntArray) -> list[tuple[Run, npt.NDArray[np.int64], IntArray]]:
        """Return (run, places in `sources`, entity numbers in the run) of every run that has some."""
        run_of = np.searchsorted(self.begins, sources, side="right") - 1
        order = np.argsort(run_of, kind="stable")
        present, begins = np.unique(run_of[order], return_index=True)
        shares = zip(present.tolist(), np.split(order, begins[1:]), strict=True)
        return [(self._runs[i], places, sources[places] - self.begins[i]) for i, places in shares]


class EntityWriter:
    """Writes entities.arrow by the `stored_schema`; holds up to three batches of entities."""

    def __init__(
        self, writer: pa.RecordBatchWriter, schema: pa.Schema, survey: EntitySurvey, sources: RunSources
    ) -> None:
        self._writer = writer
        self._schema = schema
        self._plain = pa.schema(
            [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
        )
        self._dictionaries = survey.dictionaries
        self._sources = sources
        self._pending: list[IntArray] = []
        self._num_pending = 0

    def add(self, sources: IntArray) -> None:
        """Append entities in this order."""
        self._pending.append(sources)
        self._num_pending += len(sources)
        if self._num_pending >= ENTITY_BATCH_ROWS:
            waiting = np.concatenate(self._pending)
            whole = len(waiting) - len(waiting) % ENTITY_BATCH_ROWS
            for begin in range(0, whole, ENTITY_BATCH_ROWS):
                self._write(waiting[begin : begin + ENTITY_BATCH_ROWS])
            self._pending = [waiting[whole:]]
            self._num_pending = len(waiting) - whole

    def finish(self) -> None:
        """Write the last, shorter batch."""
        if self._num_pending:
            self._write(np.concatenate(self._pending))
            self._pending, self._num_pending = [], 0

    def _write(self, sources: IntArray) -> None:
        table = self._sources.gather(sources, self._plain)
        columns = [self._stored(_joined(table.column(field.name)), field) for field in self._schema]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def _stored(self, values: pa.Array, field: pa.Field) -> pa.Array:
        dictionary = self._dictionaries.get(field.name)
        if dictionary is None:
            return canonical(values)
        places = pc.index_in(values, value_set=dictionary)
        return pa.DictionaryArray.from_arrays(canonical(places.cast(field.type.index_type)), dictionary)


def stored_schema(survey: EntitySurvey, metadata: Sequence[MetadataColumn]) -> pa.Schema:
    """Return the schema of the entities; columns without information are left out."""
    sizes = {name: len(values) for name, values in survey.dictionaries.items()}
    fields = [metadata_field(column.name, column.type, sizes.get(column.name)) for column in metadata]
    return entities_schema(survey.has_ids, survey.has_aliases, fields)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def canonical(array: pa.Array) -> pa.Array:
    """Return the same strings, numbers, bools or lists of them, with zeros under nulls and exact buffers."""
    bitmap = None
    if array.null_count:
        bitmap = _bits(array.is_valid())
        empty = pa.scalar("" if pa.types.is_string(array.type) else 0).cast(array.type)
        array = pc.fill_null(array, empty)
    kind, length = array.type, len(array)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, length, [bitmap, _bits(array)])
    if pa.types.is_list(kind):
        offsets, low, high = _offsets(array)
        values = canonical(array.values.slice(low, high - low))
        return pa.Array.from_buffers(kind, length, [bitmap, offsets], children=[values])
    if pa.types.is_string(kind):
        offsets, low, high = _offsets(array)
        data = array.buffers()[2]
        return pa.Array.from_buffers(
            kind, length, [bitmap, offsets, pa.py_buffer(b"") if data is None else data[low:high]]
        )
    width = kind.bit_width // 8
    data = array.buffers()[1][array.offset * width : (array.offset + length) * width]
    return pa.Array.from_buffers(kind, length, [bitmap, data])


def _offsets(array: pa.Array) -> tuple[pa.Buffer, int, int]:
    """Return offsets that begin at 0, and the range of the values in their own buffer."""
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return pa.py_buffer(np.zeros(1, dtype=np.int32)), 0, 0
    stored: npt.NDArray[np.int32] = np.frombuffer(buffer, dtype=np.int32)
    stored = stored[array.offset : array.offset + len(array) + 1]
    return pa.py_buffer(stored - stored[0]), int(stored[0]), int(stored[-1])


def _bits(flags: pa.Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags.to_numpy(zero_copy_only=False), bitorder="little"))
