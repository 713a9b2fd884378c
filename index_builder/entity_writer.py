"""Entities in their final order, gathered from the runs and written batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index_builder.canonical import canonical
from index_builder.entity_survey import EntitySurvey
from index_builder.runs import IntArray, Run, windows
from retrieval.index.layout import ENTITY_BATCH_ROWS, ENTITY_ID, entities_schema, metadata_field
from retrieval.index.manifest import MetadataColumn

_ID_SCHEMA = pa.schema([pa.field(ENTITY_ID, pa.string())])


class RunSources:
    """Entities of several runs under one numbering: run i's begin at `begins[i]`.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        sizes = [run.num_entities for run in runs]
        self.begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.begins[-1])

    def gather(self, sources: IntArray, schema: pa.Schema) -> pa.Table:
        """Return columns of entities in the given order.

        Memory: the entities twice, and one slice of a run, of at most 65,536.

        Args:
            sources: At least one. Shape: (n,).
            schema: The columns.
        """
        tables: list[pa.Table] = []
        visited: list[IntArray] = []
        for run, places, numbers in self._by_run(sources):
            by_number = np.argsort(numbers, kind="stable")
            places, numbers = places[by_number], numbers[by_number]
            for low, high, inside in windows(numbers):
                slice_ = run.entities(low, high).select(schema.names).cast(schema)
                wanted = numbers[inside] - low
                # What is left out between them may be the most of a run.
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
        """Return (run, places in `sources`, entity numbers in the run) of every run that has any of them."""
        run_of = np.searchsorted(self.begins, sources, side="right") - 1
        order = np.argsort(run_of, kind="stable")
        present, begins = np.unique(run_of[order], return_index=True)
        shares = zip(present.tolist(), np.split(order, begins[1:]), strict=True)
        return [(self._runs[i], places, sources[places] - self.begins[i]) for i, places in shares]


class EntityWriter:
    """Writes entities.arrow; holds one batch of entities, up to three times over while it is put together.

    Args:
        writer: Of a file with `schema`.
        schema: As `stored_schema` gives it.
        survey: What is stored how.
        sources: Where the entities come from.
    """

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
    """Return the schema of the entities: nothing is stored that says nothing."""
    sizes = {name: len(values) for name, values in survey.dictionaries.items()}
    fields = [metadata_field(column.name, column.type, sizes.get(column.name)) for column in metadata]
    return entities_schema(survey.has_ids, survey.has_aliases, fields)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
