"""All texts of the numbers of a set: a sign, and behind it plain decimals and exponents read side by side."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.number_automaton import automaton_of
from decoding.grammar.regular.number_exponent import MARK, NOWHERE, SIGN, ExponentReader, MantissaReader
from decoding.grammar.regular.number_lattice import ALL_NUMBERS, Exact, Lattices, holds
from decoding.grammar.regular.number_magnitudes import Magnitudes, magnitudes
from decoding.grammar.regular.number_plain import PlainReader

ZERO, NINE, POINT, MINUS, PLUS, E_UPPER, E_LOWER = b"09.-+Ee"
DIGITS = range(ZERO, NINE + 1)


def spell(
    cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...], canonical: bool
) -> ByteDfa:
    """What `NumberSet.spelled` promises, for the parts of a `NumberSet`."""
    if not canonical and not cuts and between == (ALL_NUMBERS,):
        return _every_number()
    positive, negative = magnitudes(cuts, points, between, _has_zero(cuts, points, between))
    if canonical:
        negative.points[0] = False
    return automaton_of(_NumberReader(positive, negative, canonical))


def _has_zero(cuts: tuple[Exact, ...], points: tuple[bool, ...], between: tuple[Lattices, ...]) -> bool:
    if 0 in cuts:
        return points[cuts.index(0)]
    return holds(between[sum(cut < 0 for cut in cuts)], 0)


@lru_cache(maxsize=1)
def _every_number() -> ByteDfa:
    everything, _ = magnitudes((), (), (ALL_NUMBERS,), True)
    return automaton_of(_NumberReader(everything, everything, canonical=False))


ReaderEdge = tuple[int, int, Hashable]

_EVERY: dict[str, tuple[ReaderEdge, ...]] = {
    "first": ((ZERO, ZERO, "zero"), (ZERO + 1, NINE, "whole")),
    "zero": ((POINT, POINT, "point"), (E_UPPER, E_UPPER, "e"), (E_LOWER, E_LOWER, "e")),
    "whole": (
        (POINT, POINT, "point"),
        (ZERO, NINE, "whole"),
        (E_UPPER, E_UPPER, "e"),
        (E_LOWER, E_LOWER, "e"),
    ),
    "point": ((ZERO, NINE, "fraction"),),
    "fraction": ((ZERO, NINE, "fraction"), (E_UPPER, E_UPPER, "e"), (E_LOWER, E_LOWER, "e")),
    "e": ((PLUS, PLUS, "sign"), (MINUS, MINUS, "sign"), (ZERO, NINE, "power")),
    "sign": ((ZERO, NINE, "power"),),
    "power": ((ZERO, NINE, "power"),),
}
"""Edges of an automaton of all JSON numbers without a sign, by the part that was read last."""


class _Decimal(NamedTuple):
    """In front of an exponent: which sign, and the states of both readers, None where one has given up."""

    side: int
    plain: Any
    mantissa: Any


class _NumberReader:
    """Reads a sign and what follows it.

    A state is None at first, "minus", the name of a part of any number, a `_Decimal`, or an exponent's state;
    the last ones are common to both signs.
    """

    def __init__(self, positive: Magnitudes, negative: Magnitudes, canonical: bool) -> None:
        self._plain: list[PlainReader | None] = []
        self._mantissa: list[MantissaReader | None] = []
        for numbers in (positive, negative):
            takes_all = numbers.is_everything and not canonical
            self._plain.append(None if takes_all else PlainReader(numbers, canonical))
            self._mantissa.append(None if takes_all or canonical else MantissaReader(numbers))

    def start(self) -> Hashable:
        """Before the sign."""
        return None

    def edges(self, state: Any) -> Iterable[ReaderEdge]:
        """What may follow."""
        if isinstance(state, _Decimal):
            return self._decimal_edges(state)
        if state is None:
            return [(MINUS, MINUS, "minus"), *self._first(0)]
        if state == "minus":
            return self._first(1)
        return _EVERY[state] if isinstance(state, str) else _exponent_edges(state)

    def is_final(self, state: Any) -> bool:
        """Whether the number may end."""
        if isinstance(state, _Decimal):
            reader = self._plain[state.side]
            return reader is not None and state.plain is not None and reader.is_final(state.plain)
        if state is None or isinstance(state, str):
            return state in ("zero", "whole", "fraction", "power")
        return ExponentReader.is_final(state)

    def _first(self, side: int) -> Iterable[ReaderEdge]:
        plain, mantissa = self._plain[side], self._mantissa[side]
        if plain is None:
            return _EVERY["first"]
        return _digit_edges(side, plain.first(), mantissa.first() if mantissa else NOWHERE)

    def _decimal_edges(self, state: _Decimal) -> list[ReaderEdge]:
        side, plain, mantissa = state
        plain_reader, mantissa_reader = self._plain[side], self._mantissa[side]
        plains, plain_point = NOWHERE, None
        if plain_reader and plain:
            plains, plain_point = plain_reader.steps(plain), plain_reader.point(plain)
        mantissas, mantissa_point, exponents = NOWHERE, None, None
        if mantissa_reader and mantissa:
            mantissas, mantissa_point = mantissa_reader.steps(mantissa), mantissa_reader.point(mantissa)
            exponents = mantissa_reader.exponents(mantissa)
        edges = _digit_edges(side, plains, mantissas)
        if plain_point or mantissa_point:
            edges.insert(0, (POINT, POINT, _Decimal(side, plain_point, mantissa_point)))
        if exponents:
            mark = (MARK, exponents)
            edges += [(E_UPPER, E_UPPER, mark), (E_LOWER, E_LOWER, mark)]
        return edges


@lru_cache(maxsize=4096)
def _exponent_edges(state: Any) -> list[ReaderEdge]:
    """What may follow in an exponent; many sets of numbers have exponents in common."""
    edges: list[ReaderEdge] = []
    if state[0] == MARK:
        up, down = state[1]
        edges = [(PLUS, PLUS, (SIGN, up)), (MINUS, MINUS, (SIGN, down))]
    edges += _joined(ExponentReader.steps(state))
    return edges


def _digit_edges(side: int, plains: list[Any], mantissas: list[Any]) -> list[ReaderEdge]:
    """Edges of the ten digits where a reader goes on; neighbours that lead to one state are joined."""
    edges: list[ReaderEdge] = []
    last_plain = last_mantissa = target = None
    for byte, plain, mantissa in zip(DIGITS, plains, mantissas, strict=True):
        if plain == last_plain and mantissa == last_mantissa:
            if target:
                edges[-1] = (edges[-1][0], byte, target)
        else:
            last_plain, last_mantissa = plain, mantissa
            target = _Decimal(side, plain, mantissa) if plain or mantissa else None
            if target:
                edges.append((byte, byte, target))
    return edges


def _joined(targets: Iterable[Hashable]) -> list[ReaderEdge]:
    """Edges of the ten digits to their targets; neighbours that lead to one state are joined."""
    edges: list[ReaderEdge] = []
    last = None
    for byte, target in enumerate(targets, ZERO):
        if target is None:
            last = None
        elif target == last:
            edges[-1] = (edges[-1][0], byte, last)
        else:
            edges.append((byte, byte, target))
            last = target
    return edges
