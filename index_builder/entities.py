"""Decides which records are entities and what their ids are, and writes the entities of a version.

With an id column, ids are unique: a record that repeats the first of its id word for word is dropped, and one
that contradicts it is a bad row. Without one, an entity's id is its title; further, different entities of
that title get the ids `title#2`, `title#3`, … in the order of the source, with more "#" at the end where a
title has that form, so that no two of these ids are equal.

Records are compared by 128 bits of hashes, which shards hold, in as many passes as the memory limit requires.
Two different keys among n collide by accident with a probability of n²/2¹²⁹, 5·10⁻²⁶ for six million;
collisions can be constructed.

Entities are written in their final order, gathered from the runs batch by batch. A first pass over all of
them (`survey`) decides how they are stored: ids, aliases, dictionaries. The layout of arrays is canonical:
equal values give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.index_builder.runs import IntArray, Run, ShardRun, digest_texts, tied_places, windows
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
from genret.retrieval.sources.records import RejectReason, Rejects

HashArray = npt.NDArray[np.uint64]

# Per record of a pass, if every record has a namesake: digests, places, sequence, and sorting them.
_BYTES_PER_RECORD = 160
_NAMED_AT_ONCE = 1 << 16


class _Namesakes(NamedTuple):
    """n records that share their key with another one, ordered by key, then by the source."""

    place: IntArray  # number among the entities of all shards
    group_begin: IntArray  # place in these arrays of the first record with the same key
    content: HashArray  # digest of the rest of the record, in two halves; shape (2, n)


def resolve_identities(
    shards: Sequence[ShardRun], names: Sequence[str], rejects: Rejects, memory_bytes: int
) -> int:
    """Find repeated records and give every entity its id; return the number of repeated records.

    The shards are all, in the order of the source; the outcome goes to them. Records that contradict an
    earlier one of their id go to `rejects`; `names` are the files' names for messages.

    Raises:
        SourceError: there are so many bad rows that reading on is pointless.
    """
    if not shards:
        return 0
    bases = np.cumsum([0, *(shard.num_entities for shard in shards)])
    passes = max(1, -(-int(bases[-1]) * _BYTES_PER_RECORD // max(memory_bytes, 1)))
    with_ids = shards[0].shape.has_ids
    duplicates = 0
    for number in range(passes):
        namesakes = _find_namesakes(shards, bases, number, passes)
        if with_ids:
            dropped, conflicts = _judge_ids(namesakes)
            _reject(shards, bases, namesakes, conflicts, names, rejects)
        else:
            dropped = _number(shards, bases, namesakes)
        duplicates += len(dropped)
        for shard, _, entities in _by_run(shards, bases, namesakes.place[dropped]):
            shard.keep[entities] = False
    if not with_ids:
        _dodge_titles(shards)
    return duplicates


def _find_namesakes(shards: Sequence[ShardRun], bases: IntArray, number: int, passes: int) -> _Namesakes:
    keys, places = [], []
    for shard, base in zip(shards, bases.tolist(), strict=False):
        half = shard.key_half("key", 0)
        chosen = np.flatnonzero(half % np.uint64(passes) == number) if passes > 1 else np.arange(len(half))
        keys.append(half[chosen])
        places.append(chosen + base)
    key, place = np.concatenate(keys), np.concatenate(places)
    del keys, places
    order = np.argsort(key, kind="stable")
    shared = order[tied_places(key[order])]
    return _describe(shards, bases, key[shared], place[shared])


def _describe(shards: Sequence[ShardRun], bases: IntArray, key: HashArray, place: IntArray) -> _Namesakes:
    """Load the other hashes of the records at some places, and group the records by key."""
    other_half = np.empty(len(place), dtype=np.uint64)
    content = np.empty((2, len(place)), dtype=np.uint64)
    sequence = np.empty(len(place), dtype=np.int64)
    for shard, here, entities in _by_run(shards, bases, place):
        other_half[here] = shard.key_half("key", 1)[entities]
        for half in (0, 1):
            content[half, here] = shard.key_half("content", half)[entities]
        sequence[here] = shard.numbers("sequence")[entities] + place[here] - entities
    order = np.lexsort((sequence, other_half, key))
    key, other_half = key[order], other_half[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (key[1:] != key[:-1]) | (other_half[1:] != other_half[:-1])
    begins = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    return _Namesakes(place[order], begins, content[:, order])


def _judge_ids(namesakes: _Namesakes) -> tuple[IntArray, IntArray]:
    """Return those that repeat the first record of their id, and those that contradict it."""
    content, begin = namesakes.content, namesakes.group_begin
    later = begin != np.arange(len(begin))
    equal = (content == content[:, begin]).all(axis=0)
    return np.flatnonzero(later & equal), np.flatnonzero(later & ~equal)


def _number(shards: Sequence[ShardRun], bases: IntArray, namesakes: _Namesakes) -> IntArray:
    """Number different records of one title in the order of the source; return the repeated ones."""
    content, begin = namesakes.content, namesakes.group_begin
    order = np.lexsort((np.arange(len(begin)), content[1], content[0], begin))
    repeats = np.zeros(len(begin), dtype=bool)
    repeats[order[1:]] = (begin[order[1:]] == begin[order[:-1]]) & (
        content[:, order[1:]] == content[:, order[:-1]]
    ).all(axis=0)
    count = np.cumsum(~repeats)
    number = count - (count[begin] - 1)  # the first of a group repeats nothing
    homonyms = np.flatnonzero(~repeats & (number > 1))
    places = namesakes.place[homonyms]
    for shard, here, entities in _by_run(shards, bases, places):
        shard.number_homonyms(entities, number[homonyms[here]])
    return np.flatnonzero(repeats)


_Run = TypeVar("_Run", bound=Run)


def _by_run(
    runs: Sequence[_Run], bases: IntArray, sources: IntArray
) -> Iterator[tuple[_Run, npt.NDArray[np.int64], IntArray]]:
    """Yield every run that has some of the entities `sources`, which are counted over all runs.

    With it come places in `sources`, ascending, and the numbers of the entities there in the run.
    """
    run_of = np.searchsorted(bases, sources, side="right") - 1
    order = np.argsort(run_of, kind="stable")
    present, begins = np.unique(run_of[order], return_index=True)
    for number, places in zip(present.tolist(), np.split(order, begins[1:]), strict=False):  # one if empty
        yield runs[number], places, sources[places] - bases[number]


def _reject(
    shards: Sequence[ShardRun],
    bases: IntArray,
    namesakes: _Namesakes,
    conflicts: IntArray,
    names: Sequence[str],
    rejects: Rejects,
) -> None:
    for begin in range(0, len(conflicts), _NAMED_AT_ONCE):
        chosen = conflicts[begin : begin + _NAMED_AT_ONCE]
        firsts = namesakes.place[namesakes.group_begin[chosen]]
        for shard, _, entities in _by_run(shards, bases, namesakes.place[chosen]):
            shard.keep[entities] = False
        lines = {place: where for place, where, _, _ in _records_at(shards, bases, np.unique(firsts))}
        first_of = dict(zip(namesakes.place[chosen].tolist(), firsts.tolist(), strict=True))
        for place, (file, line), entity_id, title in _records_at(shards, bases, namesakes.place[chosen]):
            first_file, first_line = lines[first_of[place]]
            source = "" if first_file == file else f" of {names[first_file]}"
            detail = f"{entity_id!r}, first on {rejects.unit} {first_line}{source} with other fields"
            rejects.add(line, RejectReason.DUPLICATE_ID, title, detail, file)


def _records_at(
    shards: Sequence[ShardRun], bases: IntArray, places: IntArray
) -> Iterator[tuple[int, tuple[int, int], str, str]]:
    """Yield place, (file, line), id and title of records."""
    places = np.sort(places)
    for shard, here, entities in _by_run(shards, bases, places):
        texts = shard.texts_at(entities)
        lines = (shard.numbers(name)[entities].tolist() for name in ("file", "line"))
        yield from zip(
            places[here].tolist(),
            zip(*lines, strict=True),
            texts.column(ENTITY_ID).to_pylist(),
            texts.column(TITLE).to_pylist(),
            strict=True,
        )


def _dodge_titles(shards: Sequence[ShardRun]) -> None:
    """Add "#" to new ids until none of them is a title of the source."""
    for shard in shards:
        homonyms = shard.homonyms()
        for begin in range(0, len(homonyms), _NAMED_AT_ONCE):
            entities = homonyms[begin : begin + _NAMED_AT_ONCE]
            while len(entities):
                taken = _are_titles(shards, shard.ids_of_homonyms(entities))
                entities = entities[taken]
                shard.mark_homonyms(entities)


def _are_titles(shards: Sequence[ShardRun], texts: list[str]) -> npt.NDArray[np.bool_]:
    wanted = digest_texts(texts)
    order = np.argsort(wanted[:, 0], kind="stable")
    ordered = wanted[order, 0]
    titles: set[tuple[int, int]] = set()
    for shard in shards:
        half = shard.key_half("key", 0)
        at = np.minimum(np.searchsorted(ordered, half), len(ordered) - 1)
        found = np.flatnonzero(ordered[at] == half)
        if len(found):
            titles.update(zip(half[found].tolist(), shard.key_half("key", 1)[found].tolist(), strict=True))
    return np.array([(low, high) in titles for low, high in wanted.tolist()], dtype=bool)


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
                others = table.column(name).unique().drop_null().cast(pa.string())
                united = pa.concat_arrays([values, others]).unique()
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
        for run, places, numbers in _by_run(self._runs, self.begins, sources):
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
        return self.gather(sources, _ID_SCHEMA).column(ENTITY_ID).combine_chunks()


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
        columns = [self._stored(table.column(field.name).combine_chunks(), field) for field in self._schema]
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
