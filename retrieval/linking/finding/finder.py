"""`MentionFinder`: the longest names of an index in a text, from left to right."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from retrieval.index.reader import Index
from retrieval.linking.documents.document import Span
from retrieval.linking.finding.options import FindOptions


class SpanFinder(Protocol):
    """Finds mentions in a text."""

    def find(self, text: str, begin: int = 0, end: int | None = None) -> list[Span]:
        """Return mentions that begin in [begin, end), in order, none overlapping another."""


def open_finder(index: Index, options: FindOptions, cache_dir: Path | None = None) -> SpanFinder:
    """Return a finder of the index's titles and aliases.

    Its table is made once per index digest and kept in `cache_dir`, where every process maps the same file;
    None: it is kept in memory only.

    Raises:
        InputError: an option is out of range; it is named.
        SourceError: the stop words or the cache cannot be read or written.
    """
    raise NotImplementedError
