"""Sets of numbers against arithmetic on decimals: membership, Boolean laws, counts, and their texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import AutomatonLimitError, CompileLimits, compile_budget
from genret.decoding.grammar.regular.number_set import WRITTEN_INTEGERS, WRITTEN_NUMBERS, NumberSet, written
from tests.regex_texts import all_texts

JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
PLAIN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")


def number_set(**keywords: str | bool) -> NumberSet:
    """`NumberSet.of` with numbers written as texts."""
    return NumberSet.of(
        **{name: Decimal(value) if isinstance(value, str) else value for name, value in keywords.items()}  # type: ignore[arg-type]
    )


def is_multiple(number: Decimal, step: Decimal | int) -> bool:
    return Fraction(number) % Fraction(step) == 0


def is_canonical(text: str) -> bool:
    """Whether it is the one text for its number."""
    plain = PLAIN.fullmatch(text)
    return plain is not None and not (plain[2] or "1").endswith("0") and text != "-0"


SHORT_TEXTS = [(text, Decimal(text)) for text in all_texts("-0125.eE+", 6) if JSON_NUMBER.fullmatch(text)]

INTEGERS = NumberSet.of(integers=True)
SMALL = number_set(integers=True, least="0", most="100")
SETS: dict[str, tuple[NumberSet, Callable[[Decimal], bool]]] = {
    "everything": (NumberSet.of(), lambda x: True),
    "integers": (INTEGERS, lambda x: is_multiple(x, 1)),
    "0 to 100": (SMALL, lambda x: is_multiple(x, 1) and 0 <= x <= 100),
    "not negative": (number_set(least="0"), lambda x: x >= 0),
    "positive": (number_set(above="0"), lambda x: x > 0),
    "at most -0.5": (number_set(most="-0.5"), lambda x: x <= Decimal("-0.5")),
    "bounded": (number_set(above="-1.25", most="20.5"), lambda x: Decimal("-1.25") < x <= Decimal("20.5")),
    "cents": (
        number_set(multiple_of="0.01", above="-2"),
        lambda x: is_multiple(x, Decimal("0.01")) and x > -2,
    ),
    "fives": (
        number_set(multiple_of="5", least="-100", most="1005"),
        lambda x: is_multiple(x, 5) and -100 <= x <= 1005,
    ),
    "threes": (number_set(multiple_of="3"), lambda x: is_multiple(x, 3)),
    "eighths": (number_set(multiple_of="0.125"), lambda x: is_multiple(x, Decimal("0.125"))),
    "no integers": (~INTEGERS, lambda x: not is_multiple(x, 1)),
    "values": (
        NumberSet.of_values([1, 2.0, Decimal("0.5"), -2, 0, 1e15]),
        lambda x: x in (1, 2, Decimal("0.5"), -2, 0, Decimal("1e15")),
    ),
    "all but 5": (~NumberSet.of_values([5]), lambda x: x != 5),
}


@pytest.mark.parametrize("name", SETS)
def test_short_texts(name: str) -> None:
    numbers, oracle = SETS[name]
    spelled, canonical = numbers.spelled(), numbers.spelled(canonical=True)
    for text, value in SHORT_TEXTS:
        belongs = oracle(value)
        assert numbers.has(Fraction(value)) == belongs, text
        admitted = spelled.accepts(text.encode())
        assert belongs or not admitted, text
        whole_signs = {"everything": (True, False), "not negative": (False,), "all but 5": (True,)}
        takes_all = text.startswith("-") in whole_signs.get(name, ())
        assert admitted == (belongs and (takes_all or bool(PLAIN.fullmatch(text)))), text
        assert canonical.accepts(text.encode()) == (belongs and is_canonical(text)), text


@pytest.mark.parametrize("name", ["everything", "integers", "0 to 100", "no integers", "cents"])
def test_what_is_no_number_is_refused(name: str) -> None:
    spelled = SETS[name][0].spelled()
    for text in all_texts("-01.eE+", 4):
        assert JSON_NUMBER.fullmatch(text) or not spelled.accepts(text.encode()), text


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_everything_python_prints_is_admitted(number: float) -> None:
    text = json.dumps(number).encode()
    assert NumberSet.of().spelled().accepts(text)
    assert number_set(least="0").spelled().accepts(text) == (number >= 0)
    value = Decimal(text.decode())
    plain = format(value, "f").encode()
    assert INTEGERS.spelled().accepts(plain) == (is_multiple(value, 1))
    low, high = number_set(least="-17.25", most="3e+17"), number_set(above="1e-9", below="1e300")
    assert low.spelled().accepts(plain) == (Decimal("-17.25") <= value <= Decimal("3e17"))
    assert high.spelled().accepts(plain) == (Decimal("1e-9") < value < Decimal("1e300"))


decimals = st.builds(
    lambda digits, exponent: Decimal(digits).scaleb(exponent), st.integers(-3000, 3000), st.integers(-3, 2)
)
steps = st.sampled_from(
    [Decimal(text) for text in ("1", "2", "5", "7", "0.5", "0.01", "0.25", "10", "1.5", "300")]
)


@st.composite
def described_sets(draw: st.DrawFn, depth: int = 2) -> tuple[NumberSet, Callable[[Decimal], bool]]:
    """A set and what it should hold."""
    kind = draw(
        st.sampled_from(
            ["bound", "steps", "values", "integers"] + ["and", "or", "minus", "not"] * (depth > 0)
        )
    )
    if kind == "bound":
        bound, closed = draw(decimals), draw(st.booleans())
        if draw(st.booleans()):
            lower = NumberSet.of(least=bound) if closed else NumberSet.of(above=bound)
            return lower, lambda x: x > bound or (closed and x == bound)
        upper = NumberSet.of(most=bound) if closed else NumberSet.of(below=bound)
        return upper, lambda x: x < bound or (closed and x == bound)
    if kind == "steps":
        step = draw(steps)
        return NumberSet.of(multiple_of=step), lambda x: is_multiple(x, step)
    if kind == "values":
        values = draw(st.lists(decimals, max_size=4))
        return NumberSet.of_values(values), lambda x: x in values
    if kind == "integers":
        return INTEGERS, lambda x: is_multiple(x, 1)
    left, in_left = draw(described_sets(depth - 1))
    if kind == "not":
        return ~left, lambda x: not in_left(x)
    right, in_right = draw(described_sets(depth - 1))
    if kind == "and":
        return left & right, lambda x: in_left(x) and in_right(x)
    if kind == "or":
        return left | right, lambda x: in_left(x) or in_right(x)
    return left - right, lambda x: in_left(x) and not in_right(x)


@st.composite
def number_texts(draw: st.DrawFn) -> str:
    """Numbers as people and programs may write them."""
    sign = draw(st.sampled_from(["", "-"]))
    whole = str(draw(st.integers(0, 12_000) | st.integers(0, 30)))
    fraction = draw(st.sampled_from(["", "", ".0", ".5", ".25", ".01", ".50", ".000", ".125"]))
    exponent = draw(st.sampled_from(["", "", "", "e0", "e1", "E+2", "e-1", "e-02", "e+16", "e-00"]))
    return sign + whole + fraction + exponent


@settings(max_examples=60, deadline=None)
@given(described_sets(), st.lists(number_texts(), min_size=20, max_size=40), st.lists(decimals, max_size=20))
def test_any_combination(
    described: tuple[NumberSet, Callable[[Decimal], bool]], texts: list[str], values: list[Decimal]
) -> None:
    numbers, oracle = described
    spelled, canonical = numbers.spelled(), numbers.spelled(canonical=True)
    assert spelled.is_empty == canonical.is_empty == numbers.is_empty
    assert canonical.count() == numbers.count()
    for text in [*texts, *(format(value, "f") for value in values), *map(str, range(-5, 25))]:
        value = Decimal(text)
        belongs = oracle(value)
        assert numbers.has(Fraction(value)) == belongs
        admitted = spelled.accepts(text.encode())
        assert belongs or not admitted, text
        assert admitted or not belongs or not PLAIN.fullmatch(text), text
        assert canonical.accepts(text.encode()) == (belongs and is_canonical(text)), text


@settings(max_examples=60, deadline=None)
@given(described_sets(), described_sets())
def test_boolean_laws(
    left: tuple[NumberSet, Callable[[Decimal], bool]], right: tuple[NumberSet, Callable[[Decimal], bool]]
) -> None:
    one, other = left[0], right[0]
    for same, as_well in (
        (~~one, one), (~(one & other), ~one | ~other), (one - other, one & ~other),
        ((one & other) | (one - other), one), (one & one, one), (one | other, other | one),
    ):  # fmt: skip
        assert (same - as_well).is_empty
        assert (as_well - same).is_empty
        assert same.spelled(canonical=True).digest == as_well.spelled(canonical=True).digest
    assert (one & ~one).is_empty
    assert (one | ~one).is_everything


@pytest.mark.parametrize(
    ("numbers", "count"),
    [
        (SMALL, 101),
        (number_set(integers=True, above="0", below="2"), 1),
        (number_set(integers=True, above="0", below="1"), 0),
        (number_set(multiple_of="4", above="4", below="8"), 0),
        (number_set(multiple_of="0.01", least="0", most="1"), 101),
        (number_set(multiple_of="2", least="0", most="100") - number_set(multiple_of="3"), 34),
        (number_set(multiple_of="2", least="1", most="3") - number_set(multiple_of="1"), 0),
        (NumberSet.of_values([1, 1.0, Decimal("1.00"), 2]), 2),
        (number_set(least="1", most="1"), 1),
        (number_set(least="1", below="1"), 0),
        (number_set(least="0", most="1"), None),
        (number_set(multiple_of="7"), None),
        (number_set(multiple_of="6") - number_set(multiple_of="3"), 0),
        (number_set(integers=True, least="-9223372036854775808", most="9223372036854775807"), 2**64),
    ],
)
def test_count(numbers: NumberSet, count: int | None) -> None:
    assert numbers.count() == count
    assert numbers.is_empty == (count == 0)
    assert numbers.spelled(canonical=True).count() == count


def test_equal_descriptions_are_equal() -> None:
    assert NumberSet.of().spelled().num_states == 9
    assert number_set(integers=True, least="0") == INTEGERS & number_set(least="0.0")
    assert hash(number_set(most="1e2")) == hash(number_set(most="100"))
    assert number_set(multiple_of="1.0") == INTEGERS
    assert number_set(multiple_of="0.5", integers=True) == INTEGERS
    assert number_set(integers=True).spelled() is number_set(integers=True).spelled()
    assert number_set(above="0") != number_set(least="0")


def test_bounds_of_64_bits_cost_states_by_digits() -> None:
    numbers = number_set(integers=True, least="-9223372036854775808", most="9223372036854775807")
    spelled = numbers.spelled()
    assert spelled.num_states < 200
    for text, belongs in (
        ("9223372036854775807", True), ("9223372036854775808", False), ("-9223372036854775808", True),
        ("-9223372036854775809", False), ("-9223372036854775808.0", True),
        ("9223372036854775807.5", False),
    ):  # fmt: skip
        assert spelled.accepts(text.encode()) == belongs


def test_large_and_small_bounds() -> None:
    largest = number_set(least="-1.7976931348623157e308", most="1.7976931348623157e308").spelled()
    assert largest.accepts(b"17976931348623157" + b"0" * 292)
    assert not largest.accepts(b"17976931348623158" + b"0" * 292)
    tiny = number_set(above="5e-324").spelled()
    assert tiny.accepts(b"0." + b"0" * 322 + b"1")
    assert not tiny.accepts(b"0." + b"0" * 323 + b"5")
    assert not tiny.accepts(b"0")


@pytest.mark.parametrize("number", [Decimal("nan"), Decimal("inf"), float("-inf")])
def test_numbers_that_json_does_not_know_are_errors(number: Decimal | float) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        NumberSet.of_values([number])


@pytest.mark.parametrize("step", ["0", "-2"])
def test_steps_must_be_positive(step: str) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        number_set(multiple_of=step)


def test_numbers_of_too_many_digits_are_refused() -> None:
    with pytest.raises(AutomatonLimitError, match="400 digits"):
        number_set(most="1e1000000000")
    with pytest.raises(AutomatonLimitError, match="400 digits"):
        number_set(least="1e-1000000000")
    assert number_set(least="0e1000000000") == number_set(least="0")


def test_steps_that_need_too_many_states_are_refused() -> None:
    numbers = number_set(multiple_of="1000003")
    with (
        compile_budget(CompileLimits(automaton_states=2000)),
        pytest.raises(AutomatonLimitError, match="2,000 states"),
    ):
        numbers.spelled()
    assert numbers.has(2 * 1000003)
    assert not numbers.has(1000004)


@pytest.mark.parametrize("step", ["1000003", "1000003.5", "99999.999"])
def test_few_multiples_of_a_large_step(step: str) -> None:
    numbers = number_set(multiple_of=step, least="-3000000", below="5000015")
    spelled, canonical = numbers.spelled(), numbers.spelled(canonical=True)
    assert spelled.num_states < 2000
    assert canonical.count() == numbers.count()
    for number in range(-60, 60):
        value = number * Decimal(step)
        belongs = -3000000 <= value < 5000015
        assert numbers.has(Fraction(value)) == belongs
        assert (
            spelled.accepts(str(value).encode())
            == canonical.accepts(format(value.normalize(), "f").encode())
            == belongs
        )
        assert not spelled.accepts(str(value + Decimal("0.25")).encode())


def test_powers_of_ten_are_cheap_steps() -> None:
    spelled = number_set(multiple_of="1000000").spelled()
    assert spelled.num_states < 100
    assert spelled.accepts(b"123000000")
    assert not spelled.accepts(b"123100000")
    assert not spelled.accepts(b"3e+06")


DECIMAL_TEXTS = st.from_regex(r"\A-?(0|[1-9][0-9]{0,17})(\.[0-9]{0,7}[1-9])?\Z")


@given(DECIMAL_TEXTS)
def test_what_may_be_written_is_printed_as_it_was_read(text: str) -> None:
    if text != "-0" and WRITTEN_NUMBERS.spelled(canonical=True).accepts(text.encode()):
        assert json.dumps(json.loads(text)) == text
        assert abs(Decimal(text)) <= Decimal(10) ** 15


def test_numbers_are_written_plainly_and_not_too_long() -> None:
    spelled = WRITTEN_NUMBERS.spelled(canonical=True)
    for text in ["0", "-1", "1000000000000000", "999999999.999999", "0.000001", "-12.5"]:
        assert spelled.accepts(text.encode()), text
    for text in ["1e3", "1.0", "-0", "1000000000000001", "0.0000001", "1000000000.5"]:
        assert not spelled.accepts(text.encode()), text


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
