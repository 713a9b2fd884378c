"""Offline linking: documents or mentions in, linked mentions out.

Names are exported lazily: importing the package imports neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrieval.linking.counts import LinkCounts
    from retrieval.linking.documents.document import Document, Span
    from retrieval.linking.finding.options import FindOptions
    from retrieval.linking.library import link_documents
    from retrieval.linking.options import LinkOptions

_EXPORTS = {
    "Document": "retrieval.linking.documents.document",
    "FindOptions": "retrieval.linking.finding.options",
    "LinkCounts": "retrieval.linking.counts",
    "LinkOptions": "retrieval.linking.options",
    "Span": "retrieval.linking.documents.document",
    "link_documents": "retrieval.linking.library",
}

__all__ = ["Document", "FindOptions", "LinkCounts", "LinkOptions", "Span", "link_documents"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'retrieval.linking' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
