"""`LateFinder`: a finder whose table of names is opened when something is first looked for."""

from __future__ import annotations

from pathlib import Path

from retrieval.index.reader import Index
from retrieval.linking.documents.document import Span
from retrieval.linking.finding.finder import SpanFinder, open_finder
from retrieval.linking.finding.options import FindOptions


class LateFinder:
    """The finder of an index; documents that mark their mentions may never need it.

    Args:
        index: Whose names are found.
        options: Which of them.
        cache_dir: See `open_finder`, whose errors come with the first search.
    """

    def __init__(self, index: Index, options: FindOptions, cache_dir: Path | None = None) -> None:
        self._index = index
        self._options = options
        self._cache_dir = cache_dir
        self._finder: SpanFinder | None = None

    def find(self, text: str, begin: int = 0, end: int | None = None) -> list[Span]:
        """Find the mentions of a text."""
        return self._opened().find(text, begin, end)

    def entity_ids(self, text: str) -> tuple[str, ...]:
        """Return who is called so."""
        return self._opened().entity_ids(text)

    def _opened(self) -> SpanFinder:
        if self._finder is None:
            self._finder = open_finder(self._index, self._options, self._cache_dir)
        return self._finder
