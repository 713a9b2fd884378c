"""Builds the automata of JSON Schema's formats: addresses, hosts, mail, URIs, pointers, times, patterns."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.minimise import Edge
from genret.decoding.grammar.regular.ranges import Ranges, complement, intersection, union
from genret.decoding.grammar.regular.regex_compiler import compile_pattern

_State = TypeVar("_State", bound=Hashable)

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


MARK = "\uffff"
"""Placeholder in patterns of `whole_with`; only the formats of mail and of pointers allow the character."""


def whole(pattern: str) -> Dfa:
    """The texts that a regular expression matches as a whole."""
    return compile_pattern(f"^(?:{pattern})$")


def behind(left: Dfa, joint: Ranges, right: Dfa) -> Dfa:
    """Texts of one set, one character of `joint`, and a text of another set.

    In the left set, no text may be followed by such a character within a longer text.
    """
    offset = len(left.rows)
    rows: list[list[Edge]] = []
    for row, final in zip(left.rows, left.finals, strict=True):
        through = [(first, last, offset) for first, last in joint] if final else []
        rows.append(sorted([*row, *through]))
    rows += [[(first, last, target + offset) for first, last, target in row] for row in right.rows]
    return Dfa.from_rows(rows, [*([False] * offset), *right.finals])


def whole_with(pattern: str, inserted: Dfa) -> Dfa:
    """Like `whole`, with every `MARK` in the pattern replaced by the texts of a set.

    This is much cheaper than an expression in place of the mark. At a mark, nothing else may begin as the
    set's texts do; behind it, nothing may go on as they do.
    """
    marked = whole(pattern)
    mark = ord(MARK)
    rows = [list(row) for row in marked.rows]
    finals = list(marked.finals)
    for state, row in enumerate(marked.rows):
        targets = [target for first, _, target in row if first == mark]
        for target in targets:
            offset = len(rows)
            shifted = [[(first, last, to + offset) for first, last, to in part] for part in inserted.rows]
            for inner, ends in zip(shifted, inserted.finals, strict=True):
                rows.append(sorted([*inner, *marked.rows[target]]) if ends else inner)
                finals.append(ends and marked.finals[target])
            rows[state] = sorted([*(edge for edge in row if edge[0] != mark), *shifted[0]])
    return Dfa.from_rows(rows, finals)


def _explored(
    start: _State,
    ways_on: Callable[[_State], Iterable[tuple[Ranges, _State]]],
    is_final: Callable[[_State], bool],
) -> Dfa:
    """The automaton of the states that can be reached from one."""
    numbers = {start: 0}
    order = [start]
    rows: list[list[Edge]] = []
    for state in order:  # grows while it is walked
        row = []
        for chars, target in ways_on(state):
            number = numbers.setdefault(target, len(order))
            if number == len(order):
                order.append(target)
            row += [(first, last, number) for first, last in chars]
        rows.append(sorted(row))
    return Dfa.from_rows(rows, list(map(is_final, order)))


def ipv4() -> Dfa:
    """Four decimal numbers up to 255 without leading zeros."""
    return whole(IPV4)


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

_LOWER: Ranges = ((0x30, 0x39), (0x61, 0x7A))
_UPPER: Ranges = ((0x41, 0x5A),)
_HYPHEN, _DOT = 0x2D, 0x2E

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


class _InName(NamedTuple):
    """A position in a name.

    Attributes:
        units: Units taken by earlier labels; a multiple of four once the label is long.
        cost: Characters of the label so far, as they would be in ASCII.
        hyphen: Whether the last character was one.
        prefix: Number of characters of `xn--` that make up the label so far, 0 if it is something else.
        kind: Kind of the label, one of the following.
    """

    units: int
    cost: int
    hyphen: bool
    prefix: int
    kind: int


_OPEN, _ASCII, _INTERNATIONAL = range(3)
"""Kinds of labels: undecided, only ASCII, with letters beyond ASCII."""

COST_OF_LETTER, COST_OF_FIRST = 7, 12
"""Most characters that Punycode needs for one more letter of the basic plane in a label as short as these,
and for the first one, `xn--` and a delimiter included."""


def _names(letters: Ranges = (), dots: Ranges = ((_DOT, _DOT),)) -> Dfa:
    """Host names of labels of letters, digits and hyphens.

    Args:
        letters: Letters beyond ASCII that are allowed in lower-case labels.
        dots: Separators of labels.
    """
    start = _InName(0, 0, False, 0, _OPEN if letters else _ASCII)
    return _explored(
        start,
        lambda state: _ways_on(state, letters, dots, start),
        lambda state: state.cost > 0 and not state.hyphen,
    )


def _ways_on(
    state: _InName, letters: Ranges, dots: Ranges, start: _InName
) -> Iterator[tuple[Ranges, _InName]]:
    """The characters that may follow, with the states behind them."""
    units, cost, hyphen, prefix, kind = state
    if cost and not hyphen:
        after = units + (1 if cost <= SHORT_LABEL else LONG_UNITS)
        if after < UNITS:
            yield dots, start._replace(units=after)
    long_units = -(-units // LONG_UNITS) * LONG_UNITS
    most = LONGEST_LABEL if long_units + LONG_UNITS <= UNITS else SHORT_LABEL
    if cost >= SHORT_LABEL:
        units = long_units
    if cost < most:
        upper = _ASCII if kind == _OPEN else kind
        following = {0: (0x58, 0x78), 1: (0x4E, 0x6E)}.get(cost if cost == prefix else -1, ())
        for code in following:
            kept = upper if code < 0x60 else kind
            if kept != kind or kind != _INTERNATIONAL:
                yield ((code, code),), _InName(units, cost + 1, False, cost + 1, kept)
        lower = _without(_LOWER, following)
        yield lower, _InName(units, cost + 1, False, 0, kind)
        if kind != _INTERNATIONAL:
            capital = _without(_UPPER, following)
            yield capital, _InName(units, cost + 1, False, 0, upper)
        if cost and prefix != 3 and not (hyphen and kind == _INTERNATIONAL):
            doubled = _ASCII if hyphen else kind
            yield ((_HYPHEN, _HYPHEN),), _InName(units, cost + 1, True, 3 if prefix == 2 else 0, doubled)
    if letters and kind != _ASCII:
        more = cost + (COST_OF_LETTER if kind == _INTERNATIONAL else COST_OF_FIRST)
        if more <= most:
            yield (
                letters,
                _InName(long_units if more > SHORT_LABEL else units, more, False, 0, _INTERNATIONAL),
            )


def _without(chars: Ranges, codes: tuple[int, ...]) -> Ranges:
    return intersection(chars, complement(tuple((code, code) for code in codes))) if codes else chars


@lru_cache(maxsize=1)
def hostname() -> Dfa:
    """RFC 1123 names, but no labels that begin with `xn--`, whose Punycode no automaton can check.

    Also left out, to keep fewer lengths in states, are names of more than 15 labels, of more than three
    labels longer than 15 characters, and with such a label behind more than eight others.
    """
    return _names()


@lru_cache(maxsize=1)
def idn_hostname() -> Dfa:
    """Like `hostname`, with labels of letters of `LETTERS` that are short enough in Punycode.

    Left out are other scripts (among them all that are written from right to left), combining marks,
    characters whose validity depends on neighbours, and labels that might be too long in Punycode.
    """
    return _names(LETTERS, ((_DOT, _DOT), (0x3002, 0x3002), (0xFF0E, 0xFF0E), (0xFF61, 0xFF61)))


_ATOM: Ranges = union(
    ((0x21, 0x21), (0x23, 0x27), (0x2A, 0x2B), (0x2D, 0x2D), (0x2F, 0x39), (0x3D, 0x3D), (0x3F, 0x3F)),
    ((0x41, 0x5A), (0x5E, 0x7E)),
)
_IN_QUOTES: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x7E))
_QUOTE, _BACKSLASH = 0x22, 0x5C
_AT: Ranges = ((0x40, 0x40),)
_CHARS_BY_LENGTH: tuple[tuple[int, Ranges], ...] = (
    (2, ((0x80, 0x7FF),)),
    (3, ((0x800, 0xD7FF), (0xE000, 0xFFFF))),
    (4, ((0x10000, 0x10FFFF),)),
)
"""Code points by their length in UTF-8."""

LONGEST_LOCAL_PART = 64
"""In bytes."""


def _local_part(international: bool) -> Dfa:
    """The part in front of the at-sign: words with dots between them, or a text in quotes."""
    beyond = _CHARS_BY_LENGTH if international else ()
    words = [(1, _ATOM), *beyond]
    quoted = [(1, _IN_QUOTES), *beyond]

    def ways_on(state: tuple[str, int]) -> Iterator[tuple[Ranges, tuple[str, int]]]:
        kind, length = state
        ways: list[tuple[Ranges, str, int]] = []
        if kind in ("dot", "word"):
            ways += [(chars, "word", more) for more, chars in words]
        if kind == "word":
            ways.append((((_DOT, _DOT),), "dot", 1))
        if state == ("dot", 0):
            ways.append((((_QUOTE, _QUOTE),), "quoted", 1))
        if kind == "quoted":
            ways += [(chars, "quoted", more) for more, chars in quoted]
            ways.append((((_BACKSLASH, _BACKSLASH),), "escape", 1))
            ways.append((((_QUOTE, _QUOTE),), "closed", 1))
        if kind == "escape":
            ways.append((((0x20, 0x7E),), "quoted", 1))
        for chars, then, more in ways:
            if length + more <= LONGEST_LOCAL_PART:
                yield chars, (then, length + more)

    return _explored(("dot", 0), ways_on, lambda state: state[0] in ("word", "closed"))


def _literal() -> Dfa:
    return whole_with(rf"\[(?:{IPV4}|IPv6:{MARK})\]", ipv6())


def email() -> Dfa:
    """RFC 5321 mailboxes: words or a quoted text, and a name of `hostname` or an address in brackets."""
    return behind(_local_part(international=False), _AT, hostname() | _literal())


def idn_email() -> Dfa:
    """RFC 6531 mailboxes: as `email`, with anything beyond ASCII, and a name of `idn_hostname`."""
    return behind(_local_part(international=True), _AT, idn_hostname() | _literal())


_SCHEME = "[A-Za-z][A-Za-z0-9+.\\-]*"
_ESCAPED = "%[0-9A-Fa-f]{2}"
_UNRESERVED = "A-Za-z0-9\\-._~"
_SUB_DELIMS = "!$&'()*+,;="
_PLANES = "".join(
    rf"\u{{{plane:X}{'1000' if plane == 0xE else '0000'}}}-\u{{{plane:X}FFFD}}" for plane in range(1, 0xF)
)
_BEYOND_ASCII = rf"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF{_PLANES}"
_PRIVATE = r"\uE000-\uF8FF\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _reference(more: str, in_query: str, absolute: bool) -> str:
    """The pattern of RFC 3986's grammar; with characters beyond ASCII, RFC 3987's.

    Args:
        more: Characters beyond ASCII that are allowed everywhere.
        in_query: Further characters of the query.
        absolute: Whether the scheme is required.
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
    whole_one = f"{_SCHEME}:(?:{rooted}|{char}+{segments})?{ending}"
    if absolute:
        return whole_one
    return f"{whole_one}|(?:{rooted}|{no_colon}+{segments})?{ending}"


def uri() -> Dfa:
    """RFC 3986, with a scheme."""
    return whole_with(_reference("", "", absolute=True), ipv6())


def uri_reference() -> Dfa:
    """RFC 3986, with or without a scheme."""
    return whole_with(_reference("", "", absolute=False), ipv6())


def iri() -> Dfa:
    """RFC 3987, with a scheme."""
    return whole_with(_reference(_BEYOND_ASCII, _PRIVATE, absolute=True), ipv6())


def iri_reference() -> Dfa:
    """RFC 3987, with or without a scheme."""
    return whole_with(_reference(_BEYOND_ASCII, _PRIVATE, absolute=False), ipv6())


def uri_template() -> Dfa:
    """RFC 6570, without the operators it reserves; an apostrophe is a literal."""
    char = f"(?:[A-Za-z0-9_]|{_ESCAPED})"
    variable = f"{char}(?:\\.?{char})*(?::[1-9][0-9]{{0,3}}|\\*)?"
    expression = f"\\{{[+#./;?&]?{variable}(?:,{variable})*\\}}"
    literal = f"[!#$&'()*+,\\-./0-9:;=?@A-Z\\[\\]_a-z~{_BEYOND_ASCII}{_PRIVATE}]"
    return whole(f"(?:{literal}|{_ESCAPED}|{expression})*")


_POINTER = "(?:/(?:[^~/]|~[01])*)*"


def json_pointer() -> Dfa:
    """RFC 6901."""
    return whole(_POINTER)


def relative_json_pointer() -> Dfa:
    """Relative JSON pointers without moving an index: `2/foo`, `0#`."""
    return whole(f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})")


def uuid() -> Dfa:
    """RFC 9562 in its usual form, of any version."""
    return whole("[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


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
    """The times, each with and without a fraction of a second."""
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
    """Times of day with an offset; a 60th second at 23:59 UTC, with offsets of quarters of hours."""
    return whole(_TIME) | _with_fractions(
        [*_leaps_before_midnight(QUARTERS), *_leaps_after_midnight(QUARTERS)]
    )


def date_time() -> Dfa:
    """A date, `T` and a time; a 60th second only at past leap seconds, with offsets that are in use."""
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
    """The precision of a format's automaton.

    Attributes:
        EXACT: The automaton accepts exactly the texts of the format.
        SUBSET: The automaton accepts texts of the format only, but not all of them; its complement must not
            be taken for the texts outside the format.
    """

    EXACT = "enforced"
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
    "ipv4": (ipv4, Enforcement.EXACT),
    "ipv6": (ipv6, Enforcement.EXACT),
    "uri": (uri, Enforcement.EXACT),
    "uri-reference": (uri_reference, Enforcement.EXACT),
    "iri": (iri, Enforcement.EXACT),
    "iri-reference": (iri_reference, Enforcement.EXACT),
    "uuid": (uuid, Enforcement.EXACT),
    "uri-template": (uri_template, Enforcement.EXACT),
    "json-pointer": (json_pointer, Enforcement.EXACT),
    "relative-json-pointer": (relative_json_pointer, Enforcement.SUBSET),
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
