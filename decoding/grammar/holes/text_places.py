"""Defines places in a JSON string that must be one of some sorted texts, and follows the texts in Python.

All texts that begin with the bytes written so far are one run of the sorted order. Escaped characters differ
in JSON, so a place also says how much of an escape is written. A text has one spelling: quotes and
backslashes stand behind a backslash, control characters have JSON's short escape or else `u00` and two
lower-case digits behind a backslash, everything else stands as it is.

`compiled_search` does the same as `TextSearch` in compiled loops.
"""

from __future__ import annotations

from json.encoder import encode_basestring  # what json.dumps(ensure_ascii=False) calls
from typing import NamedTuple

from genret.decoding.grammar.leaves.leaf import TokenWalk
from genret.decoding.grammar.token_trie import FlatTrie
from genret.decoding.sorted_texts import SortedTexts

QUOTE = 0x22
BACKSLASH = 0x5C
# Bytes below this are control characters, and always escaped.
FIRST_PLAIN = 0x20

# The written part of an escape; FINAL: behind the closing quote; START: before the opening one.
PLAIN, ESCAPE, UNICODE, ZERO, ZEROS, LOW, HIGH, FINAL, START = range(9)
# The bytes of JSON that belong to the escape so far.
WRITTEN = (b"", b"\\", b"\\u", b"\\u0", b"\\u00", b"\\u000", b"\\u001")

_MODE_BITS, _MODE_MASK = 4, 15
_BITS = 31
_MASK = (1 << _BITS) - 1


class TextRange(NamedTuple):
    """A run of texts with the same beginning."""

    begin: int  # First text of the run, by its position in the sorted order
    end: int  # First text behind the run
    depth: int  # Bytes of the texts that are written
    mode: int  # `PLAIN`, the part of an escape written behind them, `FINAL` or `START`


def pack(place: TextRange) -> int:
    """Return the place as an int, so that no table of places is kept. The start is 0."""
    begin, end, depth, mode = place
    if mode == START:
        return 0
    return (((begin << _BITS | end) << _BITS) | depth) << _MODE_BITS | mode


def unpack(state: int, num_texts: int) -> TextRange:
    """Return the place of an int."""
    if state == 0:
        return TextRange(0, num_texts, 0, START)
    rest = state >> _MODE_BITS
    return TextRange(rest >> 2 * _BITS, (rest >> _BITS) & _MASK, rest & _MASK, state & _MODE_MASK)


# The JSON spelling of every byte of a text; bytes of characters beyond ASCII are unchanged.
SPELLINGS = tuple(
    encode_basestring(chr(byte))[1:-1].encode() if byte < 0x80 else bytes([byte]) for byte in range(256)
)
# The bytes of texts that are spelled by an escape, ascending.
ESCAPED_BYTES = tuple(byte for byte in range(256) if len(SPELLINGS[byte]) > 1)


def spelled(text: bytes) -> bytes:
    """Return the JSON spelling of the bytes of a text, without quotes."""
    return b"".join(map(SPELLINGS.__getitem__, text))


# Up to so many children of a trie node are looked up among the texts; otherwise the texts' next bytes are
# looked up among the children.
_FEW_CHILDREN = 4

_MODES = {written: mode for mode, written in enumerate(WRITTEN)}


class TextSearch:
    """Follows texts, at least one, in Python."""

    def __init__(self, texts: SortedTexts) -> None:
        self._texts = texts
        self._byte = texts.byte

    def narrow(self, place: TextRange, byte: int) -> TextRange | None:
        """The place behind one byte of JSON, None if no text goes on with it."""
        begin, end, depth, mode = place
        if mode == PLAIN:
            if byte == QUOTE:
                run = self._run(begin, end, depth, -1)
                return TextRange(*run, depth, FINAL) if run else None
            if byte == BACKSLASH:
                return TextRange(begin, end, depth, ESCAPE) if self._spelled_by(place, b"\\") else None
            return self.plain(place, byte) if byte >= FIRST_PLAIN else None
        if mode == START:
            return TextRange(begin, end, 0, PLAIN) if byte == QUOTE else None
        if mode == FINAL:
            return None
        return self._within_escape(place, WRITTEN[mode] + bytes([byte]))

    def edges(self, place: TextRange) -> dict[int, TextRange]:
        """All bytes of JSON that go on with some text, ascending, with the places behind them."""
        begin, end, depth, mode = place
        if mode == START:
            return {QUOTE: TextRange(begin, end, 0, PLAIN)}
        if mode == FINAL:
            return {}
        if mode != PLAIN:
            behind = len(WRITTEN[mode])
            bytes_ = sorted({SPELLINGS[byte][behind] for byte in self._spelled_by(place, WRITTEN[mode])})
            found = [(byte, self._within_escape(place, WRITTEN[mode] + bytes([byte]))) for byte in bytes_]
            return {byte: after for byte, after in found if after}
        edges: dict[int, TextRange] = {}
        at = begin
        while at < end:
            byte = self._byte(at, depth)
            behind = first_from(self._texts, at, end, depth, byte + 1)
            if byte < 0:
                edges[QUOTE] = TextRange(at, behind, depth, FINAL)
            elif len(SPELLINGS[byte]) > 1:
                edges[BACKSLASH] = TextRange(begin, end, depth, ESCAPE)
            else:
                edges[byte] = TextRange(at, behind, depth + 1, PLAIN)
            at = behind
        return dict(sorted(edges.items()))

    def is_forced(self, place: TextRange) -> bool:
        """Whether all texts of the run go on with the same byte of their own."""
        begin, end, depth, _ = place
        return self._byte(begin, depth) == self._byte(end - 1, depth)

    def plain(self, place: TextRange, byte: int) -> TextRange | None:
        """The place behind a whole byte of the texts."""
        run = self._run(place.begin, place.end, place.depth, byte)
        return TextRange(*run, place.depth + 1, PLAIN) if run else None

    def walk(self, place: TextRange, trie: FlatTrie, positions: tuple[int, ...]) -> TokenWalk:
        """Find the tokens of the trie below some positions that go on with some text."""
        tokens: list[int] = []
        exits: list[int] = []
        for position in positions:
            self._walk(place, trie, position, tokens, exits)
        return TokenWalk(tokens, None, {0: exits} if exits else {})

    def _walk(self, place: TextRange, trie: FlatTrie, root: int, tokens: list[int], exits: list[int]) -> None:
        begin, ids = trie.token_begin_view, trie.tokens_view
        byte, end = trie.byte_view, trie.end_view
        open_places = [(root, place)]
        while open_places:
            position, place = open_places.pop()
            children = {}
            child = position + 1
            while child < end[position]:
                children[byte[child]] = child
                child = end[child]
            if len(children) <= _FEW_CHILDREN:
                found = {next_byte: self.narrow(place, next_byte) for next_byte in children}
                edges = {next_byte: after for next_byte, after in found.items() if after}
            else:
                edges = self.edges(place)
            for next_byte, after in edges.items():
                if next_byte not in children:
                    continue
                child = children[next_byte]
                tokens += ids[begin[child] : begin[child + 1]]
                if end[child] == child + 1:
                    continue
                if after.mode == FINAL:
                    exits.append(child)
                else:
                    open_places.append((child, after))

    def _within_escape(self, place: TextRange, written: bytes) -> TextRange | None:
        """The place with so much of an escape written."""
        if written in _MODES:
            there = self._spelled_by(place, written)
            return place._replace(mode=_MODES[written]) if there else None
        for byte in ESCAPED_BYTES:
            if SPELLINGS[byte] == written:
                return self.plain(place, byte)
        return None

    def _spelled_by(self, place: TextRange, written: bytes) -> list[int]:
        """The next bytes of texts whose escape begins with `written`."""
        begin, end, depth, _ = place
        return [
            byte
            for byte in ESCAPED_BYTES
            if SPELLINGS[byte].startswith(written) and self._run(begin, end, depth, byte)
        ]

    def _run(self, begin: int, end: int, depth: int, byte: int) -> tuple[int, int] | None:
        """The texts of a run that go on with a byte, -1 for those that end."""
        first = first_from(self._texts, begin, end, depth, byte)
        if first == end or self._byte(first, depth) != byte:
            return None
        return first, first_from(self._texts, first, end, depth, byte + 1)


def first_from(texts: SortedTexts, begin: int, end: int, depth: int, byte: int) -> int:
    """The first text of a run that goes on with this byte or a greater one."""
    at, step = begin, 1
    while at < end and texts.byte(at, depth) < byte:
        begin = at + 1
        at += step
        step *= 2
    end = min(at, end)
    while begin < end:
        middle = (begin + end) // 2
        if texts.byte(middle, depth) < byte:
            begin = middle + 1
        else:
            end = middle
    return begin
