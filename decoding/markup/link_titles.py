"""Follows sorted titles, as they are spelled in links, byte by byte and below a vocabulary's trie.

A place in a title is a run of the titles that are spelled as they are, searched where they lie, and a run of
copies of the others, as they are spelled. The parenthesis behind a title belongs to its spelling, so that
none begins another.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.holes.text_leaf import TextSearcher
from genret.decoding.grammar.holes.text_places import (
    FIRST_PLAIN,
    PLAIN,
    QUOTE,
    TextRange,
    TextSearch,
    first_from,
)
from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, Exit, LeafTokens, TokenCache
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.markup.link_syntax import BACKSLASH, TITLE_CLOSE, TITLE_OPEN, spelled_title
from genret.decoding.sorted_texts import SortedTexts, TextBatches

# Larger runs list their next bytes only if there is just one.
_MAX_LISTED = 8
# Tokens and shortest titles of smaller runs are not kept.
_MIN_KEPT = 256
_KEPT_BYTES = 16 << 20
_ENDED = -1


class TitlePlace(NamedTuple):
    """A place in a title: runs of the plain titles and of the copied spellings, None for an empty run."""

    plain: TextRange | None
    spelled: TextRange | None


class LinkTitles:
    """The titles that links may name: `texts`, without empty ones. Safe to use from several threads.

    To be kept between texts. Titles with quotation marks, control characters, backslashes or unbalanced
    parentheses are copied.
    """

    def __init__(self, texts: SortedTexts, searcher: TextSearcher) -> None:
        self.searcher = searcher
        copied, empty = _copied(texts.batches)
        self._plain = texts.among(~copied & ~empty)
        numbers = texts.order[copied[texts.order]]
        spellings = [spelled_title(texts.batches.text(number)) for number in numbers.tolist()]
        self._spelled = SortedTexts.of(spellings)
        self._numbers: list[int] = numbers.tolist()
        self._tokens = TokenCache(_KEPT_BYTES)
        self._shortest: dict[TitlePlace, bytes] = {}

    def __len__(self) -> int:
        return len(self._plain) + len(self._spelled)

    @property
    def start(self) -> TitlePlace:
        """The place before the first byte."""
        runs = (
            TextRange(0, len(texts), 0, PLAIN) if len(texts) else None
            for texts in (self._plain, self._spelled)
        )
        return TitlePlace(*runs)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest spelling, with the parenthesis behind it."""
        return 1 + max(
            int(texts.batches.lengths(texts.order).max()) if len(texts) else 0
            for texts in (self._plain, self._spelled)
        )

    def prepare(self) -> None:
        """Find what every link needs: the tokens that begin a title, and the shortest title."""
        if len(self):
            self.shortest(self.start)
            self.tokens(self.start, self.searcher.vocabulary.root)

    def step(self, place: TitlePlace, byte: int) -> TitlePlace | None:
        """The place behind a byte of a title; None if no title goes on with it. See `ends` for its end."""
        plain = _narrow(self._plain, place.plain, byte)
        spelled = _narrow(self._spelled, place.spelled, byte)
        return TitlePlace(plain, spelled) if plain or spelled else None

    def ends(self, place: TitlePlace) -> bool:
        """Whether a title ends here, so that a closing parenthesis may follow."""
        return any(
            run is not None and texts.byte(run.begin, run.depth) == _ENDED for texts, run in self._in(place)
        )

    def next_bytes(self, place: TitlePlace) -> tuple[int, ...] | None:
        """The bytes that go on, ascending; None if there are too many to list cheaply."""
        runs = list(self._in(place))
        few = sum(run.end - run.begin for _, run in runs) <= _MAX_LISTED
        found: set[int] = set()
        for texts, run in runs:
            first, last = texts.byte(run.begin, run.depth), texts.byte(run.end - 1, run.depth)
            if first == last or few:
                found |= {first} if first == last else set(_bytes_of(texts, run))
            else:
                return None
        return tuple(sorted(found - {_ENDED}))

    def tokens(self, place: TitlePlace, node: TokenNode) -> LeafTokens:
        """The tokens below a node that go on with some title; exits are behind the closing parenthesis."""
        if sum(run.end - run.begin for _, run in self._in(place)) < _MIN_KEPT:
            return self._find_tokens(place, node)
        at = place, node
        found = self._tokens.get(at)
        return self._tokens.put(at, self._find_tokens(place, node)) if found is None else found

    def shortest(self, place: TitlePlace) -> bytes:
        """The shortest rest of a title, closing parenthesis included, of equals the first in byte order."""
        found = self._shortest.get(place)
        if found is not None:
            return found
        rests = []
        for texts, run in self._in(place):
            lengths = texts.batches.lengths(texts.order[run.begin : run.end])
            rests.append(texts.text(run.begin + int(lengths.argmin()))[run.depth :])
        rest = min(rests, key=lambda text: (len(text), text)) + bytes([TITLE_CLOSE])
        if sum(run.end - run.begin for _, run in self._in(place)) >= _MIN_KEPT:
            self._shortest[place] = rest
        return rest

    def members(self, title: bytes) -> tuple[int, ...]:
        """Numbers of the texts that are this title, ascending; empty if there is none."""
        place: TitlePlace | None = self.start
        for byte in spelled_title(title):
            place = None if place is None else self.step(place, byte)
        if place is None:
            return ()
        found: list[int] = []
        for texts, run in self._in(place):
            end = first_from(texts, *run[:3], 0)
            numbers = texts.numbers(run.begin, end)
            found += numbers if texts is self._plain else [self._numbers[number] for number in numbers]
        return tuple(sorted(found))

    def _in(self, place: TitlePlace) -> Iterator[tuple[SortedTexts, TextRange]]:
        if place.plain is not None:
            yield self._plain, place.plain
        if place.spelled is not None:
            yield self._spelled, place.spelled

    def _find_tokens(self, place: TitlePlace, node: TokenNode) -> LeafTokens:
        inside: set[int] = set()
        many: NDArray[np.uint32] | None = None
        vocabulary = self.searcher.vocabulary
        if place.plain is not None:
            found = self.searcher.tokens(self._plain, place.plain, node)
            inside.update(found.few)
            if found.many is not None:
                many = found.many & ~self._quotes
            inside.difference_update(self._quoting)
        exits: set[int] = set()
        self._close(place, node, inside, exits)
        if place.spelled is not None:
            self._walk(place.spelled, node, inside)
        rests = (Exit(0, vocabulary.rest(exits)),) if exits else ()
        if many is None and len(inside) <= FEW_TOKENS:
            return LeafTokens(tuple(sorted(inside)), None, rests)
        packed = vocabulary.packed(sorted(inside))
        packed = packed if many is None else packed | many
        packed.flags.writeable = False
        return LeafTokens((), packed, rests)

    def _walk(self, run: TextRange, node: TokenNode, inside: set[int]) -> None:
        """Find the tokens that stay inside of copied titles."""
        waiting = [(node, run)]
        while waiting:
            node, run = waiting.pop()
            children = node.children
            for byte in _bytes_of(self._spelled, run) if len(children) > _MAX_LISTED else children:
                child = children.get(byte)
                after = _narrow(self._spelled, run, byte) if child is not None else None
                if child is not None and after is not None:
                    inside.update(child.tokens)
                    waiting.append((child, after))

    def _close(self, place: TitlePlace, node: TokenNode, inside: set[int], exits: set[int]) -> None:
        """Find the tokens that end a title exactly, and the places of the trie with longer ones."""
        trie = self.searcher.vocabulary.trie
        closing = self._closing
        waiting = [(position, place) for position in node.positions]
        while waiting:
            position, place = waiting.pop()
            child = position + 1
            while child < trie.end_view[position]:
                byte = trie.byte_view[child]
                if byte == TITLE_CLOSE and self.ends(place):
                    inside.update(
                        trie.tokens_view[trie.token_begin_view[child] : trie.token_begin_view[child + 1]]
                    )
                    if trie.end_view[child] > child + 1:
                        exits.add(child)
                if child in closing:
                    after = self.step(place, byte)
                    if after is not None:
                        waiting.append((child, after))
                child = trie.end_view[child]

    @cached_property
    def _closing(self) -> frozenset[int]:
        """Positions of the trie below which some token has a closing parenthesis."""
        trie = self.searcher.vocabulary.trie
        found: set[int] = set()
        path: list[int] = []
        for position in range(len(trie.depth_view)):
            del path[trie.depth_view[position] :]
            if position and trie.byte_view[position] == TITLE_CLOSE:
                found.update(path)
            path.append(position)
        return frozenset(found)

    @cached_property
    def _quoting(self) -> frozenset[int]:
        """Tokens with a quotation mark, which a search for strings of JSON finds but no title has."""
        vocabulary = self.searcher.vocabulary
        return frozenset(
            token for token in range(vocabulary.vocab_size) if QUOTE in (vocabulary.bytes_of(token) or b"")
        )

    @cached_property
    def _quotes(self) -> NDArray[np.uint32]:
        return self.searcher.vocabulary.packed(sorted(self._quoting))


def _narrow(texts: SortedTexts, run: TextRange | None, byte: int) -> TextRange | None:
    return None if run is None else TextSearch(texts).plain(run, byte)


def _bytes_of(texts: SortedTexts, run: TextRange) -> Iterator[int]:
    """The next bytes of a run's titles, ascending, each once; -1 first for titles that end."""
    at = run.begin
    while at < run.end:
        byte = texts.byte(at, run.depth)
        yield byte
        at = first_from(texts, at, run.end, run.depth, byte + 1)


def _copied(batches: TextBatches) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each title is copied, and whether it is empty, by number. Shapes: (n,), bool."""
    copied, empty = [], []
    for begins, data in zip(batches.offsets, batches.data, strict=True):
        texts = data[begins[0] : begins[-1]]
        offsets = (begins - begins[0]).astype(np.int64)
        # Bytes that only copied titles may have.
        odd = (texts < FIRST_PLAIN) | (texts == QUOTE) | (texts == BACKSLASH)
        depth = np.concatenate(
            [[0], np.cumsum((texts == TITLE_OPEN).astype(np.int32) - (texts == TITLE_CLOSE))]
        )
        found = np.diff(np.concatenate([[0], np.cumsum(odd)])[offsets]) > 0
        found |= np.diff(depth[offsets]) != 0
        # Titles in which a parenthesis closes more than was opened.
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        found[owner[depth[1:] < depth[offsets[:-1]][owner]]] = True
        copied.append(found)
        empty.append(np.diff(offsets) == 0)
    return _joined(copied), _joined(empty)


def _joined(parts: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.bool_)
