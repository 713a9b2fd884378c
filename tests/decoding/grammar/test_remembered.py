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
