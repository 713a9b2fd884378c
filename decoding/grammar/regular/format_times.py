"""Formats of dates and times, RFC 3339: date, time, date-time, duration."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.format_addresses import behind, whole
from decoding.grammar.regular.minimise import Edge
from decoding.grammar.regular.ranges import Ranges

_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_MULTIPLE_OF_4 = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_MULTIPLE_OF_4}|{_MULTIPLE_OF_4}00)"
_DATE = (
    f"{_YEAR}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    f"|(?:0[13578]|1[02])-31)|{_LEAP_YEAR}-02-29"
)
_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = "(?:\\.[0-9]+)?"
_TIME = f"{_MINUTE}:[0-5][0-9]{_FRACTION}(?:[Zz]|[+\\-]{_MINUTE})"

LEAPS_IN_JUNE = (1972, 1981, 1982, 1983, 1985, 1992, 1993, 1994, 1997, 2012, 2015)
LEAPS_IN_DECEMBER = (*range(1972, 1980), 1987, 1989, 1990, 1995, 1998, 2005, 2008, 2016)
"""Years whose June or December ended with a leap second: all there have been."""

_DIGITS, _POINT = (0x30, 0x39), 0x2E
_T: Ranges = ((0x54, 0x54), (0x74, 0x74))

_MINUTES_A_DAY = 24 * 60
QUARTERS = range(0, _MINUTES_A_DAY, 15)
"""Offsets, in minutes, with which leap seconds are allowed in times without a date."""

AHEAD = (*range(0, 14 * 60 + 1, 30), 5 * 60 + 45, 8 * 60 + 45, 12 * 60 + 45)
BEHIND = range(0, 12 * 60 + 1, 30)
"""Offsets, in minutes, ahead of UTC and behind it with which leap seconds are allowed: all those in use."""


def _clock(minutes: int) -> str:
    hours, rest = divmod(minutes % _MINUTES_A_DAY, 60)
    return f"{hours:02}:{rest:02}"


def _leaps_before_midnight(offsets: Iterable[int]) -> list[str]:
    """Leap seconds in local times that are not ahead of UTC."""
    texts = [f"{_clock(-1 - offset)}:60-{_clock(offset)}" for offset in offsets]
    return [*texts, "23:59:60+00:00", "23:59:60Z", "23:59:60z"]


def _leaps_after_midnight(offsets: Iterable[int]) -> list[str]:
    """Leap seconds in local times ahead of UTC, where the next day has begun."""
    return [f"{_clock(offset - 1)}:60+{_clock(offset)}" for offset in offsets if offset]


def _with_fractions(times: Iterable[str]) -> Dfa:
    """Times with the same time zones, with and without a fraction of a second behind the seconds."""
    times = list(times)
    dfa = Dfa.of_texts(times)
    rows: list[list[Edge]] = [list(row) for row in dfa.rows]
    before_zone = set()
    for text in times:
        state = 0
        for char in text[: len("hh:mm:ss")]:
            state = dfa.step(state, ord(char))
        before_zone.add(state)
    for state in sorted(before_zone):
        point = len(rows)
        rows.append([(*_DIGITS, point + 1)])
        rows.append(sorted([*dfa.rows[state], (*_DIGITS, point + 1)]))
        rows[state] = sorted([*rows[state], (_POINT, _POINT, point)])
    return Dfa.from_rows(rows, [*dfa.finals, *([False] * (len(rows) - len(dfa.rows)))])


def _days(days_of_june: str, days_of_december: str, years_later: int) -> Dfa:
    """Days around the end of a month with a leap second."""
    return Dfa.of_texts(
        [f"{year}-{days_of_june}" for year in LEAPS_IN_JUNE]
        + [f"{year + years_later}-{days_of_december}" for year in LEAPS_IN_DECEMBER]
    )


@lru_cache(maxsize=1)
def date() -> Dfa:
    """Days of the Gregorian calendar in the years 1 to 9999."""
    return whole(_DATE)


def time() -> Dfa:
    """Times of day with an offset; a 60th second where UTC has 23:59, with offsets of quarters of hours."""
    return whole(_TIME) | _with_fractions(
        [*_leaps_before_midnight(QUARTERS), *_leaps_after_midnight(QUARTERS)]
    )


def date_time() -> Dfa:
    """A date, `T` and a time; a 60th second only where there has been one, with offsets that are in use."""
    leaps = behind(_days("06-30", "12-31", 0), _T, _with_fractions(_leaps_before_midnight(BEHIND)))
    leaps_after = behind(_days("07-01", "01-01", 1), _T, _with_fractions(_leaps_after_midnight(AHEAD)))
    return behind(date(), _T, whole(_TIME)) | (leaps | leaps_after)


def duration() -> Dfa:
    """Years, months and days in a row, hours, minutes and seconds in a row, or weeks, in capitals."""
    minutes = "[0-9]+M(?:[0-9]+S)?"
    time_of_day = f"T(?:[0-9]+H(?:{minutes})?|{minutes}|[0-9]+S)"
    months = "[0-9]+M(?:[0-9]+D)?"
    days = f"(?:[0-9]+Y(?:{months})?|{months}|[0-9]+D)"
    return whole(f"P(?:{days}(?:{time_of_day})?|{time_of_day}|[0-9]+W)")
