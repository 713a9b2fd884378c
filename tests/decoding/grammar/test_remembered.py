"""Results that are kept within a number of bytes, against a function that keeps nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.bounded_cache import Remembered

ENTRY = 500
LARGEST = 4000


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000))))
def test_results_are_those_of_the_function_and_bounded(asked: list[tuple[int, int]]) -> None:
    made: list[tuple[int, int]] = []

    def make(name: int, size: int) -> list[int]:
        made.append((name, size))
        return [name, size]

    remembered = Remembered(make, lambda result, name, size: size, max_bytes=4 * LARGEST)
    last: tuple[int, int] | None = None
    for arguments in asked:
        before = len(made)
        assert remembered(*arguments) == list(arguments)
        if arguments == last and arguments[1] + ENTRY <= LARGEST:
            assert len(made) == before  # nothing came in between that could have pushed it out
        if arguments[1] + ENTRY > LARGEST:
            assert len(made) == before + 1
        assert 0 <= remembered.num_bytes <= 4 * LARGEST
        last = arguments


def test_those_not_asked_for_longest_leave_first() -> None:
    made: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    remembered = Remembered(make, lambda result, number: 100, max_bytes=5 * (100 + ENTRY))
    for number in (1, 2, 3, 4, 5, 1, 6, 1, 2):
        assert remembered(number) == number
    assert made == [1, 2, 3, 4, 5, 6, 2]


def test_what_fails_is_tried_again() -> None:
    calls: list[int] = []

    def make(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            raise ValueError("not yet")
        return number

    remembered = Remembered(make, lambda result, number: 1)
    try:
        remembered(7)
    except ValueError:
        assert remembered(7) == remembered(7) == 7
    assert calls == [7, 7]
