"""JSON strings that must be one of millions of sorted texts, such as the titles of an index.

The texts are not made into an automaton: a state is a run of the sorted order and how far it is written
(`decoding.grammar.holes.place`), packed into an int. States need no table, so nothing grows with what is
asked for, and every state stays valid for ever.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from decoding.grammar.holes.place import FINAL, PLAIN, START, WRITTEN, Place, pack, spelled, unpack
from decoding.grammar.holes.search import Search
from decoding.grammar.holes.shortest import ShortestTexts
from decoding.grammar.holes.sorted_texts import SortedTexts
from decoding.grammar.holes.text_searcher import TextSearcher
from decoding.grammar.holes.widest import widest_places
from decoding.grammar.leaves.hole import HoleName
from decoding.grammar.leaves.leaf import LeafTokens
from decoding.grammar.leaves.token_cache import TokenCache
from decoding.grammar.vocabulary.token_node import TokenNode

# Runs of more texts have their bytes listed only where there is but one.
_MAX_LISTED_TEXTS = 8
# Runs of more texts have their tokens kept; those of fewer are found nearly as fast as they are looked up.
_MIN_KEPT_TEXTS = 1 << 10
_KEPT_BYTES = 8 << 20
# Tokens of runs that are found before anybody asks: of runs of so many texts, and so many bytes of them.
_WIDE_TEXTS = 1 << 12
_WIDE_BYTES = 3 << 18
_LEAF_BYTES = 2048


class TextLeaf:
    """Sorted texts as a leaf (`decoding.grammar.leaves.hole.HoleLeaf`).

    Args:
        name: What schemas call the set.
        key: Equal for sets of the same texts with the same numbers.
        texts: The set; it may be empty.
        searcher: Of the vocabulary.
        own_bytes: Memory of the order, where this leaf alone holds it.
    """

    is_shared = True

    def __init__(
        self, name: HoleName, key: Hashable, texts: SortedTexts, searcher: TextSearcher, own_bytes: int = 0
    ) -> None:
        self.name = name
        self.key = ("texts of a set", key)
        self._texts = texts
        self._searcher = searcher
        self._search = Search(texts)
        self._shortest = ShortestTexts(texts)
        self._shortest_of_all: bytes | None = None
        self._own_bytes = own_bytes
        self._wide = TokenCache(2 * _WIDE_BYTES)
        self._tokens = TokenCache(_KEPT_BYTES)

    @property
    def is_empty(self) -> bool:
        """Whether there is no text: then there is no state either, and nothing may be asked."""
        return not len(self._texts)

    @property
    def num_bytes(self) -> int:
        """Memory beyond the texts and, where it is the catalogue's own, their order."""
        return (
            self._own_bytes
            + self._shortest.num_bytes
            + self._wide.num_bytes
            + self._tokens.num_bytes
            + _LEAF_BYTES
        )

    def prepare(self) -> None:
        """Find what every answer needs: the shortest text, and the tokens before and behind the quote."""
        if not self.is_empty:
            self.shortest(0)
            for state in (0, pack(Place(0, len(self._texts), 0, PLAIN))):
                self._find_wide(state)

    def warm_up(self) -> None:
        """Find also the tokens of the widest runs, which take longest, as far as there is room."""
        self.prepare()
        if not self.is_empty:
            for place in widest_places(self._texts, self._searcher, _WIDE_TEXTS):
                if self._wide.num_bytes > _WIDE_BYTES:
                    break
                self._find_wide(pack(place))

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        place = self._searcher.narrow(self._texts, self._place(state), byte)
        return -1 if place is None else pack(place)

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to, of runs of few texts or with one byte only."""
        place = self._place(state)
        if (
            place.mode == PLAIN
            and place.end - place.begin > _MAX_LISTED_TEXTS
            and not self._search.is_forced(place)
        ):
            return None
        return {byte: pack(after) for byte, after in self._search.edges(place).items()}

    def label(self, state: int) -> int:
        """0 behind the closing quote, else -1."""
        return 0 if self._place(state).mode == FINAL else -1

    def goes_on(self, state: int) -> bool:
        """Whether the closing quote is still to come."""
        return self._place(state).mode != FINAL

    def shortest(self, state: int) -> bytes:
        """A shortest text that leads from the state to a final one, of those the first in byte order."""
        place = self._place(state)
        begin, end, depth, mode = place
        if mode == FINAL:
            return b""
        if mode == START:
            if self._shortest_of_all is None:
                self._shortest_of_all = b'"' + self._shortest.spelling(0, end, 0) + b'"'
            return self._shortest_of_all
        if mode == PLAIN:
            return self._shortest.spelling(begin, end, depth) + b'"'
        # Within an escape: by the characters it may still become.
        candidates = []
        for byte, after in self._search.edges(place).items():
            candidates.append(bytes([byte]) + self.shortest(pack(after)))
        return min(candidates, key=lambda text: (len(text), text))

    def tokens(self, state: int, node: TokenNode) -> LeafTokens | None:
        """The tokens below a node that go on with some text."""
        place = self._place(state)
        if place.end - place.begin < _MIN_KEPT_TEXTS:
            return self._searcher.tokens(self._texts, place, node)
        at = (state, node)
        found = self._wide.get(at) or self._tokens.get(at)
        if found is None:
            found = self._tokens.put(at, self._searcher.tokens(self._texts, place, node))
        return found

    def members(self, state: int) -> tuple[int, ...]:
        """Numbers of the texts that are the one behind whose closing quote the state stands, ascending."""
        begin, end, _, mode = self._place(state)
        return self._texts.numbers(begin, end) if mode == FINAL else ()

    def spelling(self, state: int) -> bytes:
        """What has been written up to a state, its opening quote included."""
        begin, _, depth, mode = self._place(state)
        if mode == START:
            return b""
        written = b'"' + spelled(self._texts.text(begin)[:depth])
        return written + (b'"' if mode == FINAL else WRITTEN[mode])

    def _find_wide(self, state: int) -> None:
        at = (state, self._searcher.vocabulary.root)
        if self._wide.get(at) is None:
            self._wide.put(at, self._searcher.tokens(self._texts, self._place(state), at[1]))

    def _place(self, state: int) -> Place:
        return unpack(state, len(self._texts))
