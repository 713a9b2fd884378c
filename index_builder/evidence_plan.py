"""What evidence a build would make: how many texts, how many vectors in which kind of index, how large."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_builder.evidence_wish import EvidenceWish, VectorWish, text_columns
from index_builder.past_queries import count_queries
from index_builder.runs import Run, windows
from retrieval.index.layout import ALIASES, TITLE
from retrieval.index.manifest import MetadataColumn
from retrieval.rejects import Rejects
from retrieval.vectors.faiss_index import kind_of, new_index, num_cells, num_subquantisers

# Bytes of a field for every text, and for every byte of it: measured on titles and on descriptions.
_PER_TEXT, _PER_BYTE = 9, 2.1
# Beside what is found, past queries are stored themselves.
_PER_QUERY = 8
# Bytes of a number and of an id.
_WORD = 4
_ID = 8
# A node of hnsw with 32 neighbours: twice as many on the lowest level, some above, its level and its offset.
_GRAPH_NODE = 4 * 64 + 20
_LEVEL_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """The evidence by words and letters of a build that is only reckoned up.

    Attributes:
        names: Titles and aliases, those of one entity that are equal counted twice.
        columns: Columns of texts.
        texts: Values of these columns.
        queries: Lines of past queries, those for entities that are not there included.
        bytes: About the size of their files.
    """

    names: int
    columns: tuple[str, ...]
    texts: int
    queries: int
    bytes: int

    def describe(self) -> str:
        """Return it in one line."""
        texts = f", {self.texts:,} texts of {', '.join(self.columns)}" if self.columns else ""
        queries = f", up to {self.queries:,} past queries" if self.queries else ""
        return f"evidence: {self.names:,} names{texts}{queries}, about {self.bytes:,} bytes"


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


def plan_evidence(
    wish: EvidenceWish, shards: Sequence[Run], columns: Sequence[MetadataColumn], rejects: Rejects
) -> EvidencePlan:
    """Reckon up the evidence by words and letters of the entities that some runs keep.

    Files of past queries are read; whether the entities are there is not looked up.

    Raises:
        SourceError: a file of queries cannot be used, or has far more bad lines than allowed.
    """
    chosen = text_columns(wish.columns, {column.name: column.type for column in columns})
    names, name_bytes, texts, text_bytes = _count_texts(shards, chosen)
    queries, query_bytes = count_queries(wish.queries, rejects)
    size = _PER_TEXT * (names + texts) + _PER_BYTE * (name_bytes + text_bytes)
    size += _PER_QUERY * queries + (_PER_BYTE + 1) * query_bytes
    return EvidencePlan(names, chosen, texts, queries, round(size))


def plan_vectors(wish: VectorWish, shards: Sequence[Run], columns: Sequence[MetadataColumn]) -> VectorPlan:
    """Reckon up the vectors of the entities that some runs keep.

    Raises:
        InputError: faiss knows no such kind of index, or it cannot hold such vectors.
        MissingExtraError: faiss is not installed.
    """
    chosen = text_columns(wish.options.columns, {column.name: column.type for column in columns})
    names, _, values, _ = _count_texts(shards, chosen)
    texts = names + values
    kind = kind_of(wish.options.kind, texts)
    dimensions = _dimensions(wish)
    size = None
    if dimensions is not None:
        index = new_index(kind, wish.options.kind, dimensions, texts, wish.options.seed)
        size = round(texts * _bytes_per_text(kind, index, dimensions)) + _fixed_bytes(kind, texts, dimensions)
    return VectorPlan(str(wish.method), texts, dimensions, kind, size)


def _count_texts(shards: Sequence[Run], columns: Sequence[str]) -> tuple[int, int, int, int]:
    """Return how many names there are and their bytes, and the same of texts of columns."""
    sums = [0, 0, 0, 0]
    for shard in shards:
        kept = np.flatnonzero(shard.keep)
        for low, high, inside in windows(kept):
            table = shard.entities(low, high).take(pa.array(kept[inside] - low))
            for column in (table.column(TITLE), pc.list_flatten(table.column(ALIASES))):
                sums[0] += len(column)
                sums[1] += pc.sum(pc.binary_length(column)).as_py() or 0
            for name in columns:
                said = table.column(name).filter(
                    pc.not_equal(pc.utf8_trim_whitespace(table.column(name)), "")
                )
                sums[2] += len(said)
                sums[3] += pc.sum(pc.binary_length(said)).as_py() or 0
    return sums[0], sums[1], sums[2], sums[3]


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
