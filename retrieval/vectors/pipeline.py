"""How an index of vectors is searched, as its kind and its embedder ask for."""

from __future__ import annotations

from typing import Any

from retrieval.index.manifest_entries import VectorsEntry
from retrieval.vectors.methods import LEXICAL
from retrieval.vectors.searching import Exact, VectorSearcher


def searcher_of(vectors: Any, entry: VectorsEntry, num_entities: int, exact: Exact) -> VectorSearcher:
    """Return what searches an index of vectors.

    Lexical similarities take microseconds a text to compute: the candidates that the vectors give are put in
    order by them. A model's would take milliseconds: what its index says has to do.

    Args:
        vectors: The faiss index.
        entry: What the manifest says about it.
        num_entities: Entity numbers are below this.
        exact: Computes similarities from texts.
    """
    return VectorSearcher(vectors, num_entities, entry.effort, exact, compares_again=entry.method == LEXICAL)
