"""Generative retrieval: text in, catalogue entities out.

`from genret import Retriever` is the library's front door. Names are imported when they are first used:
neither torch nor transformers is loaded before that. The rooms are `genret.decoding`, `genret.retrieval`,
`genret.index_builder` and `genret.service`; in the repository they lie side by side, and this folder links
to them.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genret.decoding.trie.logits_processor import TitleTrieLogitsProcessor
    from genret.index_builder.front_door import build_index
    from genret.retrieval.complete_types import CompleteRequest, CompleteResult, Completion
    from genret.retrieval.generation import GeneratedText, generate
    from genret.retrieval.index.reader import Index
    from genret.retrieval.retriever import Retriever
    from genret.retrieval.score_types import ScoreRequest, ScoreResult, TitleScore
    from genret.retrieval.tables import to_arrow, to_pandas
    from genret.retrieval.trie_opening import title_trie
    from genret.retrieval.types import (
        Auto,
        Beam,
        Candidate,
        Disc,
        Entity,
        Mention,
        RetrievalResult,
        RetrieveRequest,
        Shortlist,
    )

# Stubs that others make of our .proto files are a package genret.v1, wherever it lies.
__path__ = extend_path(__path__, __name__)

_NAMES = {
    "decoding.trie.logits_processor": ["TitleTrieLogitsProcessor"],
    "index_builder.front_door": ["build_index"],
    "retrieval.complete_types": ["CompleteRequest", "CompleteResult", "Completion"],
    "retrieval.generation": ["GeneratedText", "generate"],
    "retrieval.index.reader": ["Index"],
    "retrieval.retriever": ["Retriever"],
    "retrieval.score_types": ["ScoreRequest", "ScoreResult", "TitleScore"],
    "retrieval.tables": ["to_arrow", "to_pandas"],
    "retrieval.trie_opening": ["title_trie"],
    "retrieval.types": [
        *("Auto", "Beam", "Candidate", "Disc", "Entity", "Mention"),
        *("RetrievalResult", "RetrieveRequest", "Shortlist"),
    ],
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Auto",
    "Beam",
    "Candidate",
    "CompleteRequest",
    "CompleteResult",
    "Completion",
    "Disc",
    "Entity",
    "GeneratedText",
    "Index",
    "Mention",
    "RetrievalResult",
    "RetrieveRequest",
    "Retriever",
    "ScoreRequest",
    "ScoreResult",
    "Shortlist",
    "TitleScore",
    "TitleTrieLogitsProcessor",
    "build_index",
    "generate",
    "title_trie",
    "to_arrow",
    "to_pandas",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'genret' has no attribute {name!r}")
    return getattr(import_module(f"genret.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
