"""What an update does with the vectors of an index, and which entity every new one was before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from index_builder.runs import IntArray, Run
from index_builder.vector_wish import VectorChange
from index_builder.vectors import check_keeping
from retrieval.index.reader import Index

VectorFate = Literal["absent", "kept", "carried over", "made", "dropped"]


def check_vectors(change: VectorChange, index: Index) -> None:
    """Refuse what cannot be done with the vectors of an index, before anything else is read.

    Raises:
        InputError: a column has no texts, or what keeping vectors in step needs is not there.
        IndexChecksumError: the vectors that are to be kept are damaged.
    """
    if change.wish is not None:
        change.wish.check_columns(index.metadata_types)
    elif not change.drop:
        check_keeping(index, change.encoder, change.device)


def vector_fate(change: VectorChange, index: Index, rewritten: bool) -> VectorFate:
    """Return what becomes of the vectors.

    Args:
        change: What is asked for.
        index: The live version.
        rewritten: Whether the other files of the new version are written anew.
    """
    if change.wish is not None:
        return "made"
    if index.vectors is None:
        return "absent"
    if change.drop:
        return "dropped"
    return "carried over" if rewritten else "kept"


class Ancestry:
    """Which entity of the live version each entity of the new one was; 16 bytes per entity.

    Args:
        num_live: Entities of the live version.
        runs: The live version, then the shards. Those that keep no entity take no part in the merge.
        replaced: For every shard, the live entity that each of its entities replaces, or -1. Shape of each:
            (num_entities of the shard,), int32.
    """

    def __init__(self, num_live: int, runs: Sequence[Run], replaced: Sequence[npt.NDArray[np.int32]]) -> None:
        numbers = [np.arange(num_live, dtype=np.int32), *replaced]
        merged = [was for run, was in zip(runs, numbers, strict=True) if run.keep.any()]
        self._number = np.concatenate(merged)
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, sources: IntArray) -> None:
        """Note which entities of the runs, counted through, get the next numbers."""
        self._parts.append(self._number[sources])

    def numbers(self) -> npt.NDArray[np.int64]:
        """Return the number that each entity had, -1 for new ones. Shape: (num_entities,)."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._parts])
