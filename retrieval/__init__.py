"""Generative retrieval: text in, catalogue entities out (`from genret import Retriever`).

Names are exported lazily: importing the package imports neither torch nor transformers. It must not know
gRPC, protobuf or the service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genret.decoding.trie.logits_processor import TitleTrieLogitsProcessor
    from genret.retrieval.index.reader import Index
    from genret.retrieval.retriever import Retriever
    from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
    from genret.retrieval.trie_opening import title_trie
    from genret.retrieval.types import Candidate, Entity, Mention, RetrievalResult, RetrieveRequest

_EXPORTS = {
    "Candidate": "genret.retrieval.types",
    "Entity": "genret.retrieval.types",
    "Index": "genret.retrieval.index.reader",
    "Mention": "genret.retrieval.types",
    "RetrievalResult": "genret.retrieval.types",
    "RetrieveRequest": "genret.retrieval.types",
    "Retriever": "genret.retrieval.retriever",
    "ScoreRequest": "genret.retrieval.score_types",
    "ScoreResult": "genret.retrieval.score_types",
    "TitleScore": "genret.retrieval.score_types",
    "TitleTrieLogitsProcessor": "genret.decoding.trie.logits_processor",
    "title_trie": "genret.retrieval.trie_opening",
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
