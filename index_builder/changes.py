"""Compares the live version with the entities that an update adds and removes.

`apply_changes` decides which entities stay, go, come, or replace another. `Removals` are the ids to remove.
`VersionRun` is the live version as a sorted run, so that nothing of it is tokenised again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.index_builder.runs import FormSlice, Run, gather_rows, windows
from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.records import RejectReason, Rejects
from genret.retrieval.sources.source_files import ByteStream, digest_file, line_blocks

# Separates the aliases of an entity when they are compared as one text: no alias holds a control character.
_SEPARATOR = "\x1f"

# Looking up ids takes some 60 bytes each, and one pass over the ids of the index.
_REMOVED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Changes:
    """Number of entities that an update touches."""

    added: int
    changed: int  # same id, other content
    unchanged: int  # to be added, but there already with the same content
    removed: int
    missing: int  # to be removed, but not there

    @property
    def any(self) -> bool:
        """Whether the update changes anything."""
        return bool(self.added or self.changed or self.removed)


def apply_changes(
    live: VersionRun, shards: Sequence[Run], removals: Removals, rejects: Rejects, ignore_missing: bool
) -> tuple[Changes, list[npt.NDArray[np.int32]]]:
    """Decide which entities of the live version and of the shards take part in the merge.

    The outcome goes to their `keep`. Memory: the ids of one shard, or a million of those to remove, 60 bytes
    for each; 8 bytes per live entity; 4 per entity of a shard; and the entities of one window of 65,536. The
    ids of entities that the shards keep differ. Ids to remove that are not there are rejects, unless
    `ignore_missing`.

    Returns the changes, and for every shard the number of the live entity that each of its entities replaces,
    or -1. Shape of each: (num_entities,).

    Raises:
        SourceError: an id is both added and removed.
    """
    replaced = [np.full(shard.num_entities, -1, dtype=np.int32) for shard in shards]
    added = changed = unchanged = 0
    for shard, instead_of in zip(shards, replaced, strict=True):
        kept = np.flatnonzero(shard.keep)
        if not len(kept):
            continue
        ids = _ids(shard, kept)
        _refuse_conflicts(ids, removals, rejects)
        numbers = live.numbers(ids)
        known = np.flatnonzero(numbers >= 0)
        same = _same_content(live, shard, kept[known], numbers[known])
        shard.keep[kept[known[same]]] = False
        live.keep[numbers[known[~same]]] = False
        instead_of[kept[known[~same]]] = numbers[known[~same]]
        added += len(kept) - len(known)
        changed += len(known) - int(same.sum())
        unchanged += int(same.sum())
    removed, missing = _remove(live, removals, rejects, ignore_missing)
    return Changes(added, changed, unchanged, removed, missing), replaced


def _ids(run: Run, numbers: npt.NDArray[np.int64]) -> pa.Array:
    parts = []
    for low, high, inside in windows(numbers):
        column = run.entities(low, high).column(ENTITY_ID)
        parts += column.take(pa.array(numbers[inside] - low)).chunks
    return pa.concat_arrays(parts)


def _refuse_conflicts(ids: pa.Array, removals: Removals, rejects: Rejects) -> None:
    clash = pc.index_in(removals.entity_ids, value_set=ids).is_valid().to_numpy(zero_copy_only=False)
    if clash.any():
        first = int(clash.argmax())
        raise SourceError(
            f"{removals.place(first, rejects)}: the entity {removals.entity_ids[first].as_py()!r} is to be "
            f"removed, but the same update adds it ({int(clash.sum())} such ids); do one or the other"
        )


def _remove(live: VersionRun, removals: Removals, rejects: Rejects, ignore_missing: bool) -> tuple[int, int]:
    """Remove entities; return how many, and how many ids are not there."""
    if not len(removals):
        return 0, 0
    numbers = np.concatenate(
        [
            live.numbers(pa.concat_arrays(removals.entity_ids.slice(begin, _REMOVED_AT_ONCE).chunks))
            for begin in range(0, len(removals), _REMOVED_AT_ONCE)
        ]
    )
    missing = np.flatnonzero(numbers < 0)
    if not ignore_missing:
        for number in missing.tolist():
            entity_id = removals.entity_ids[number].as_py()
            line, file = int(removals.lines[number]), int(removals.files[number])
            rejects.add(line, RejectReason.UNKNOWN_ID, entity_id, file=file)
    gone = np.unique(numbers[numbers >= 0])
    live.keep[gone] = False
    return len(gone), len(missing)


def _same_content(
    live: VersionRun, shard: Run, entities: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which entities of a shard equal the live ones of the same ids. Shape: (n,)."""
    same = np.empty(len(entities), dtype=bool)
    for low, high, inside in windows(entities):
        new = shard.entities(low, high).take(pa.array(entities[inside] - low))
        same[inside] = equal_entities(live.entities_at(numbers[inside]), new)
    return same


def equal_entities(left: pa.Table, right: pa.Table) -> npt.NDArray[np.bool_]:
    """Compare two tables of the same columns row by row. Shape: (n,)."""
    equal = np.ones(left.num_rows, dtype=bool)
    for name in left.column_names:
        one, other = (_comparable(table.column(name).combine_chunks(), name) for table in (left, right))
        both_null = pc.and_(one.is_null(), other.is_null())
        equal &= pc.or_(pc.equal(one, other).fill_null(False), both_null).to_numpy(zero_copy_only=False)
        if name == ALIASES:
            lengths = [pc.list_value_length(table.column(name)).to_numpy() for table in (left, right)]
            equal &= lengths[0] == lengths[1]
    return equal


def _comparable(column: pa.Array, name: str) -> pa.Array:
    """Return values that are equal when the stored ones are: floats by their bits, lists as text."""
    if name == ALIASES:
        return pc.binary_join(column.cast(pa.list_(pa.string())), _SEPARATOR)
    if pa.types.is_floating(column.type):
        return column.view(pa.int64())  # 0.0 and -0.0 are two values
    return column


@dataclass(frozen=True, slots=True)
class Removals:
    """Ids to remove, as they were given, possibly repeated. 12 bytes per id and its text."""

    entity_ids: pa.ChunkedArray  # shape (n,), string
    files: npt.NDArray[np.int32]  # number of each id's file among the files of the rejects
    lines: npt.NDArray[np.int64]  # line of each id there, from 1
    sources: tuple[FileEntry, ...]  # the files; ids from the command line form one called `--remove-id`

    def __len__(self) -> int:
        return len(self.entity_ids)

    def place(self, number: int, rejects: Rejects) -> str:
        """Return the file and line of an id."""
        return f"{rejects.files[int(self.files[number])]}, line {int(self.lines[number])}"


COMMAND_LINE = "--remove-id"


def read_removals(paths: Sequence[str | Path], entity_ids: Sequence[str], rejects: Rejects) -> Removals:
    """Read files of ids, one per line, plain or compressed; empty lines are skipped.

    Ids are normalised like those of a catalogue: NFC, white space squeezed. The files are appended to those
    of `rejects`, which gets the lines that are not UTF-8; `entity_ids`, if any, form a last file.

    Raises:
        SourceError: a file cannot be read.
    """
    first = len(rejects.files)
    rejects.files = (*rejects.files, *map(str, paths), *([COMMAND_LINE] if entity_ids else []))
    ids: list[pa.Array] = []
    files = [np.empty(0, dtype=np.int32)]
    lines = [np.empty(0, dtype=np.int64)]
    for file, block in _blocks(paths, entity_ids, first, rejects):
        ids.append(pa.array([entity_id for _, entity_id in block], type=pa.string()))
        files.append(np.full(len(block), file, dtype=np.int32))
        lines.append(np.array([line for line, _ in block], dtype=np.int64))
    data = "".join(f"{entity_id}\n" for entity_id in entity_ids).encode()  # as a file of them would be
    given = [FileEntry(COMMAND_LINE, len(data), digest_bytes(data))] if entity_ids else []
    return Removals(
        entity_ids=pa.chunked_array(ids, type=pa.string()),
        files=np.concatenate(files),
        lines=np.concatenate(lines),
        sources=(*map(digest_file, paths), *given),
    )


def _blocks(
    paths: Sequence[str | Path], entity_ids: Sequence[str], first: int, rejects: Rejects
) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Yield a file's number with a block of its lines and ids."""
    for file, path in enumerate(paths, start=first):
        for block in _read(path, file, rejects):
            yield file, block
    yield first + len(paths), [(line, normalize(text)) for line, text in enumerate(entity_ids, start=1)]


def _read(path: str | Path, file: int, rejects: Rejects) -> Iterator[list[tuple[int, str]]]:
    if not Path(path).is_file():
        raise SourceError(f"{path}: no such file; ids to remove are read from files, one id per line")
    with closing(ByteStream(path)) as stream:
        for first, block in line_blocks(stream, 0):
            ids: list[tuple[int, str]] = []
            for line, raw in enumerate(block.split(b"\n"), start=first):
                try:
                    entity_id = normalize(raw.decode("utf-8"))
                except UnicodeDecodeError as error:
                    rejects.add(line, RejectReason.BAD_UTF8, raw, f"byte {error.start + 1}", file)
                    continue
                if entity_id:
                    ids.append((line, entity_id))
            yield ids


class VersionRun:
    """A `Run` over an open index, whose rows and entities are already in the order of a run.

    Its files are mapped: pages that were read count as resident, but the system may take them back.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._offsets = index.postings.offsets
        self.num_entities = index.num_entities
        self.num_forms = index.manifest.counts.postings
        self.keep: npt.NDArray[np.bool_] = np.ones(index.num_entities, dtype=bool)
        self.has_ids = index.manifest.stored_ids

    def find(self, row: Sequence[int]) -> int:
        """Return how many forms sort before `row`."""
        return int(self._offsets[self._index.rows.lower_bound(row)])

    def row(self, number: int) -> tuple[int, ...]:
        """Return the row of form `number`."""
        return self._index.rows.token_ids(self._rank(number))

    def forms(self, begin: int, end: int) -> FormSlice:
        """Return forms begin … end - 1."""
        first, last = (self._rank(begin), self._rank(end - 1) + 1) if begin < end else (0, 0)
        tokens, offsets = self._index.rows.slice(first, last)
        if last - first != end - begin:  # several entities share a row
            bounds = np.clip(self._offsets[first : last + 1], begin, end)
            repeated = np.repeat(np.arange(last - first), np.diff(bounds))
            tokens, offsets = gather_rows(tokens, offsets, repeated)
        postings = self._index.postings
        return FormSlice(
            tokens=tokens,
            offsets=offsets,
            entity=postings.entity[begin:end].astype(np.int64),
            form=postings.form[begin:end].astype(np.int32),
        )

    def entities(self, begin: int, end: int) -> pa.Table:
        """Return entities begin … end - 1: id, title, aliases and metadata, decoded."""
        return self._decoded(self._index.entities.slice(begin, end))

    def entities_at(self, numbers: npt.NDArray[np.int64]) -> pa.Table:
        """Return some entities in the given order, with the columns of `entities`. Shape: (n,), n > 0."""
        return self._decoded(self._index.entities.take(numbers))

    def numbers(self, entity_ids: pa.Array) -> npt.NDArray[np.int64]:
        """Return the numbers of entities by their ids; -1 where an id is unknown."""
        return self._index.entities.numbers(entity_ids).astype(np.int64)

    def _decoded(self, stored: pa.Table) -> pa.Table:
        title = stored.column(TITLE)
        ids = stored.column(ENTITY_ID) if self.has_ids else title
        if ALIASES in stored.column_names:
            aliases = stored.column(ALIASES)
        else:
            aliases = pa.array([[]] * stored.num_rows, pa.list_(pa.string()))
        columns = {ENTITY_ID: ids, TITLE: title, ALIASES: aliases}
        for name in self._index.metadata_columns:
            column = stored.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            columns[name] = column
        return pa.table(columns)

    def _rank(self, form: int) -> int:
        return int(np.searchsorted(self._offsets, self._offsets.dtype.type(form), side="right")) - 1
