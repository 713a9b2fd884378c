"""Numbers as a model may write them: every one is read back into the same double, and no set is lost."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.grammar.regular.number_set import WRITTEN_INTEGERS, WRITTEN_NUMBERS, NumberSet, written

TEXTS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,17})(\.[0-9]{0,7}[1-9])?\Z")


@given(TEXTS)
def test_what_may_be_written_is_printed_as_it_was_read(text: str) -> None:
    if text != "-0" and WRITTEN_NUMBERS.spelled(canonical=True).accepts(text.encode()):
        assert json.dumps(json.loads(text)) == text
        assert abs(Decimal(text)) <= Decimal(10) ** 15


@pytest.mark.parametrize("text", ["0", "-1", "1000000000000000", "999999999.999999", "0.000001", "-12.5"])
def test_what_is_written_in_practice_may_be_written(text: str) -> None:
    assert WRITTEN_NUMBERS.spelled(canonical=True).accepts(text.encode())


@pytest.mark.parametrize("text", ["1e3", "1.0", "-0", "1000000000000001", "0.0000001", "1000000000.5"])
def test_what_is_not(text: str) -> None:
    assert not WRITTEN_NUMBERS.spelled(canonical=True).accepts(text.encode())


def test_all_numbers_and_all_integers_become_the_shared_sets() -> None:
    assert written(NumberSet.of()) == WRITTEN_NUMBERS
    assert written(NumberSet.of(integers=True)) == WRITTEN_INTEGERS


@pytest.mark.parametrize(
    "numbers",
    [
        NumberSet.of(least=Decimal("1e20"), integers=True),
        NumberSet.of(above=Decimal("0"), below=Decimal("1e-9")),
        NumberSet.of(above=Decimal("0"), below=Decimal("1e-20")),
        NumberSet.of(least=Decimal("1e18"), multiple_of=Decimal("0.5")),
    ],
)
def test_a_set_without_such_numbers_keeps_some(numbers: NumberSet) -> None:
    kept = written(numbers)
    assert not kept.is_empty
    assert (kept - numbers).is_empty
