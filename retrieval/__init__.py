"""Generative retrieval: text in, catalogue entities out (`from retrieval import Retriever`).

Names are exported lazily: importing the package imports neither torch nor transformers. It must not know
gRPC, protobuf or the service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoding.trie.logits_processor import TitleTrieLogitsProcessor
    from retrieval.index.reader import Index
    from retrieval.retriever import Retriever
    from retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
    from retrieval.trie_opening import title_trie
    from retrieval.types import Candidate, Entity, Mention, RetrievalResult, RetrieveRequest

_EXPORTS = {
    "Candidate": "retrieval.types",
    "Entity": "retrieval.types",
    "Index": "retrieval.index.reader",
    "Mention": "retrieval.types",
    "RetrievalResult": "retrieval.types",
    "RetrieveRequest": "retrieval.types",
    "Retriever": "retrieval.retriever",
    "ScoreRequest": "retrieval.score_types",
    "ScoreResult": "retrieval.score_types",
    "TitleScore": "retrieval.score_types",
    "TitleTrieLogitsProcessor": "decoding.trie.logits_processor",
    "title_trie": "retrieval.trie_opening",
}

__all__ = [
    "Candidate",
    "Entity",
    "Index",
    "Mention",
    "RetrievalResult",
    "RetrieveRequest",
    "Retriever",
    "ScoreRequest",
    "ScoreResult",
    "TitleScore",
    "TitleTrieLogitsProcessor",
    "title_trie",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'retrieval' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
