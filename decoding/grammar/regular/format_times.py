"""Formats of dates and times, RFC 3339: date, time, date-time, duration."""

from __future__ import annotations

from functools import lru_cache

from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.format_addresses import whole

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

_MINUTES_A_DAY = 24 * 60
_OFFSETS = range(0, _MINUTES_A_DAY, 15)
"""Offsets, in minutes, with which leap seconds are allowed: all that are in use are among them."""


def _clock(minutes: int) -> str:
    hours, rest = divmod(minutes % _MINUTES_A_DAY, 60)
    return f"{hours:02}:{rest:02}"


def _leaps_before_midnight() -> str:
    """Leap seconds in local times that are not ahead of UTC."""
    options = [f"{_clock(-1 - offset)}:60{_FRACTION}-{_clock(offset)}" for offset in _OFFSETS if offset]
    options.append(f"23:59:60{_FRACTION}(?:[Zz]|[+\\-]00:00)")
    return "(?:" + "|".join(options) + ")"


def _leaps_after_midnight() -> str:
    """Leap seconds in local times ahead of UTC, where the next day has begun."""
    options = [f"{_clock(offset - 1)}:60{_FRACTION}\\+{_clock(offset)}" for offset in _OFFSETS if offset]
    return "(?:" + "|".join(options) + ")"


def _days_of_leaps() -> tuple[str, str]:
    """The days that ended with a leap second, and the days after."""
    june, december = ("|".join(map(str, years)) for years in (LEAPS_IN_JUNE, LEAPS_IN_DECEMBER))
    january = "|".join(str(year + 1) for year in LEAPS_IN_DECEMBER)
    return f"(?:(?:{june})-06-30|(?:{december})-12-31)", f"(?:(?:{june})-07-01|(?:{january})-01-01)"


@lru_cache(maxsize=1)
def date() -> Dfa:
    """Days of the Gregorian calendar in the years 1 to 9999."""
    return whole(_DATE)


def time() -> Dfa:
    """Times of day with an offset; a 60th second where UTC has 23:59, with offsets of quarters of hours."""
    return whole(f"{_TIME}|{_leaps_before_midnight()}|{_leaps_after_midnight()}")


def date_time() -> Dfa:
    """A date, `T` and a time; a 60th second only where there has been one."""
    day, day_after = _days_of_leaps()
    return whole(
        f"(?:{_DATE})[Tt]{_TIME}|{day}[Tt]{_leaps_before_midnight()}|{day_after}[Tt]{_leaps_after_midnight()}"
    )


def duration() -> Dfa:
    """Years, months and days in a row, hours, minutes and seconds in a row, or weeks, in capitals."""
    minutes = "[0-9]+M(?:[0-9]+S)?"
    time_of_day = f"T(?:[0-9]+H(?:{minutes})?|{minutes}|[0-9]+S)"
    months = "[0-9]+M(?:[0-9]+D)?"
    days = f"(?:[0-9]+Y(?:{months})?|{months}|[0-9]+D)"
    return whole(f"P(?:{days}(?:{time_of_day})?|{time_of_day}|[0-9]+W)")


def uuid() -> Dfa:
    """RFC 9562 in its usual form, of any version."""
    return whole("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
