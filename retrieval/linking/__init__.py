"""Offline linking: documents or mentions in, linked mentions out.

Knows corpora, mentions and runs that may be cut short. It must not know gRPC, nor how decoding works. Names
are exported lazily: importing the package imports neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genret.retrieval.linking.documents.text_document import Document, Span
    from genret.retrieval.linking.finding.find_options import FindOptions
    from genret.retrieval.linking.link_options import LinkOptions
    from genret.retrieval.linking.linker import link_documents
    from genret.retrieval.linking.run_progress import LinkCounts

_EXPORTS = {
    "Document": "genret.retrieval.linking.documents.text_document",
    "FindOptions": "genret.retrieval.linking.finding.find_options",
    "LinkCounts": "genret.retrieval.linking.run_progress",
    "LinkOptions": "genret.retrieval.linking.link_options",
    "Span": "genret.retrieval.linking.documents.text_document",
    "link_documents": "genret.retrieval.linking.linker",
}

__all__ = ["Document", "FindOptions", "LinkCounts", "LinkOptions", "Span", "link_documents"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'genret.retrieval.linking' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
