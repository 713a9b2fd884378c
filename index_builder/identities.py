"""Decides which records are entities of their own, and what their ids are.

With an id column, ids are unique: a record that repeats the first of its id word for word is dropped, and one
that contradicts it is a bad row. Without one, an entity's id is its title; further, different entities of
that title get the ids `title#2`, `title#3`, … in the order of the source, with more "#" at the end where a
title has that form, so that no two of these ids are equal.

Records are compared by 128 bits of hashes, which shards hold, in as many passes as the memory limit requires.
Two different keys among n collide by accident with a probability of n²/2¹²⁹, 5·10⁻²⁶ for six million;
collisions can be constructed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genret.index_builder.runs import IntArray
from genret.index_builder.shards import ShardRun, digest_texts
from genret.retrieval.index.layout import ENTITY_ID, TITLE
from genret.retrieval.sources.rejects import RejectReason, Rejects

HashArray = npt.NDArray[np.uint64]

# Per record of a pass, if every record has a namesake: digests, places, sequence, and sorting them.
_BYTES_PER_RECORD = 160
_NAMED_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class _Namesakes:
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
        for shard, entities in _by_shard(shards, bases, namesakes.place[dropped]):
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
    ordered = key[order]
    same = np.zeros(len(order) + 1, dtype=bool)
    same[1:-1] = ordered[1:] == ordered[:-1]
    shared = order[same[1:] | same[:-1]]
    return _describe(shards, bases, key[shared], place[shared])


def _describe(shards: Sequence[ShardRun], bases: IntArray, key: HashArray, place: IntArray) -> _Namesakes:
    """Load the other hashes of the records at some places, and group the records by key."""
    other_half = np.empty(len(place), dtype=np.uint64)
    content = np.empty((2, len(place)), dtype=np.uint64)
    sequence = np.empty(len(place), dtype=np.int64)
    for number, (shard, base) in enumerate(zip(shards, bases.tolist(), strict=False)):
        here = np.flatnonzero((place >= base) & (place < bases[number + 1]))
        if not len(here):
            continue
        entities = place[here] - base
        other_half[here] = shard.key_half("key", 1)[entities]
        for half in (0, 1):
            content[half, here] = shard.key_half("content", half)[entities]
        sequence[here] = shard.numbers("sequence")[entities] + base
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
    for index, (shard, base) in enumerate(zip(shards, bases.tolist(), strict=False)):
        here = np.flatnonzero((places >= base) & (places < bases[index + 1]))
        shard.number_homonyms(places[here] - base, number[homonyms[here]])
    return np.flatnonzero(repeats)


def _by_shard(
    shards: Sequence[ShardRun], bases: IntArray, places: IntArray
) -> Iterator[tuple[ShardRun, IntArray]]:
    """Yield every shard with those of its entities that are at some places, ascending."""
    places = np.sort(places)
    bounds = np.searchsorted(places, bases)
    for number, shard in enumerate(shards):
        yield shard, places[bounds[number] : bounds[number + 1]] - bases[number]


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
        for shard, entities in _by_shard(shards, bases, namesakes.place[chosen]):
            shard.keep[entities] = False
        lines = {place: where for place, where, _, _ in _records_at(shards, bases, np.unique(firsts))}
        first_of = dict(zip(namesakes.place[chosen].tolist(), firsts.tolist(), strict=True))
        for place, (file, line), entity_id, title in _records_at(shards, bases, namesakes.place[chosen]):
            first_file, first_line = lines[first_of[place]]
            source = "" if first_file == file else f" of {names[first_file]}"
            detail = f"{entity_id!r}, first on line {first_line}{source} with other fields"
            rejects.add(line, RejectReason.DUPLICATE_ID, title, detail, file)


def _records_at(
    shards: Sequence[ShardRun], bases: IntArray, places: IntArray
) -> Iterator[tuple[int, tuple[int, int], str, str]]:
    """Yield place, (file, line), id and title of records."""
    for number, (shard, entities) in enumerate(_by_shard(shards, bases, places)):
        if not len(entities):
            continue
        texts = shard.texts_at(entities)
        lines = (shard.numbers(name)[entities].tolist() for name in ("file", "line"))
        yield from zip(
            (entities + bases[number]).tolist(),
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
