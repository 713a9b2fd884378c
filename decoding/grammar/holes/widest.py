"""The places behind whole tokens where most texts are still possible: finding their tokens takes longest."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from decoding.grammar.holes.place import PLAIN, Place
from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.grammar.holes.text_searcher import TextSearcher


def widest_places(texts: SortedTexts, searcher: TextSearcher, least: int) -> Iterator[Place]:
    """Yield places behind the opening quote and whole tokens, the one with the most texts first.

    Args:
        texts: At least one.
        searcher: Of the vocabulary.
        least: Places with fewer texts are left out.
    """
    start = Place(0, len(texts), 0, PLAIN)
    seen = {start}
    waiting = [(-len(texts), start)]
    while waiting:
        _, place = heapq.heappop(waiting)
        yield place
        for after in _behind_tokens(texts, searcher, place, least):
            if after not in seen:
                seen.add(after)
                heapq.heappush(waiting, (after.begin - after.end, after))


def _behind_tokens(texts: SortedTexts, searcher: TextSearcher, place: Place, least: int) -> Iterator[Place]:
    trie = searcher.vocabulary.trie
    byte, end, begin = trie.byte_view, trie.end_view, trie.token_begin_view
    # (where a subtree ends, the place at its root) from the outermost to the one we are in
    open_places = [(end[0], place)]
    position = 1
    while position < end[0]:
        while position >= open_places[-1][0]:
            open_places.pop()
        after = searcher.narrow(texts, open_places[-1][1], byte[position])
        if after is None or after.mode != PLAIN or after.end - after.begin < least:
            position = end[position]
            continue
        if begin[position] < begin[position + 1]:
            yield after
        open_places.append((end[position], after))
        position += 1
