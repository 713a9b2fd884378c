"""Builds and combines deterministic automata over bytes, of which leaves are made.

`byte_edges` splits ranges of code points into ranges of UTF-8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.automaton import Automaton
from genret.decoding.grammar.regular.dfa_texts import automaton_of, bottom_up
from genret.decoding.grammar.regular.minimise import Edge, Row, renumbered

# Rows hashed between two checks of the clock.
_HASHED_AT_ONCE = 1024


class ByteDfa(Automaton):
    """A regular language of byte strings. Equal automata have equal `digest`."""

    __slots__ = ("_edges", "_sizes", "digest")

    def __init__(self, rows: Sequence[Row], ends: Sequence[int]) -> None:
        """See `Automaton`."""
        super().__init__(rows, ends)
        # The digested contents: the number of states, their labels, their numbers of edges; and the edges.
        self._sizes = array("i", [len(rows), *ends, *map(len, rows)])
        self._edges = array("i")
        digest = blake2b(self._sizes.tobytes(), digest_size=16)
        check_time = current_budget().check_time
        for begin in range(0, len(rows), _HASHED_AT_ONCE):
            check_time()
            part = array("i", chain.from_iterable(chain.from_iterable(rows[begin : begin + _HASHED_AT_ONCE])))
            digest.update(part)
            self._edges.extend(part)
        self.digest = digest.digest()

    @property
    def labels(self) -> NDArray[np.int32]:
        """Label of the text that ends in a state, -1 for none. Shape: (S,), int32, read-only."""
        return _read_only(np.frombuffer(self._sizes, dtype=np.int32)[1 : 1 + len(self.rows)])

    @property
    def edges(self) -> NDArray[np.int32]:
        """First byte, last byte and next state, by state. Shape: (E, 3), int32, read-only."""
        return _read_only(np.frombuffer(self._edges, dtype=np.int32).reshape(-1, 3))

    @property
    def edge_begin(self) -> NDArray[np.int32]:
        """Index in `edges` of each state's first edge, and of the end. Shape: (S + 1,), int32, read-only."""
        begin = np.zeros(len(self.rows) + 1, dtype=np.int32)
        np.cumsum(np.frombuffer(self._sizes, dtype=np.int32)[1 + len(self.rows) :], out=begin[1:])
        return _read_only(begin)

    @staticmethod
    def from_minimal_rows(rows: Sequence[Sequence[Edge]], labels: Sequence[int]) -> ByteDfa:
        """Like `from_rows`, if no two states have the same future and all can reach the end of a text."""
        return ByteDfa(*renumbered(rows, labels, trimmed=True))

    @staticmethod
    def literals(texts: Iterable[tuple[bytes, int]]) -> ByteDfa:
        """A finite set of texts with their labels.

        Raises ValueError if a text has two labels, or a label is negative.
        """
        labelled: dict[bytes, int] = {}
        for text, label in texts:
            if labelled.setdefault(text, label) != label or label < 0:
                raise ValueError(f"every text must have one label of 0 or more, got {text!r} with {label}")
        ordered = sorted(labelled)
        if not ordered:
            return ByteDfa([()], [-1])
        return ByteDfa(*automaton_of(ordered, [labelled[text] for text in ordered]))

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        return super().num_bytes + self._edges.itemsize * (len(self._sizes) + len(self._edges))

    @property
    def is_finite(self) -> bool:
        """Whether the language has finitely many texts."""
        return bottom_up(self.rows) is not None

    def accepts(self, text: bytes) -> bool:
        """Whether the text is in the language."""
        return self.label_of(text) >= 0

    def shortest(self) -> bytes:
        """The first in byte order of the shortest texts. Raises ValueError for the empty language."""
        return bytes(self._shortest())


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array


MakeState = Callable[[Row], int]
"""Interns a state by its edges and returns its number."""

# Length of the sequence, its first and last code point, and the bits that mark its first byte.
_LENGTHS = (
    (1, 0, 0x7F, 0x00),
    (2, 0x80, 0x7FF, 0xC0),
    (3, 0x800, 0xFFFF, 0xE0),
    (4, 0x10000, 0x10FFFF, 0xF0),
)


def byte_edges(row: Sequence[Edge], make_state: MakeState) -> list[Edge]:
    """Edges over the first byte of characters, with states for the bytes behind it.

    Overlong sequences and surrogates are left out. `make_state` interns a state behind some bytes of a
    character.
    """
    out: list[Edge] = []
    for length, low, high, mark in _LENGTHS:
        inside = [
            (max(first, low), min(last, high), target)
            for first, last, target in row
            if first <= high and last >= low
        ]
        if not inside:
            continue
        if length == 1:
            out.extend(inside)
            continue
        shift = 6 * (length - 1)
        out.extend(
            (mark | first, mark | last, state)
            for first, last, state in _lead_edges(inside, shift, make_state)
        )
    return out


def _lead_edges(row: Sequence[Edge], shift: int, make_state: MakeState) -> list[Edge]:
    """Edges over the bits above `shift`, with states for the bits below it."""
    if not shift:
        return list(row)
    out: list[Edge] = []
    whole = (1 << shift) - 1
    partial: list[Edge] = []
    block = -1

    def close() -> None:
        if partial:
            out.append((block, block, _tail(tuple(partial), shift, make_state)))
            partial.clear()

    for first, last, target in row:
        while first <= last:
            high_bits = first >> shift
            end = min(last, first | whole)
            if high_bits != block:
                close()
                block = high_bits
            if first & whole == 0 and end & whole == whole:
                # All whole blocks in one edge.
                end_bits = (last + 1 >> shift) - 1
                out.append((high_bits, end_bits, _tail(((0, whole, target),), shift, make_state)))
                first = (end_bits + 1) << shift
                block = -1
            else:
                partial.append((first & whole, end & whole, target))
                first = end + 1
    close()
    return out


def _tail(row: Row, shift: int, make_state: MakeState) -> int:
    """The state before continuation bytes that hold `shift` bits."""
    edges = _lead_edges(row, shift - 6, make_state)
    return make_state(tuple((0x80 | first, 0x80 | last, target) for first, last, target in edges))
