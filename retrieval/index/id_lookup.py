"""Entities by id without a pass over all ids: a sorted table of hashes, made in memory.

An id that is found is compared as text, so that equal hashes of different ids can cost time and nothing else.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_WORD = 8
# Odd multipliers with bits all over: those of the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


class IdLookup:
    """Finds the places of ids in a column.

    Memory: 16 bytes per id. To make it takes as long as some ten to twenty passes over the ids.

    Args:
        ids: All ids, none of them twice and none missing.

    Raises:
        ValueError: the column is not one of strings, or holds nulls.
    """

    def __init__(self, ids: pa.ChunkedArray) -> None:
        if ids.type != pa.string() or ids.null_count:
            raise ValueError(f"ids: expected strings without nulls, got {ids.type} with {ids.null_count}")
        self._ids = ids
        hashes = np.concatenate([np.empty(0, dtype=np.uint64), *map(hash_strings, ids.chunks)])
        self._begins = np.cumsum([0, *map(len, ids.chunks)])[:-1]
        self._places = np.argsort(hashes)
        self._hashes = hashes[self._places]

    def find(self, wanted: pa.Array) -> tuple[Numbers, bool]:
        """Look up ids.

        Args:
            wanted: Strings without nulls. Shape: (n,).

        Returns:
            The place of every id, -1 where it is none, and whether that is sure: it is not where an id has
            the hash of another one. Shape: (n,), int64.
        """
        found = np.full(len(wanted), -1, dtype=np.int64)
        if not len(self._hashes) or not len(wanted):
            return found, True
        hashes = hash_strings(wanted)
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        hits = np.flatnonzero(self._hashes[at] == hashes)
        places = self._places[at[hits]]
        is_same = self._are(places, wanted.take(pa.array(hits)))
        found[hits[is_same]] = places[is_same]
        return found, bool(is_same.all())

    def _are(self, places: Numbers, texts: pa.Array) -> npt.NDArray[np.bool_]:
        """Return whether the ids at some places are these texts. Shapes: (n,), (n,) -> (n,)."""
        order = np.argsort(places, kind="stable")
        # Chunk by chunk: Arrow's own look-up in several chunks at once goes through all of them first.
        chunk = np.searchsorted(self._begins, places[order], side="right") - 1
        present, begins = np.unique(chunk, return_index=True)
        same = np.empty(len(places), dtype=np.bool_)
        for number, members in zip(present.tolist(), np.split(order, begins[1:]), strict=True):
            found = self._ids.chunk(number).take(pa.array(places[members] - self._begins[number]))
            equal = pc.equal(found, texts.take(pa.array(members)))
            same[members] = equal.to_numpy(zero_copy_only=False)
        return same


def hash_strings(strings: pa.Array) -> Hashes:
    """Return 64 bits of every string, eight bytes of all of them at a time. Shape: (n,), uint64.

    Args:
        strings: Of type string, without nulls.
    """
    _, offsets_buffer, data = strings.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[
        strings.offset : strings.offset + len(strings) + 1
    ]
    begins, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    hashes = lengths.astype(np.uint64) * _SECOND
    text = np.zeros((0 if data is None else data.size) + _WORD, dtype=np.uint8)
    if data is not None:
        text[:-_WORD] = np.frombuffer(data, dtype=np.uint8)
    # Every eight bytes of the text, wherever they begin.
    words = np.ndarray(shape=(len(text) - _WORD + 1,), dtype="<u8", buffer=text, strides=(1,))
    rows = np.flatnonzero(lengths)
    done = 0
    while len(rows):
        word = words[begins[rows] + done]
        left = np.minimum(lengths[rows] - done, _WORD)
        # What stands behind the end of a string belongs to another one.
        word &= np.uint64(0xFFFFFFFFFFFFFFFF) >> ((_WORD - left) * 8).astype(np.uint64)
        hashes[rows] = _mixed(hashes[rows] ^ word)
        done += _WORD
        rows = rows[lengths[rows] > done]
    return hashes


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> _SHIFTS[0])) * _FIRST
    values = (values ^ (values >> _SHIFTS[1])) * _SECOND
    mixed: Hashes = values ^ (values >> _SHIFTS[2])
    return mixed
