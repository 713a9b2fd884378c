"""Titles for one query: what a beam search finds, in place of all titles of an index.

A model that was taught to write bare titles knows little behind `{"title": "`, where it has never been. Asked
in the words it was taught, it says which titles are likely, and the document is written with these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.grammar.holes.text_leaf import TextLeaf
from decoding.grammar.holes.text_searcher import TextSearcher
from decoding.grammar.leaves.hole import HoleName
from retrieval.types import Entity

# The likeliest entities of an index for a query, under a filter if there is one; at most so many.
Finder = Callable[[str, str | None, int], Sequence[Entity]]


class Shortlist:
    """Opens the holes of one request's schema (`decoding.grammar.leaves.hole.HoleOpener`).

    Args:
        query: What is asked.
        size: Most titles of a hole.
        finder: Of an index, by name.
        searcher: Of the vocabulary.
    """

    def __init__(
        self, query: str, size: int, finder: Callable[[str], Finder], searcher: TextSearcher
    ) -> None:
        self._query = query
        self._size = size
        self._finder = finder
        self._searcher = searcher
        self._leaves: dict[HoleName, TextLeaf] = {}

    def __call__(self, name: HoleName) -> TextLeaf:
        """Return the leaf of the likeliest titles of an index; they are looked for once."""
        leaf = self._leaves.get(name)
        if leaf is None:
            found = self._finder(name.index)(self._query, name.predicate, self._size)
            titles = tuple(entity.title for entity in found)
            texts = SortedTexts.of(title.encode() for title in titles)
            leaf = self._leaves[name] = TextLeaf(name, ("shortlist", titles), texts, self._searcher)
        return leaf
