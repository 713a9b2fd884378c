"""Builds and combines deterministic automata over bytes, of which leaves are made.

`byte_edges` splits ranges of code points into ranges of UTF-8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.compile_options import current_budget
from genret.decoding.grammar.regular.dfa_texts import (
    automaton_of,
    bottom_up,
    count_texts,
    distances,
    rows_bytes,
    shortest_text,
)
from genret.decoding.grammar.regular.minimise import Edge, Row, canonical, renumbered
from genret.decoding.grammar.regular.nfa import Nfa
from genret.decoding.grammar.regular.product import DIFFERENCE, INTERSECTION, UNION, product

# Rows hashed between two checks of the clock.
_HASHED_AT_ONCE = 1024
# A state of an overlay: a dictionary of a byte, and its entries, measured with tracemalloc.
_OVERLAY_BYTES = 400


class Overlay(NamedTuple):
    """A trie of texts laid over other states of an automaton.

    Attributes:
        below: By state of the trie, the state whose edges apply where the trie has none; -1: none.
        children: By state of the trie, its edges as next states by byte.
    """

    below: dict[int, int]
    children: dict[int, dict[int, int]]


class ByteDfa:
    """A regular language of byte strings, each with a label: minimal, numbered canonically, start 0,
    immutable.

    Every state is reachable and can reach a final one; the empty language is one state without edges or
    label. Equal automata have equal `digest`.

    Attributes:
        rows: By state, edges (first byte, last byte, next state), sorted, none that could be joined.
        ends: By state, the label of the text that ends there, -1 where none does.
        digest: Digest of the contents.
        overlay: Overlay of some states over others, if the automaton was made with one.
    """

    __slots__ = ("_edges", "_sizes", "_table", "digest", "ends", "overlay", "rows")

    def __init__(
        self,
        rows: tuple[Row, ...],
        ends: tuple[int, ...],
        digest: bytes,
        sizes: array[int],
        edges: array[int],
    ) -> None:
        """Not to be called: rows must be minimal and canonical, as the other constructors make them."""
        self.rows = rows
        self.ends = ends
        self.digest = digest
        self.overlay: Overlay | None = None
        # The digested contents: the number of states, their labels, their numbers of edges; and the edges.
        self._sizes = sizes
        self._edges = edges
        self._table: NDArray[np.int32] | None = None

    @property
    def table(self) -> NDArray[np.int32]:
        """Next state by state and byte, -1 for none; made on first use. Shape: (S, 256), int32, read-only.

        It takes a kibibyte per state; `rows` are far smaller.
        """
        if self._table is None:
            table = np.full((len(self.rows), 256), -1, dtype=np.int32)
            for targets, row in zip(table, self.rows, strict=True):
                for first, last, target in row:
                    targets[first : last + 1] = target
            self._table = _read_only(table)
        return self._table

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
    def from_rows(rows: Sequence[Sequence[Edge]], labels: Sequence[int]) -> ByteDfa:
        """Any deterministic automaton, start 0.

        Args:
            rows: For every state its edges (first byte, last byte, next state), sorted and disjoint.
            labels: For every state the label of a text that ends there, -1 where none does.
        """
        return _made(*canonical(rows, labels))

    @staticmethod
    def from_minimal_rows(
        rows: Sequence[Sequence[Edge]], labels: Sequence[int], *, trimmed: bool = False
    ) -> ByteDfa:
        """Like `from_rows`, for an automaton in which no two live states have the same future.

        With `trimmed` it is known that every state can reach the end of a text.
        """
        return _made(*renumbered(rows, labels, trimmed=trimmed))

    @staticmethod
    def from_canonical_rows(rows: Sequence[Row], labels: Sequence[int], overlay: Overlay) -> ByteDfa:
        """An automaton that is trimmed and minimal, its states in breadth-first order, low bytes first."""
        made = _made(rows, labels)
        made.overlay = overlay
        return made

    @staticmethod
    def from_table(table: NDArray[np.int32], labels: Sequence[int]) -> ByteDfa:
        """Any deterministic automaton, start 0, by its table of next states. Shape: (S, 256), int32."""
        rows: list[list[Edge]] = []
        for targets in table:
            cuts = np.flatnonzero(np.diff(targets)) + 1
            firsts = [0, *cuts.tolist()]
            lasts = [*(cuts - 1).tolist(), 255]
            edges = zip(firsts, lasts, targets[firsts].tolist(), strict=True)
            rows.append([edge for edge in edges if edge[2] >= 0])
        return ByteDfa.from_rows(rows, labels)

    @staticmethod
    def from_nfa(nfa: Nfa, start: int) -> ByteDfa:
        """The language of a nondeterministic automaton over bytes, with the labels of its states."""
        return _made(*nfa.determinise(start))

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
            return ByteDfa.from_rows([[]], [-1])
        rows, labels = automaton_of(ordered, [labelled[text] for text in ordered])
        return _made(rows, labels)

    def __or__(self, other: ByteDfa) -> ByteDfa:
        """Texts of either; a text of both keeps its left label."""
        return _made(*product((self.rows, self.ends), (other.rows, other.ends), UNION))

    def __and__(self, other: ByteDfa) -> ByteDfa:
        """Texts of both, with their left labels."""
        return _made(*product((self.rows, self.ends), (other.rows, other.ends), INTERSECTION))

    def __sub__(self, other: ByteDfa) -> ByteDfa:
        """Texts that the other one does not have."""
        return _made(*product((self.rows, self.ends), (other.rows, other.ends), DIFFERENCE))

    def then(self, *others: ByteDfa) -> ByteDfa:
        """Texts of this set followed by texts of the others, in order; all with label 0."""
        nfa = Nfa()
        start = joint = nfa.state()
        for part in (self, *others):
            joint = nfa.append(joint, part.rows, part.ends)
        nfa.labels[joint] = 0
        return ByteDfa.from_nfa(nfa, start)

    @property
    def num_states(self) -> int:
        """The number of states, S."""
        return len(self.rows)

    @property
    def num_bytes(self) -> int:
        """Approximate memory."""
        laid = 0 if self.overlay is None else _OVERLAY_BYTES * len(self.overlay.below)
        return laid + rows_bytes(self.rows) + self._edges.itemsize * (len(self._sizes) + len(self._edges))

    @property
    def is_empty(self) -> bool:
        """Whether the language has no text."""
        return not self.rows[0] and self.ends[0] < 0

    @property
    def is_finite(self) -> bool:
        """Whether the language has finitely many texts."""
        return bottom_up(self.rows) is not None

    def count(self, most: int | None = None) -> int | None:
        """Count the texts, at most up to `most`; None: infinitely many."""
        return count_texts(self.rows, [label >= 0 for label in self.ends], most)

    def step(self, state: int, byte: int) -> int:
        """The state after one byte, -1 if it is not allowed."""
        for first, last, target in self.rows[state]:
            if first <= byte <= last:
                return target
        return -1

    def label_of(self, text: bytes) -> int:
        """Label of a text, -1 if it is not in the set."""
        state = 0
        for byte in text:
            state = self.step(state, byte)
            if state < 0:
                return -1
        return self.ends[state]

    def accepts(self, text: bytes) -> bool:
        """Whether the text is in the language."""
        return self.label_of(text) >= 0

    def distances(self) -> list[int]:
        """By state, the fewest bytes that end a text; -1 only in the empty language."""
        return distances(self.rows, [label >= 0 for label in self.ends])

    def shortest(self, state: int = 0) -> bytes:
        """The first in byte order of the shortest texts that lead from the state to a final one.

        Raises ValueError for the empty language.
        """
        if self.is_empty:
            raise ValueError("an empty language has no shortest text")
        return bytes(shortest_text(self.rows, [label >= 0 for label in self.ends], state))


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array


def _made(rows: Sequence[Row], labels: Sequence[int]) -> ByteDfa:
    """The automaton of rows and labels that are minimal and canonical."""
    sizes = array("i", [len(rows), *labels, *map(len, rows)])
    digest = blake2b(sizes.tobytes(), digest_size=16)
    edges = array("i")
    check_time = current_budget().check_time
    for begin in range(0, len(rows), _HASHED_AT_ONCE):
        check_time()
        part = array("i", chain.from_iterable(chain.from_iterable(rows[begin : begin + _HASHED_AT_ONCE])))
        digest.update(part)
        edges.extend(part)
    return ByteDfa(tuple(rows), tuple(labels), digest.digest(), sizes, edges)


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

    Overlong sequences and surrogates are left out.

    Args:
        row: Edges over code points (first, last, next), sorted and disjoint, without surrogates.
        make_state: Function that interns a state behind some bytes of a character.
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
