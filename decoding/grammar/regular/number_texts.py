"""All texts of the numbers of a set: a sign, and behind it plain decimals and exponents read side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, NamedTuple

from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.number_automaton import automaton_of
from decoding.grammar.regular.number_exponent import MARK, ExponentReader, MantissaReader
from decoding.grammar.regular.number_lattice import ALL_NUMBERS, Exact, Lattices, holds
from decoding.grammar.regular.number_magnitudes import Magnitudes, magnitudes
from decoding.grammar.regular.number_plain import PlainReader

ZERO, NINE, POINT, MINUS, PLUS, E_UPPER, E_LOWER = b"09.-+Ee"

ReaderEdge = tuple[int, int, Hashable]


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


class _EveryReader:
    """Reads every JSON number without a sign; states are the names of the parts."""

    _EDGES: dict[str, list[ReaderEdge]] = {
        "": [(ZERO, ZERO, "zero"), (ZERO + 1, NINE, "whole")],
        "zero": [(POINT, POINT, "point"), (E_UPPER, E_UPPER, "e"), (E_LOWER, E_LOWER, "e")],
        "whole": [
            (POINT, POINT, "point"),
            (ZERO, NINE, "whole"),
            (E_UPPER, E_UPPER, "e"),
            (E_LOWER, E_LOWER, "e"),
        ],
        "point": [(ZERO, NINE, "fraction")],
        "fraction": [(ZERO, NINE, "fraction"), (E_UPPER, E_UPPER, "e"), (E_LOWER, E_LOWER, "e")],
        "e": [(PLUS, PLUS, "sign"), (MINUS, MINUS, "sign"), (ZERO, NINE, "power")],
        "sign": [(ZERO, NINE, "power")],
        "power": [(ZERO, NINE, "power")],
    }

    def edges(self, state: Any) -> list[ReaderEdge]:
        """What may follow; behind nothing, the state is None."""
        return self._EDGES[state or ""]

    def is_final(self, state: Any) -> bool:
        """Whether the number may end."""
        return state in ("zero", "whole", "fraction", "power")


class _Decimal(NamedTuple):
    """States of both readers; None where a reader has given up."""

    plain: Any
    mantissa: Any


class _SideReader:
    """Reads the numbers of one sign; a state is a `_Decimal` up to the exponent, and then the exponent's."""

    def __init__(self, numbers: Magnitudes, canonical: bool) -> None:
        self._plain = PlainReader(numbers, canonical)
        self._mantissa = None if canonical else MantissaReader(numbers)

    def edges(self, state: Any) -> list[ReaderEdge]:
        """What may follow; behind nothing, the state is None."""
        if state is None:
            return _digit_edges(self._first)
        if not isinstance(state, _Decimal):
            edges = _digit_edges(lambda digit: ExponentReader.step(state, ZERO + digit))
            if state[0] == MARK:
                signs = ((sign, sign, ExponentReader.step(state, sign)) for sign in (PLUS, MINUS))
                edges = [*(edge for edge in signs if edge[2]), *edges]
            return edges
        edges = _digit_edges(lambda digit: self._step(state, digit))
        point = self._point(state)
        if point:
            edges.insert(0, (POINT, POINT, point))
        exponents = self._mantissa.exponents(state.mantissa) if self._mantissa and state.mantissa else None
        if exponents:
            mark = (MARK, exponents)
            edges += [(E_UPPER, E_UPPER, mark), (E_LOWER, E_LOWER, mark)]
        return edges

    def is_final(self, state: Any) -> bool:
        """Whether the number may end."""
        if isinstance(state, _Decimal):
            return state.plain is not None and self._plain.is_final(state.plain)
        return ExponentReader.is_final(state)

    def _first(self, digit: int) -> _Decimal | None:
        return _alive(self._plain.first(digit), self._mantissa and self._mantissa.first(digit))

    def _step(self, state: _Decimal, digit: int) -> _Decimal | None:
        plain, mantissa = state
        return _alive(
            plain and self._plain.step(plain, digit),
            mantissa and self._mantissa and self._mantissa.step(mantissa, digit),
        )

    def _point(self, state: _Decimal) -> _Decimal | None:
        plain, mantissa = state
        return _alive(
            plain and self._plain.point(plain), mantissa and self._mantissa and self._mantissa.point(mantissa)
        )


def _alive(plain: Any, mantissa: Any) -> _Decimal | None:
    return _Decimal(plain, mantissa) if plain or mantissa else None


def _digit_edges(step: Callable[[int], Hashable]) -> list[ReaderEdge]:
    """Edges of the ten digits; neighbours that lead to one state are joined."""
    edges: list[ReaderEdge] = []
    last = None
    for digit in range(10):
        target = step(digit)
        if target is None:
            last = None
        elif target == last:
            edges[-1] = (edges[-1][0], ZERO + digit, last)
        else:
            edges.append((ZERO + digit, ZERO + digit, target))
            last = target
    return edges


class _NumberReader:
    """Reads a sign and what follows it; a state is the side, 0 or 1, and the side's state."""

    def __init__(self, positive: Magnitudes, negative: Magnitudes, canonical: bool) -> None:
        self._sides = [
            _EveryReader() if numbers.is_everything and not canonical else _SideReader(numbers, canonical)
            for numbers in (positive, negative)
        ]

    def start(self) -> Hashable:
        """Before the sign."""
        return None

    def edges(self, state: Any) -> list[ReaderEdge]:
        """What may follow."""
        side, inner = state or (0, None)
        edges = [(first, last, (side, target)) for first, last, target in self._sides[side].edges(inner)]
        return edges if state else [(MINUS, MINUS, (1, None)), *edges]

    def is_final(self, state: Any) -> bool:
        """Whether the number may end."""
        return state is not None and state[1] is not None and self._sides[state[0]].is_final(state[1])
