"""Offline linking: documents or mentions in, linked mentions out.

Knows corpora, mentions and runs that may be cut short. It must not know gRPC, nor how decoding works. Names
are exported lazily: importing the package imports neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.linking.documents.text_document import Document, Span
    from retrieval.linking.finding.find_options import FindOptions
    from retrieval.linking.link_options import LinkOptions
    from retrieval.linking.linker import link_documents
    from retrieval.linking.run_progress import LinkCounts

_EXPORTS = {
    "Document": "retrieval.linking.documents.text_document",
    "FindOptions": "retrieval.linking.finding.find_options",
    "LinkCounts": "retrieval.linking.run_progress",
    "LinkOptions": "retrieval.linking.link_options",
    "Span": "retrieval.linking.documents.text_document",
    "link_documents": "retrieval.linking.linker",
}

__all__ = ["Document", "FindOptions", "LinkCounts", "LinkOptions", "Span", "link_documents"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'retrieval.linking' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
