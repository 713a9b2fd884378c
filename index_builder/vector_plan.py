"""What vectors a build would make: how many, in which kind of index, how large."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_builder.runs import Run, windows
from index_builder.vector_wish import DESCRIPTION, VectorWish
from retrieval.index.layout import ALIASES
from retrieval.index.manifest import MetadataColumn
from retrieval.vectors.faiss_index import kind_of, new_index, num_cells, num_subquantisers

# Bytes of a number and of an id.
_WORD = 4
_ID = 8
# A node of hnsw with 32 neighbours: twice as many on the lowest level, some above, its level and its offset.
_GRAPH_NODE = 4 * 64 + 20
_LEVEL_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class VectorPlan:
    """The vectors of a build that is only reckoned up.

    Attributes:
        method: What would make them.
        texts: How many there would be at most: texts that an entity has twice count once in a build.
        dimensions: Length of each; None where the model alone knows.
        kind: "flat", "hnsw", "ivfpq" or "factory".
        bytes: About the size of vectors.faiss; None where it cannot be told without the model.
    """

    method: str
    texts: int
    dimensions: int | None
    kind: str
    bytes: int | None

    def describe(self) -> str:
        """Return it in one line."""
        noun = "text" if self.texts == 1 else "texts"
        size = "of a size that the model decides"
        if self.bytes is not None:
            size = f"of {self.dimensions} dimensions, about {self.bytes:,} bytes"
        return f"vectors: {self.method}, up to {self.texts:,} {noun}, {self.kind}, {size}"


def plan_vectors(wish: VectorWish, shards: Sequence[Run], columns: Sequence[MetadataColumn]) -> VectorPlan:
    """Reckon up the vectors of the entities that some runs keep.

    Raises:
        InputError: faiss knows no such kind of index, or it cannot hold such vectors.
        MissingExtraError: faiss is not installed.
    """
    strings = [column.name for column in columns if column.type == "string"]
    asked = wish.options.columns
    texts = _count_texts(shards, asked if asked is not None else [n for n in strings if n == DESCRIPTION])
    kind = kind_of(wish.options.kind, texts)
    dimensions = _dimensions(wish)
    size = None
    if dimensions is not None:
        index = new_index(kind, wish.options.kind, dimensions, texts, wish.options.seed)
        size = round(texts * _bytes_per_text(kind, index, dimensions)) + _fixed_bytes(kind, texts, dimensions)
    return VectorPlan(str(wish.method), texts, dimensions, kind, size)


def _count_texts(shards: Sequence[Run], columns: Sequence[str]) -> int:
    total = 0
    for shard in shards:
        kept = np.flatnonzero(shard.keep)
        for low, high, inside in windows(kept):
            table = shard.entities(low, high).take(pa.array(kept[inside] - low))
            total += table.num_rows + (pc.sum(pc.list_value_length(table.column(ALIASES))).as_py() or 0)
            for name in columns:
                said = pc.not_equal(pc.utf8_trim_whitespace(table.column(name)), "")
                total += pc.sum(said).as_py() or 0
    return total


def _dimensions(wish: VectorWish) -> int | None:
    try:
        config = json.loads((Path(wish.method.source) / "config.json").read_bytes())
        size = config.get("hidden_size", config.get("d_model"))
    except (OSError, ValueError, AttributeError):  # a hub id, or a model that says it elsewhere
        return None
    return size if type(size) is int and size > 0 else None


def _bytes_per_text(kind: str, index: Any, dimensions: int) -> float:
    if kind == "ivfpq":
        return num_subquantisers(dimensions) / 2 + _ID
    if kind == "hnsw":
        return _WORD * dimensions + _ID + _GRAPH_NODE * (1 + _LEVEL_SHARE)
    if kind == "flat":
        return _WORD * dimensions + _ID
    inner = getattr(index, "index", index)  # without the map of ids
    try:
        return float(inner.sa_code_size()) + _ID
    except RuntimeError:  # not every index of faiss knows
        return float(_WORD * dimensions) + _ID


def _fixed_bytes(kind: str, texts: int, dimensions: int) -> int:
    """Return what quantisers take: centroids of the cells, and sixteen of every part of a vector."""
    return _WORD * dimensions * (num_cells(texts) + 16) if kind == "ivfpq" else 0
