"""From queries to shortlists: the embedder and the vectors of one index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from decoding.cancellation import CancelToken, reason_to_stop
from retrieval.errors import IndexFormatError
from retrieval.index.layout import VECTOR_FILES, VECTORS_FILE
from retrieval.index.manifest_entries import VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.embedder import TextEmbedder
from retrieval.vectors.exact import ExactSimilarities
from retrieval.vectors.faiss_threads import faiss_threads
from retrieval.vectors.methods import open_embedder
from retrieval.vectors.pipeline import searcher_of
from retrieval.vectors.searching import VectorSearcher
from retrieval.vectors.shortlist import NO_ENTITIES, Shortlist
from retrieval.vectors.vector_file import open_vectors
from retrieval.vectors.views import EntityTexts


class Shortlister:
    """Proposes entities of one index. Safe to use from several threads.

    A search of many vectors is shared out among a few threads of its own, which work while the one that asks
    waits; faiss starts no others.

    Args:
        entry: What the manifest says about the vectors.
        embedder: Made them.
        searcher: Searches them.
        exact: Computes similarities from texts.
        num_bytes: Of the files.
    """

    def __init__(
        self,
        entry: VectorsEntry,
        embedder: TextEmbedder,
        searcher: VectorSearcher,
        exact: ExactSimilarities,
        num_bytes: int,
    ) -> None:
        self.entry = entry
        self._embedder = embedder
        self._searcher = searcher
        self._exact = exact
        self._num_bytes = num_bytes

    @classmethod
    def open(cls, index: Index, encoder: str | Path | None = None, device: str = "cpu") -> Self:
        """Open the vectors of an index.

        Args:
            index: An open index.
            encoder: Where the encoder that made the vectors lies now; None: where it lay then.
                Not for vectors that need none.
            device: Where an encoder runs.

        Raises:
            EvidenceMissingError: the index has no vectors.
            IndexChecksumError: their file differs from the manifest.
            IndexFormatError: it is no file of vectors, or one of other vectors than the manifest says.
            IndexMismatchError: the encoder is not the one that made them.
            InputError: an encoder is given, and the vectors need none.
            ModelError: the encoder cannot be loaded.
            MissingExtraError: a library is not installed.
        """
        vectors = open_vectors(index)
        entry = vectors.entry
        embedder = open_embedder(entry, vectors.arrays, encoder, device)
        exact = ExactSimilarities(embedder, EntityTexts(index, entry.columns))
        searcher = searcher_of(vectors.index, entry, index.num_entities, exact)
        if entry.kind == "factory" and (refusal := searcher.refusal()) is not None:
            raise IndexFormatError(f"{VECTORS_FILE}: {entry.factory} cannot be searched: {refusal}")
        sizes = [file.bytes for file in index.manifest.files if file.name in VECTOR_FILES]
        return cls(entry, embedder, searcher, exact, sum(sizes))

    def propose(
        self,
        texts: Sequence[str],
        sizes: Sequence[int],
        allowed: Sequence[npt.NDArray[np.bool_] | None] | None = None,
        cancel: Sequence[CancelToken | None] | None = None,
    ) -> list[Shortlist]:
        """Return a shortlist per query.

        Args:
            texts: The queries.
            sizes: Most entities of each shortlist, at least 1.
            allowed: Per query which entities may be on it, None for all. Shape of each: (num_entities,).
            cancel: Polled before every search, one per query.

        Returns:
            Lists with fewer entities only where fewer are allowed; empty ones of queries that were cancelled.
        """
        if not texts:
            return []
        nothing = [None] * len(texts)
        masks = nothing if allowed is None else allowed
        tokens = nothing if cancel is None else cancel
        queries = self._embedder.embed_queries(texts)
        with faiss_threads(1):
            return [
                self._searcher.search(text, query, size, mask)
                if reason_to_stop(token) is None
                else NO_ENTITIES
                for text, query, size, mask, token in zip(texts, queries, sizes, masks, tokens, strict=True)
            ]

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the vectors of queries. Shape: (len(texts), dimensions)."""
        return self._embedder.embed_queries(texts)

    def search(
        self,
        text: str,
        vector: npt.NDArray[np.float32],
        size: int,
        allowed: npt.NDArray[np.bool_] | None,
    ) -> Shortlist:
        """Return the entities nearest to a query, given its vector; see `propose`."""
        with faiss_threads(1):
            return self._searcher.search(text, vector, size, allowed)

    def similarities(self, text: str, entities: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return how alike a query and each of some entities are, computed anew. Shape: (len(entities),).

        Raises:
            ValueError: no such entity.
        """
        return self._exact(text, np.asarray(entities, dtype=np.int64))

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
