"""Builds the automata of JSON Schema's formats: addresses, hosts, mail, URIs, pointers, times, patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType

from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.minimise import Edge
from genret.decoding.grammar.regular.ranges import Ranges
from genret.decoding.grammar.regular.regex_compiler import compile_pattern

IPV4 = (
    r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
)

_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST_32_BITS = f"(?:{_GROUP}:{_GROUP}|{IPV4})"


def _ipv6() -> str:
    """All forms of RFC 3986: eight groups, or `::` with at most seven groups around it."""
    forms = [f"(?:{_GROUP}:){{6}}{_LAST_32_BITS}"]
    for before in range(8):
        head = f"(?:{_GROUP}:){{0,{before - 1}}}{_GROUP}" if before else ""
        left = f"(?:{head})?" if before else ""
        after = 7 - before
        if after >= 2:
            forms.append(f"{left}::(?:{_GROUP}:){{{after - 2}}}{_LAST_32_BITS}")
        elif after == 1:
            forms.append(f"{left}::{_GROUP}")
        else:
            forms.append(f"{left}::")
    return "(?:" + "|".join(forms) + ")"


MARKS = "\uffff\ufffe"
"""Placeholders in patterns of `whole_with`; only the formats of mail and of pointers allow the characters."""
MARK = MARKS[0]


def whole(pattern: str) -> Dfa:
    """The texts that a regular expression matches as a whole."""
    return compile_pattern(f"^(?:{pattern})$")


def whole_with(pattern: str, *inserted: Dfa) -> Dfa:
    """Like `whole`, with every one of `MARKS` in the pattern replaced by the texts of its set.

    This is much cheaper than an expression in place of the mark. At a mark, nothing else may begin as the
    set's texts do; behind it, nothing may go on as they do. No set may have the empty text.
    """
    return _filled_in(whole(pattern), inserted)


def _filled_in(marked: Dfa, inserted: Sequence[Dfa]) -> Dfa:
    """The texts of an automaton with every mark replaced; see `whole_with`."""
    rows = [list(row) for row in marked.rows]
    ends = list(marked.ends)
    for mark, part in zip(map(ord, MARKS), inserted, strict=False):
        for state in range(marked.num_states):
            for target in [target for first, _, target in rows[state] if first == mark]:
                offset = len(rows)
                shifted = [[(first, last, to + offset) for first, last, to in row] for row in part.rows]
                rows[state] = sorted([*(edge for edge in rows[state] if edge[0] != mark), *shifted[0]])
                for inner, end in zip(shifted, part.ends, strict=True):
                    rows.append(sorted([*inner, *rows[target]]) if end >= 0 else inner)
                    ends.append(ends[target] if end >= 0 else -1)
    return Dfa.from_rows(rows, ends)


def _at_most(most: int, *weights: tuple[int, Ranges]) -> Dfa:
    """All texts of some characters whose weights add up to `most` or less."""
    rows = [
        sorted(
            (first, last, sum_before + weight)
            for weight, chars in weights
            for first, last in chars
            if sum_before + weight <= most
        )
        for sum_before in range(most + 1)
    ]
    return Dfa.from_rows(rows, [0] * (most + 1))


@lru_cache(maxsize=1)
def ipv6() -> Dfa:
    """RFC 4291 without a zone: groups, one `::` at most, possibly an IPv4 address at the end."""
    return whole(_ipv6())


LONGEST_LABEL = 63
"""In characters."""
SHORT_LABEL, LONG_UNITS, UNITS = 15, 4, 15
"""A label of up to 15 characters and its dot count as one unit of 16 characters, a longer one as four.

A name of 15 units has at most 239 characters; 253 are allowed.
"""

_ASCII: Ranges = ((0, 0x7F),)
_DOT: Ranges = ((0x2E, 0x2E),)
LETTERS: Ranges = (
    (0xDF, 0xF6),
    (0xF8, 0xFF),
    (0x3B1, 0x3C9),
    (0x430, 0x44F),
    (0x451, 0x45C),
    (0x3041, 0x3096),
    (0x30A1, 0x30FA),
    (0x4E00, 0x9FA5),
    (0xAC00, 0xD7A3),
)
"""Latin, Greek, Cyrillic, kana, Han and Hangul letters that are allowed everywhere in a label.

All are written from left to right, and none composes with a letter in front of it.
"""


COST_OF_LETTER, COST_OF_FIRST = 7, 12
"""Most characters that Punycode needs for one more letter of the basic plane in a label as short as these,
and for the first one, `xn--` and a delimiter included."""


def _labels(most: int, international: bool) -> Dfa:
    """Labels of up to `most` characters; `international` ones as long as they would be in ASCII."""
    inner = f"(?:[A-Za-z0-9\\-]{{0,{most - 2}}}[A-Za-z0-9])?"
    plain = whole(f"[A-Za-z0-9]{inner}") - compile_pattern("^[Xx][Nn]--")
    if not international:
        return plain
    letters = "".join(rf"\u{first:04X}-\u{last:04X}" for first, last in LETTERS)
    mixed = whole(f"[a-z0-9{letters}](?:-?[a-z0-9{letters}])*") & compile_pattern(f"[{letters}]")
    rest = most - (COST_OF_FIRST - COST_OF_LETTER)
    return plain | (mixed & _at_most(rest, (1, _ASCII), (COST_OF_LETTER, LETTERS)))


def _names(international: bool, dots: Ranges) -> Dfa:
    """Host names of labels of letters, digits and hyphens, with separators between them."""
    short, longer = _labels(SHORT_LABEL, international), _labels(LONGEST_LABEL, international)
    any_label = short | Dfa(longer.rows, [-1 if end < 0 else 1 for end in longer.ends])
    # Behind so many units a longer label, which begins at a multiple of four, has no room.
    num_any = UNITS // LONG_UNITS * LONG_UNITS - LONG_UNITS + 1
    parts = [any_label] * num_any + [short] * (UNITS - num_any)
    starts = list(accumulate((part.num_states for part in parts), initial=0))
    rows: list[list[Edge]] = []
    ends: list[int] = []
    for units, part in enumerate(parts):
        behind = {0: units + 1, 1: (-(-units // LONG_UNITS) + 1) * LONG_UNITS, -1: UNITS}
        for row, label in zip(part.rows, part.ends, strict=True):
            edges = [(first, last, starts[units] + target) for first, last, target in row]
            if behind[label] < UNITS:
                edges += [(first, last, starts[behind[label]]) for first, last in dots]
            rows.append(sorted(edges))
            ends.append(min(label, 0))
    return Dfa.from_rows(rows, ends)


@lru_cache(maxsize=1)
def hostname() -> Dfa:
    """RFC 1123 names, but no labels that begin with `xn--`, whose Punycode no automaton can check.

    Also left out, to keep fewer lengths in states, are names of more than 15 labels, of more than three
    labels longer than 15 characters, and with such a label behind more than eight others.
    """
    return _names(False, _DOT)


@lru_cache(maxsize=1)
def idn_hostname() -> Dfa:
    """Like `hostname`, with labels of letters of `LETTERS` that are short enough in Punycode.

    Left out are other scripts (among them all that are written from right to left), combining marks,
    characters whose validity depends on neighbours, and labels that might be too long in Punycode.
    """
    return _names(True, (*_DOT, (0x3002, 0x3002), (0xFF0E, 0xFF0E), (0xFF61, 0xFF61)))


LONGEST_LOCAL_PART = 64
"""In bytes."""
_BYTES: tuple[tuple[int, Ranges], ...] = (
    (1, _ASCII),
    (2, ((0x80, 0x7FF),)),
    (3, ((0x800, 0xD7FF), (0xE000, 0xFFFF))),
    (4, ((0x10000, 0x10FFFF),)),
)
"""Code points by their length in UTF-8."""


def _local_part(more: str) -> Dfa:
    """The part in front of the at-sign: words with dots between them, or a text in quotes.

    `more` are characters beyond ASCII that are allowed everywhere.
    """
    word = rf"[!#-'*+\-/-9=?A-Z\^-~{more}]+"
    quoted = rf'"(?:[ !#-\[\]-~{more}]|\\[ -~])*"'
    return whole(rf"{word}(?:\.{word})*|{quoted}") & _at_most(LONGEST_LOCAL_PART, *_BYTES)


def _literal() -> Dfa:
    return whole_with(rf"\[(?:{IPV4}|IPv6:{MARK})\]", ipv6())


def email() -> Dfa:
    """RFC 5321 mailboxes: words or a quoted text, and a name of `hostname` or an address in brackets."""
    return whole_with("@".join(MARKS), _local_part(""), hostname() | _literal())


def idn_email() -> Dfa:
    """RFC 6531 mailboxes: as `email`, with anything beyond ASCII, and a name of `idn_hostname`."""
    return whole_with("@".join(MARKS), _local_part(r"\u0080-\u{10FFFF}"), idn_hostname() | _literal())


_SCHEME = "[A-Za-z][A-Za-z0-9+.\\-]*"
_ESCAPED = "%[0-9A-Fa-f]{2}"
_UNRESERVED = "A-Za-z0-9\\-._~"
_SUB_DELIMS = "!$&'()*+,;="
_PLANES = "".join(
    rf"\u{{{plane:X}{'1000' if plane == 0xE else '0000'}}}-\u{{{plane:X}FFFD}}" for plane in range(1, 0xF)
)
_BEYOND_ASCII = rf"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF{_PLANES}"
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _references(more: str = "", in_query: str = "") -> tuple[str, str]:
    """The patterns of RFC 3986's grammar, with a scheme and possibly without.

    RFC 3987's has `more` characters everywhere, and further ones `in_query`.
    """
    plain = f"{_UNRESERVED}{_SUB_DELIMS}{more}"
    char = f"(?:[{plain}:@]|{_ESCAPED})"
    no_colon = f"(?:[{plain}@]|{_ESCAPED})"
    future = f"[Vv][0-9A-Fa-f]+\\.[{_UNRESERVED}{_SUB_DELIMS}:]+"
    host = f"(?:\\[(?:{MARK}|{future})\\]|(?:[{plain}]|{_ESCAPED})*)"
    authority = f"(?:(?:[{plain}:]|{_ESCAPED})*@)?{host}(?::[0-9]*)?"
    segments = f"(?:/{char}*)*"
    rooted = f"//{authority}{segments}|/(?:{char}+{segments})?"
    ending = f"(?:\\?(?:{char}|[/?{in_query}])*)?(?:#(?:{char}|[/?])*)?"
    absolute = f"{_SCHEME}:(?:{rooted}|{char}+{segments})?{ending}"
    return absolute, f"{absolute}|(?:{rooted}|{no_colon}+{segments})?{ending}"


_ABSOLUTE_URI, _URI_REFERENCE = _references()
_ABSOLUTE_IRI, _IRI_REFERENCE = _references(_BEYOND_ASCII, _PRIVATE)


def uri_template() -> Dfa:
    """RFC 6570, without the operators it reserves; an apostrophe is a literal."""
    char = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = f"{char}(?:\\.?{char})*(?::[1-9][0-9]{{0,3}}|\\*)?"
    expression = f"\\{{[+#./;?&]?{variable}(?:,{variable})*\\}}"
    literal = f"[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~{_BEYOND_ASCII}{_PRIVATE}]"
    return whole(f"(?:{literal}|{_ESCAPED}|{expression})*")


_POINTER = "(?:/(?:[^~/]|~[01])*)*"


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
"""Years whose June or December ended with a leap second."""

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
    """The times, each with and without a fraction of a second."""
    without = list(times)
    seconds = len("hh:mm:ss")
    marked = Dfa.of_texts([*without, *(text[:seconds] + MARK + text[seconds:] for text in without)])
    return _filled_in(marked, [whole("\\.[0-9]+")])


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
    """Times of day with an offset; a 60th second at 23:59 UTC, with offsets of quarters of hours."""
    return whole(_TIME) | _with_fractions(
        [*_leaps_before_midnight(QUARTERS), *_leaps_after_midnight(QUARTERS)]
    )


def date_time() -> Dfa:
    """A date, `T` and a time; a 60th second only at past leap seconds, with offsets that are in use."""
    days_and_times = (
        (date(), whole(_TIME)),
        (_days("06-30", "12-31", 0), _with_fractions(_leaps_before_midnight(BEHIND))),
        (_days("07-01", "01-01", 1), _with_fractions(_leaps_after_midnight(AHEAD))),
    )
    usual, leaps, leaps_after = [whole_with("[Tt]".join(MARKS), *parts) for parts in days_and_times]
    return usual | (leaps | leaps_after)


def duration() -> Dfa:
    """Years, months and days in a row, hours, minutes and seconds in a row, or weeks, in capitals."""
    minutes = "[0-9]+M(?:[0-9]+S)?"
    time_of_day = f"T(?:[0-9]+H(?:{minutes})?|{minutes}|[0-9]+S)"
    months = "[0-9]+M(?:[0-9]+D)?"
    days = f"(?:[0-9]+Y(?:{months})?|{months}|[0-9]+D)"
    return whole(f"P(?:{days}(?:{time_of_day})?|{time_of_day}|[0-9]+W)")


DEPTH = 2
"""Deepest nesting of groups."""

_SYNTAX = r"\\^$.*+?()\[\]{}|/"
_ESCAPE = rf"\\[dDwWsS{_SYNTAX}nrtfv]"
_LITERAL = rf"(?:[^{_SYNTAX}\x00-\x1F{MARK}]|/|{_ESCAPE})"
_RANGE = "(?:a-z|A-Z|0-9|a-f|A-F|1-9|0-7)"
# Characters that mean themselves in a class of every dialect, and of which no pair begins a set operation.
_IN_CLASS = rf"(?:{_RANGE}|[A-Za-z0-9_.,:;@#%!/ '\"]|{_ESCAPE}|\\-)"
_CLASS = rf"\[\^?{_IN_CLASS}+-?\]"


def _counts() -> str:
    """`{m}`, `{m,}`, and `{m,n}` if n has more digits, or its first digits show that it is not smaller."""
    options = ["[0-9]{1,3},?", "[0-9],[1-9][0-9]{1,2}", "[1-9][0-9],[1-9][0-9]{2}"]
    options += [f"{digit},[{digit}-9]" for digit in range(10)]
    options += [f"{digit}[0-9],[{digit + 1}-9][0-9]" for digit in range(1, 9)]
    return "(?:" + "|".join(options) + ")"


def regex() -> Dfa:
    """Alternatives, groups up to `DEPTH` deep, classes, counts, escapes and anchors around it all.

    Left out is what dialects read differently or no automaton can check: lookarounds, references, named
    groups, properties, escapes by number, unusual ranges, long counts, and counts whose bounds look much
    alike.
    """
    quantifier = rf"(?:(?:[*+?]|\{{{MARK}\}})\??)?"
    atom = rf"(?:{_LITERAL}|\.|{_CLASS})"
    items = f"(?:{atom}{quantifier})*"
    for _ in range(DEPTH):
        group = rf"\((?:\?:)?{items}(?:\|{items})*\)"
        items = f"(?:(?:{atom}|{group}){quantifier})*"
    return whole_with(rf"(?:\^?{items}\$?)(?:\|\^?{items}\$?)*", whole(_counts()))


class Enforcement(Enum):
    """The precision of a format's automaton."""

    EXACT = "enforced"
    # Not all texts of the format: the complement must not be taken for the texts outside the format.
    SUBSET = "enforced as a subset"


_MAKERS: dict[str, tuple[Callable[[], Dfa], Enforcement]] = {
    "date": (date, Enforcement.EXACT),
    "time": (time, Enforcement.SUBSET),
    "date-time": (date_time, Enforcement.SUBSET),
    "duration": (duration, Enforcement.EXACT),
    "email": (email, Enforcement.SUBSET),
    "idn-email": (idn_email, Enforcement.SUBSET),
    "hostname": (hostname, Enforcement.SUBSET),
    "idn-hostname": (idn_hostname, Enforcement.SUBSET),
    # Four decimal numbers up to 255 without leading zeros.
    "ipv4": (lambda: whole(IPV4), Enforcement.EXACT),
    "ipv6": (ipv6, Enforcement.EXACT),
    # RFC 3986 and RFC 3987, with a scheme; references with or without one.
    "uri": (lambda: whole_with(_ABSOLUTE_URI, ipv6()), Enforcement.EXACT),
    "uri-reference": (lambda: whole_with(_URI_REFERENCE, ipv6()), Enforcement.EXACT),
    "iri": (lambda: whole_with(_ABSOLUTE_IRI, ipv6()), Enforcement.EXACT),
    "iri-reference": (lambda: whole_with(_IRI_REFERENCE, ipv6()), Enforcement.EXACT),
    # RFC 9562 in its usual form, of any version.
    "uuid": (lambda: whole("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"), Enforcement.EXACT),
    "uri-template": (uri_template, Enforcement.EXACT),
    "json-pointer": (lambda: whole(_POINTER), Enforcement.EXACT),  # RFC 6901
    # Without moving an index: `2/foo`, `0#`.
    "relative-json-pointer": (lambda: whole(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})"), Enforcement.SUBSET),
    "regex": (regex, Enforcement.SUBSET),
}

FORMATS: Mapping[str, Enforcement] = MappingProxyType(
    {name: enforcement for name, (_, enforcement) in _MAKERS.items()}
)
"""Precision of each known format's automaton, by the format's name."""


@lru_cache(maxsize=len(_MAKERS))
def format_texts(name: str) -> Dfa | None:
    """The texts of a format, made on first use; None for a name that is not in `FORMATS`."""
    made = _MAKERS.get(name)
    return made[0]() if made else None
