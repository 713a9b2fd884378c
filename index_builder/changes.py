"""What an update does to the live version: which entities stay, go, come, or come in place of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index_builder.removals import Removals
from index_builder.runs import Run, windows
from index_builder.version_run import VersionRun
from retrieval.errors import SourceError
from retrieval.index.layout import ALIASES, ENTITY_ID
from retrieval.rejects import Reason, Rejects

# Between the aliases of an entity when they are compared as one text: no alias holds a control character.
_SEPARATOR = "\x1f"

# Looking ids up takes some 60 bytes for each, and one pass over the ids of the index.
_REMOVED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Changes:
    """How many entities an update touches.

    Attributes:
        added: Were not there.
        changed: Were there under their id, with another content.
        unchanged: Were there under their id, exactly so.
        removed: Are taken away.
        missing: Were to be taken away and were not there.
    """

    added: int
    changed: int
    unchanged: int
    removed: int
    missing: int

    @property
    def any(self) -> bool:
        """Whether anything will be different."""
        return bool(self.added or self.changed or self.removed)


def apply_changes(
    live: VersionRun, shards: Sequence[Run], removals: Removals, rejects: Rejects, ignore_missing: bool
) -> tuple[Changes, list[npt.NDArray[np.int32]]]:
    """Decide which entities of the live version and of the shards take part in the merge.

    The outcome is in their `keep`. Memory: the ids of one shard, or a million of those to remove, 60 bytes
    for each; 8 bytes per live entity; 4 per entity of a shard; and the entities of one window of 65,536.

    Args:
        live: The live version.
        shards: What is added; every entity they keep has another id.
        removals: What is taken away.
        rejects: Gets the ids to remove that are not there.
        ignore_missing: Counts these instead.

    Returns:
        The changes, and for every shard the number of the live entity that each of its entities replaces, or
        -1. Shape of each: (num_entities,).

    Raises:
        SourceError: an id is both added and taken away.
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
    """Take entities away; return how many, and how many ids are not there."""
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
            rejects.add(line, Reason.UNKNOWN_ID, entity_id, file=file)
    gone = np.unique(numbers[numbers >= 0])
    live.keep[gone] = False
    return len(gone), len(missing)


def _same_content(
    live: VersionRun, shard: Run, entities: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return which entities of a shard say what the live ones of the same id say. Shape: (n,)."""
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
    """Return values that are equal when what would be written is: floats by their bits, lists as text."""
    if name == ALIASES:
        return pc.binary_join(column.cast(pa.list_(pa.string())), _SEPARATOR)
    if pa.types.is_floating(column.type):
        return column.view(pa.int64())  # 0.0 and -0.0 are two values
    return column
