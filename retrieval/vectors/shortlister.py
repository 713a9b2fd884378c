"""From queries to shortlists: the embedder and the vectors of one index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from retrieval.errors import IndexFormatError
from retrieval.index.layout import VECTORS_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.embedder import FloatMatrix, TextEmbedder, open_embedder
from retrieval.vectors.faiss_index import faiss_threads, open_vectors, vectors_entry
from retrieval.vectors.searching import FloatArray, IntArray, Mask, Shortlist, VectorSearcher


class Shortlister:
    """Proposes entities of one index. Safe to use from several threads.

    A search of many vectors is shared out among a few threads of its own, which work while the one that asks
    waits; faiss starts no others.

    Args:
        entry: What the manifest says about the vectors.
        embedder: Made them.
        searcher: Searches them.
        num_bytes: Of the file.
    """

    def __init__(
        self, entry: VectorsEntry, embedder: TextEmbedder, searcher: VectorSearcher, num_bytes: int
    ) -> None:
        self.entry = entry
        self._embedder = embedder
        self._searcher = searcher
        self._num_bytes = num_bytes

    @classmethod
    def open(cls, index: Index, encoder: str | Path | None = None, device: str = "cpu") -> Self:
        """Open the vectors of an index.

        Args:
            index: An open index.
            encoder: Where the encoder that made the vectors lies now; None: where it lay then.
            device: Where an encoder runs.

        Raises:
            EvidenceMissingError: the index has no vectors.
            IndexChecksumError: their file differs from the manifest.
            IndexFormatError: it is no file of vectors, one of other vectors than the manifest says, or one
                made by a method that this version no longer has.
            IndexMismatchError: the encoder is not the one that made them.
            ModelError: the encoder cannot be loaded.
            MissingExtraError: a library is not installed.
        """
        entry = vectors_entry(index)
        searcher = VectorSearcher(open_vectors(index), index.num_entities, entry.effort)
        if entry.kind == "factory" and (refusal := searcher.refusal()) is not None:
            raise IndexFormatError(f"{VECTORS_FILE}: {entry.factory} cannot be searched: {refusal}")
        embedder = open_embedder(entry, encoder, device)
        file = index.manifest.file(VECTORS_FILE)
        return cls(entry, embedder, searcher, 0 if file is None else file.bytes)

    def embed(self, texts: Sequence[str]) -> FloatMatrix:
        """Return the vectors of queries. Shape: (len(texts), dimensions)."""
        return self._embedder.embed_queries(texts)

    def search(self, vector: FloatArray, size: int, allowed: Mask | None) -> Shortlist:
        """Return the entities nearest to a query, best first.

        Args:
            vector: Of the query. Shape: (dimensions,).
            size: Most entities, at least 1; there are fewer only where fewer are allowed.
            allowed: Entities allowed; None: all of them. Shape: (num_entities,).
        """
        with faiss_threads(1):
            return self._searcher.search(vector, size, allowed)

    def similarities(self, vector: FloatArray, entities: IntArray) -> FloatArray:
        """Return how alike a query and each of some entities are, as a search would say; no text is embedded.

        Args:
            vector: Of the query. Shape: (dimensions,).
            entities: Their numbers. Shape: (n,), int64.

        Returns:
            The similarity of each entity's most similar text, 0 for one without texts. Shape: (n,), float32.

        Raises:
            ValueError: no such entity.
        """
        with faiss_threads(1):
            return self._searcher.similarities(vector, entities)

    def describe(self) -> Mapping[str, object]:
        """Return facts: method, kind, dimensions, vectors, effort, recall, bytes in all and per vector."""
        entry = self.entry
        return {
            "method": entry.method,
            "kind": entry.kind,
            "factory": entry.factory,
            "dimensions": entry.dimensions,
            "count": entry.count,
            "effort": entry.effort,
            "recall": entry.recall,
            "bytes": self._num_bytes,
            "bytes_per_vector": self._num_bytes / max(entry.count, 1),
        }
