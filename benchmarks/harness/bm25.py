"""BM25 by bm25s over the texts of entities."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s
import numpy as np

from genret.retrieval.training.quality import searchable_texts
from genret.retrieval.training.training_data import TrainingEntity, TrainingQuery

_MAX_K = 10


def bm25_rankings(
    entities: Sequence[TrainingEntity],
    queries: Sequence[TrainingQuery],
    training_queries: Sequence[TrainingQuery] = (),
) -> list[list[str]]:
    """Rank entities with bm25s over title, aliases and description, plus training queries where given."""
    texts = searchable_texts(entities, training_queries)
    documents = [" ".join(texts[e.entity_id]) for e in entities]
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(documents, stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize([query.text for query in queries], stopwords="en", show_progress=False)
    found, scores = retriever.retrieve(asked, k=min(_MAX_K, len(entities)), show_progress=False)
    return [
        [entities[int(i)].entity_id for i in row[np.asarray(score) > 0]]
        for row, score in zip(found, scores, strict=True)
    ]
