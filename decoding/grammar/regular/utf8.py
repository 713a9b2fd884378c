"""Ranges of code points as ranges of UTF-8 bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoding.grammar.regular.minimise import Edge, Row

# Intern a state by its edges. Returns its number.
MakeState = Callable[[Row], int]

# Length of the sequence, its first and last code point, and the bits that mark its first byte.
_LENGTHS = (
    (1, 0, 0x7F, 0x00),
    (2, 0x80, 0x7FF, 0xC0),
    (3, 0x800, 0xFFFF, 0xE0),
    (4, 0x10000, 0x10FFFF, 0xF0),
)


def byte_edges(row: Sequence[Edge], make_state: MakeState) -> list[Edge]:
    """Edges over the first byte of characters, with states for the bytes behind it.

    Args:
        row: Edges over code points (first, last, next), sorted and disjoint, without surrogates.
        make_state: Interns a state behind some bytes of a character.

    Returns:
        Edges over bytes, sorted. Overlong sequences and surrogates are not among them.
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
                # Whole blocks: as many as there are, in one edge.
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
