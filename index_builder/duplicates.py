"""Which records are entities of their own, and what their ids are.

With an id column, ids are unique: a record that repeats another word for word is dropped, one that says
something else about the same id is a bad row. Without one, an entity's id is its title; further, different
entities of that title get the ids `title#2`, `title#3`, … in the order of the source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from index_builder.catalogue import Catalogue
from retrieval.rejects import Reason, Rejects
from retrieval.sources import numbered_id


@dataclass(frozen=True, slots=True)
class Identities:
    """The outcome.

    Attributes:
        keep: Which records are entities. Shape: (E,), bool.
        entity_ids: Ids of all records, large_string; None when every id is the entity's title.
        duplicates: Records dropped because they repeat another.
    """

    keep: npt.NDArray[np.bool_]
    entity_ids: pa.Array | None
    duplicates: int


def resolve_identities(catalogue: Catalogue, rejects: Rejects) -> Identities:
    """Find repeated records and give every entity its id."""
    stored = catalogue.entity_ids
    keys = catalogue.titles if stored is None else stored
    hashes = np.fromiter(
        (_hash(key) for batch in _slices(keys) for key in batch.to_pylist()),
        dtype=np.uint64,
        count=len(keys),
    )
    keep = np.ones(len(keys), dtype=bool)
    duplicates = 0
    generated: dict[int, str] = {}
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    for begin, end in _runs(ordered):
        seen: dict[str, list[int]] = {}
        for record in order[begin:end].tolist():
            key = keys[record].as_py()
            earlier = seen.setdefault(key, [])
            if any(_content(catalogue, record) == _content(catalogue, other) for other in earlier):
                keep[record] = False
                duplicates += 1
                continue
            if earlier and stored is not None:
                keep[record] = False
                detail = f"{key!r}, first on line {catalogue.lines[earlier[0]]} with other fields"
                title = catalogue.titles[record].as_py()
                rejects.add(int(catalogue.lines[record]), Reason.DUPLICATE_ID, title, detail)
                continue
            if earlier:
                generated[record] = _free_id(key, len(earlier) + 1, ordered)
            earlier.append(record)
    return Identities(
        keep, _with_generated(catalogue.titles, generated) if stored is None else stored, duplicates
    )


def _free_id(title: str, number: int, ordered_hashes: npt.NDArray[np.uint64]) -> str:

    def is_title(text: str) -> bool:
        wanted = np.uint64(_hash(text))
        at = int(np.searchsorted(ordered_hashes, wanted))
        return at < len(ordered_hashes) and bool(ordered_hashes[at] == wanted)

    return numbered_id(title, number, is_title)


def _content(catalogue: Catalogue, record: int) -> tuple[object, ...]:
    cells = [column[record].as_py() for column in catalogue.metadata]
    return (catalogue.titles[record].as_py(), tuple(catalogue.aliases[record].as_py()), *cells)


def _with_generated(titles: pa.Array, generated: dict[int, str]) -> pa.Array | None:
    if not generated:
        return None
    places = np.array(sorted(generated), dtype=np.int64)
    chosen = np.zeros(len(titles), dtype=bool)
    chosen[places] = True
    values = pa.array([generated[place] for place in places.tolist()], type=pa.large_string())
    return pc.replace_with_mask(titles, pa.array(chosen), values)


def _runs(ordered: npt.NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Return [begin, end) of every run of at least two equal values."""
    if not len(ordered):
        return []
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    ends = np.append(begins[1:], len(ordered))
    return [(int(b), int(e)) for b, e in zip(begins, ends, strict=True) if e - b > 1]


def _hash(text: str) -> int:
    return int(xxhash.xxh3_64_intdigest(text.encode()))


def _slices(array: pa.Array, size: int = 1 << 16) -> list[pa.Array]:
    return [array.slice(begin, size) for begin in range(0, len(array), size)]
