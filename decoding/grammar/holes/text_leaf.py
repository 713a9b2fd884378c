"""Lets JSON strings be one of millions of sorted texts, such as the titles of an index.

No automaton is made of the texts: a state is a run of the sorted order and how far it is written
(`text_places`), packed into an int. States need no table, so memory does not grow with use, and every state
stays valid for ever.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.holes.text_places import (
    ESCAPED_BYTES,
    FINAL,
    PLAIN,
    START,
    TextRange,
    TextSearch,
    pack,
    spelled,
    unpack,
)
from genret.decoding.grammar.leaves.leaf import LeafTokens, TitleSlotName, TokenCache
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.sorted_texts import SortedTexts, TextBatches

if TYPE_CHECKING:
    from genret.decoding.grammar.holes.compiled_search import CompiledSearch
    from genret.decoding.grammar.vocabulary import Vocabulary


# Larger runs list their next bytes only if there is just one.
_MAX_LISTED_TEXTS = 8
# Tokens of smaller runs are not kept: they are found nearly as fast as they are looked up.
_MIN_KEPT_TEXTS = 1 << 10
_KEPT_BYTES = 8 << 20
# Limits on the runs whose tokens are found in advance: least texts of a run, and bytes of all tokens.
_WIDE_TEXTS = 1 << 12
_WIDE_BYTES = 3 << 18
_LEAF_BYTES = 2048


class TextLeaf:
    """Sorted texts, perhaps none, as a leaf (`TitleSlotLeaf`).

    `key` is equal for sets of the same texts with the same numbers, `own_bytes` the memory of the order if
    this leaf alone holds it.
    """

    is_shared = True

    def __init__(
        self,
        name: TitleSlotName,
        key: Hashable,
        texts: SortedTexts,
        searcher: TextSearcher,
        own_bytes: int = 0,
    ) -> None:
        self.name = name
        self.key = ("texts of a set", key)
        self._texts = texts
        self._searcher = searcher
        self._search = TextSearch(texts)
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
        """Memory beyond the texts and, unless this leaf alone holds it, their order."""
        found = self._shortest.num_bytes + self._wide.size + self._tokens.size
        return self._own_bytes + found + _LEAF_BYTES

    def prepare(self) -> None:
        """Find what every answer needs: the shortest text, and the tokens before and behind the quote."""
        if not self.is_empty:
            self.shortest(0)
            for state in (0, pack(TextRange(0, len(self._texts), 0, PLAIN))):
                self._find_wide(state)

    def warm_up(self) -> None:
        """Find also the tokens of the widest runs, which take longest, while there is room."""
        self.prepare()
        if not self.is_empty:
            for place in widest_places(self._texts, self._searcher, _WIDE_TEXTS):
                if self._wide.size > _WIDE_BYTES:
                    break
                self._find_wide(pack(place))

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        place = self._searcher.narrow(self._texts, self._place(state), byte)
        return -1 if place is None else pack(place)

    def edges(self, state: int) -> Mapping[int, int] | None:
        """All allowed bytes and the states they lead to, for small runs or those with one byte only."""
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
        # Within an escape, compare the characters it may still become.
        edges = self._search.edges(place)
        candidates = [bytes([byte]) + self.shortest(pack(after)) for byte, after in edges.items()]
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
        """Numbers of the texts that end in a state, ascending."""
        begin, end, _, mode = self._place(state)
        return self._texts.numbers(begin, end) if mode == FINAL else ()

    def _find_wide(self, state: int) -> None:
        at = (state, self._searcher.vocabulary.root)
        if self._wide.get(at) is None:
            self._wide.put(at, self._searcher.tokens(self._texts, self._place(state), at[1]))

    def _place(self, state: int) -> TextRange:
        return unpack(state, len(self._texts))


logger = logging.getLogger(__name__)


class TextSearcher:
    """Walks one vocabulary's trie beside sorted texts: in Python or, once `warm_up` has been called and numba
    works, in compiled loops. Compiling takes seconds, so no request does it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._compiled: CompiledSearch | None = None

    def require(self, texts: TextBatches, spelled: Callable[[bytes], bytes]) -> None:
        """Check that the vocabulary can write every text, by one pass over their bytes.

        A vocabulary that has all bytes of UTF-8 is not compared with the texts. `spelled` spells a byte, or a
        character, of a text.

        Raises VocabularyError, which names the first text that cannot be written, and what is missing.
        """
        writable = self.vocabulary.writable
        if writable.has_all_bytes:
            return
        for unit in texts.units(writable.is_of_bytes):
            missing = writable.missing(spelled(unit))
            if missing:
                title = texts.first_with(unit).decode("utf-8", "backslashreplace")
                character = missing.decode("utf-8", "backslashreplace")
                lacked = f"byte {missing.hex()}" if writable.is_of_bytes else f"character {character!r}"
                raise VocabularyError(
                    f"the model's tokenizer cannot write the title {title!r}: "
                    f"it has no token for the {lacked}"
                )

    def warm_up(self) -> None:
        """Compile the loops if numba works."""
        if self._compiled is not None:
            return
        try:
            from genret.decoding.grammar.holes.compiled_search import CompiledSearch
        except ImportError:
            return
        try:
            self._compiled = CompiledSearch(self.vocabulary)
        except Exception as error:  # an installation that does not fit together fails in ways of its own
            logger.warning("numba is installed but does not work: %r; titles are searched in Python", error)

    def narrow(self, texts: SortedTexts, place: TextRange, byte: int) -> TextRange | None:
        """The place behind one byte of JSON, None if no text goes on with it."""
        if self._compiled is not None:
            return self._compiled.narrow(texts, place, byte)
        return TextSearch(texts).narrow(place, byte)

    def tokens(self, texts: SortedTexts, place: TextRange, node: TokenNode) -> LeafTokens:
        """The tokens below a node that go on with some text (`Leaf.tokens`)."""
        if self._compiled is not None:
            walked = self._compiled.walk(texts, place, node.positions)
        else:
            walked = TextSearch(texts).walk(place, self.vocabulary.trie, node.positions)
        return walked.leaf_tokens(self.vocabulary)


def widest_places(texts: SortedTexts, searcher: TextSearcher, least: int) -> Iterator[TextRange]:
    """Yield places with `least` texts or more behind the opening quote and whole tokens, the widest first."""
    start = TextRange(0, len(texts), 0, PLAIN)
    seen = {start}
    waiting = [(-len(texts), start)]
    while waiting:
        _, place = heapq.heappop(waiting)
        yield place
        for after in _behind_tokens(texts, searcher, place, least):
            if after not in seen:
                seen.add(after)
                heapq.heappush(waiting, (after.begin - after.end, after))


def _behind_tokens(
    texts: SortedTexts, searcher: TextSearcher, place: TextRange, least: int
) -> Iterator[TextRange]:
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


# Texts per block; the shortest length of each block is kept, 2 bytes.
_BLOCK = 64
_LONGEST = (1 << 16) - 1
_AT_ONCE = 1 << 18
_ESCAPED = frozenset(ESCAPED_BYTES)

Longs = npt.NDArray[np.int64]


class ShortestTexts:
    """Finds shortest texts among at least one; wide runs are searched by blocks."""

    def __init__(self, texts: SortedTexts) -> None:
        self._texts = texts

    @cached_property
    def _blocks(self) -> npt.NDArray[np.uint16]:
        """Bytes of the shortest text of each block, at most 65,535. Shape: (ceil(n / 64),)."""
        order = self._texts.order
        shortest = np.empty(-(-len(order) // _BLOCK), dtype=np.uint16)
        for begin in range(0, len(order), _AT_ONCE):
            lengths = self._texts.batches.lengths(order[begin : begin + _AT_ONCE])
            least = np.minimum.reduceat(lengths, np.arange(0, len(lengths), _BLOCK))
            first = begin // _BLOCK
            shortest[first : first + len(least)] = np.minimum(least, _LONGEST)
        return shortest

    @property
    def num_bytes(self) -> int:
        """Memory of the blocks."""
        return 2 * -(-len(self._texts) // _BLOCK)

    def spelling(self, begin: int, end: int, depth: int) -> bytes:
        """The shortest spelling, from a depth on, of the texts of a run; the first of equally short ones."""
        best: bytes | None = None
        length = self._least(begin, end, -1)
        while length is not None and (best is None or length - depth <= len(best)):
            for position in self._positions(begin, end, length):
                text = self._texts.text(position)[depth:]
                plain = not _ESCAPED.intersection(text)
                spelling = text if plain else spelled(text)
                if best is None or (len(spelling), spelling) < (len(best), best):
                    best = spelling
                if plain:
                    break  # those behind it are no shorter, and none of them is spelled before it
            if best is not None and len(best) == length - depth:
                break
            length = self._least(begin, end, length)
        if best is None:
            raise ValueError(f"expected a run of texts, got [{begin}, {end})")
        return best

    def _least(self, begin: int, end: int, above: int) -> int | None:
        """The least length above some length."""
        length = self._texts.length
        head, whole, tail = _parts(begin, end)
        found = [size for part in (head, tail) for position in part if (size := length(position)) > above]
        blocks = self._blocks[whole.start : whole.stop]
        longer = blocks[blocks > above]
        least = int(longer.min()) if len(longer) else _LONGEST
        # Blocks whose shortest text is too short may have longer ones. There are many such blocks only if all
        # texts of some length have escapes.
        some = blocks <= above
        if least < _LONGEST:
            found.append(least)
        else:
            some |= blocks == _LONGEST
        for block in (np.flatnonzero(some) + whole.start).tolist():
            found += [size for position in _positions_of(block) if (size := length(position)) > above]
        return min(found, default=None)

    def _positions(self, begin: int, end: int, length: int) -> Iterator[int]:
        """The positions of a run's texts of some length, ascending."""
        head, whole, tail = _parts(begin, end)
        some = self._blocks[whole.start : whole.stop] <= min(length, _LONGEST)
        blocks = (np.flatnonzero(some) + whole.start).tolist()
        for part in (head, *map(_positions_of, blocks), tail):
            for position in part:
                if self._texts.length(position) == length:
                    yield position


def _parts(begin: int, end: int) -> tuple[range, range, range]:
    """The positions of a run before its whole blocks, these blocks, and the positions behind them."""
    first = -(-begin // _BLOCK)
    behind = max(end // _BLOCK, first)
    head = range(begin, min(first * _BLOCK, end))
    return head, range(first, behind), range(max(behind * _BLOCK, head.stop), end)


def _positions_of(block: int) -> range:
    return range(block * _BLOCK, (block + 1) * _BLOCK)
