"""Patterns and formats of texts as automata, against Python's own and other validators."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import json
import random
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import AutomatonLimitError, CompileLimits, compile_budget
from genret.decoding.grammar.regular import formats
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement, format_texts
from genret.decoding.grammar.regular.json_spelling import spell_texts
from genret.decoding.grammar.regular.regex_classes import python_word
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.regex_parser import PatternError, UnsupportedPatternError
from tests.regex_texts import all_texts, mutated, random_member, random_pattern
from tests.shared_titles import schema_rows

TEXTS = all_texts("ab-", 6)


def agrees(found: bool, pattern: str, text: str) -> bool:
    """Whether Python finds the pattern, too; `\\B` in an empty text is read differently."""
    return found == bool(re.search(pattern, text)) or (not text and r"\B" in pattern)


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**64))
def test_random_patterns_against_python(seed: int) -> None:
    pattern = random_pattern(random.Random(seed))
    dfa = compile_pattern(pattern)
    assert [text for text in TEXTS if not agrees(dfa.accepts(text), pattern, text)] == []


SPANS = st.tuples(st.characters(exclude_categories=["Cs"]), st.characters(exclude_categories=["Cs"]))


@settings(max_examples=100, deadline=None)
@given(st.lists(SPANS, min_size=1, max_size=4), st.booleans(), st.integers(0, 2**32))
def test_classes_over_all_of_unicode(spans: list[tuple[str, str]], negated: bool, seed: int) -> None:
    inside = "".join(f"\\u{{{ord(min(span)):x}}}-\\u{{{ord(max(span)):x}}}" for span in spans)
    plain = "".join(f"{re.escape(min(span))}-{re.escape(max(span))}" for span in spans)
    mark = "^" if negated else ""
    dfa = compile_pattern(f"^x[{mark}{inside}]+y$")
    python = re.compile(f"x[{mark}{plain}]+y")
    assert dfa == compile_pattern(f"^x[{mark}{plain}]+y$")
    if dfa.is_empty:
        return
    rng = random.Random(seed)
    for _ in range(30):
        text = random_member(dfa, rng)
        for candidate in (text, *mutated(text, rng)):
            assert dfa.accepts(candidate) == bool(python.fullmatch(candidate))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_portable_patterns_hold_under_both_readings(seed: int, text_seed: int) -> None:
    rng = random.Random(seed)
    atoms = (
        r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"[^\s]", r"[^\w-]", "$", r"(?!\w)", r"(?=.\s)",
        r"\b",
    )  # fmt: skip
    pattern = "".join(
        rng.choice(atoms) + rng.choice(("", "", "{0,2}", "{2}")) for _ in range(rng.randint(1, 5))
    )
    pattern = rng.choice(("", "^", "(?!x)")) + re.sub(r"(\$|\)|\\b)(\{.*?\})", r"\1", pattern)
    ecma, both = compile_pattern(pattern), compile_pattern(pattern, portable=True)
    assert (both - ecma).is_empty
    rng = random.Random(text_seed)
    chars = "a5_-é٣ \x1c\x85\xa0\ufeff\n\r\u2028ǅ\x00"
    for _ in range(60):
        text = "".join(rng.choices(chars, k=rng.randint(0, 6)))
        if both.accepts(text):
            assert re.search(pattern, text), (pattern, text)
        if re.search(pattern, text) and ecma.accepts(text) and text.isascii() and text:
            # What ASCII costs are the texts that Python's `$` reads otherwise, and its separators.
            assert both.accepts(text) or set(text) & set("\x1c\n\r") or "(?!" in pattern, (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "members", "others"),
    [
        ("", ["", "x"], []),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        (r"^\d+$", ["0", "12"], ["", "٣", "1\n"]),
        (r"^\w$", ["a", "_", "Z"], ["é", "-"]),
        (r"^\W$", ["é", "-"], ["a"]),
        (r"^\s$", [" ", "\t", "\ufeff", "\u3000"], ["\x1c", "\x85", "a"]),
        (r"^.$", ["a", "\U0001f600", "\x85"], ["\n", "\r", "\u2028", "\u2029", ""]),
        ("(?s)^.$", ["\n"], ["ab"]),
        (r"^[\w-.]+$", ["a-.b"], ["/"]),
        ("^[-a]$", ["a", "-"], ["b"]),
        (r"^[\d-z]$", ["5", "-", "z"], ["a"]),
        ("^]}{$", ["]}{"], []),
        ("^{a}$", ["{a}"], []),
        ("^a{$", ["a{"], ["a"]),
        ("^a{x}$", ["a{x}"], ["a"]),
        (r"^\-\_\/\"\@\#\ \&$", ['-_/"@# &'], []),
        (r"^\x41\u0042\u{43}\u{1F600}\ud83d\ude00\cJ\0\t$", ["ABC\U0001f600\U0001f600\n\0\t"], []),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\p{Lu}\P{L}$", ["A1", "É-"], ["a1", "AA"]),
        (r"^\p{Letter}\p{gc=Nd}\p{General_Category=Decimal_Number}$", ["a1٣"], ["11"]),
        (r"^[\p{Ll}\p{Nd}]$", ["é", "٣"], ["É"]),
        (r"^[^\P{L}a]$", ["b"], ["a", "1"]),
        (r"^\p{ASCII}\p{Any}$", ["aé"], ["éa"]),
        (r"^\p{White_Space}\p{Uppercase}\p{Lowercase}$", [" Aª"], ["aAA"]),
        (r"(?i)^straße[a-c]$", ["STRAßEB", "ſtraßec"], ["STRASSEB"]),
        ("(?i)^[^k]$", ["i", "\u0131"], ["K", "k", "\u212a"]),
        ("^(?i:A)b$", ["ab", "Ab"], ["aB"]),
        (r"\Aab\Z", ["ab"], ["xab", "ab\n"]),
        (r"^ab\z", ["ab"], ["ab\n"]),
        ("^(?P<x>a)(?<y>b)(?#c)$", ["ab"], ["abc"]),
        (r"\bfoo\b", ["foo", "a foo.", "éfoo"], ["food", "_foo"]),
        (r"^(?=.*\d)(?=.*[a-z]).{3,5}$", ["a1x", "1xxxa"], ["aaa", "a1", "a1aaaa"]),
        ("^(?!.*--)[a-z-]+$", ["a-b"], ["a--b", "--"]),
        ("^(?=.*a)(?:(?=.*b)|)c", ["ca", "cab"], ["cb", "c"]),
        ("^((?!foo).)*$", ["fo", "", "xfoxoo"], ["foo", "xfoox"]),
        ("(?<=^|,)x", ["x", "a,x"], ["ax"]),
        ("^(?!^b)(?!.*$.)a", ["a", "ax"], ["ba"]),
        (r"^[\ud800-\udfff]?a$", ["a"], ["\ufffda"]),
    ],
)
def test_meanings(pattern: str, members: list[str], others: list[str]) -> None:
    dfa = compile_pattern(pattern)
    assert [text for text in members if not dfa.accepts(text)] == []
    assert [text for text in others if dfa.accepts(text)] == []


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("a(b", 1), ("a)b", 1), ("[ab", 0), ("[b-a]", 1), ("*a", 0), ("a**", 2), ("a{2}{3}", 4),
        ("{2}", 0), ("^*", 0), ("a{3,2}", 1), ("a\\", 1), (r"\x4", 0), (r"\u12", 0), (r"\u{110000}", 0),
        (r"\u{}", 0), (r"\c1", 0), (r"\p", 0), (r"\pL", 0), ("(?<1>a)", 0), ("(?#a", 0),
    ],
)  # fmt: skip
def test_errors_say_where(pattern: str, position: int) -> None:
    with pytest.raises(PatternError, match=f"at position {position} of ") as raised:
        compile_pattern(pattern)
    assert not isinstance(raised.value, UnsupportedPatternError)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "back-reference"), (r"(?<x>a)\k<x>", "back-reference"),
        ("(?P<x>a)(?P=x)", "back-reference"), ("(?>a)", "kind of group"), ("(?(1)a)", "kind of group"),
        ("a++", "possessive"), ("a(?i)b", "middle"), ("(?m)^a", "flags 'm'"), ("a{,3}", "lower"),
        ("a{,}", "lower"), ("a{1,9999999999}", "nine digits"), (r"\01", "octal"), (r"\a", r"escape \\a"),
        ("[]a]", "closing bracket"), ("[^]a]", "closing bracket"), (r"\p{Script=Latin}", "Script=Latin"),
        (r"\p{Han}", "Han"), (r"(?<=a\b)b", "looks behind"), ("(?<=(?=a))b", "looks behind"),
        ("(?=(?<=a)b)", "inside of what looks ahead"), ("(" * 101 + ")" * 101, "nested deeper"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(pattern: str, reason: str) -> None:
    with pytest.raises(UnsupportedPatternError, match=reason):
        compile_pattern(pattern)


def test_letters_of_several_cases_hold_under_both_readings() -> None:
    odd = "Ii\u0130\u0131kK\u212asS\u017f\u03c2\u03c3\u03a3\ufb05\ufb06\u0390\u1fd3\xdf\u1e9e\xb5\u03bc"
    for char in odd:
        for pattern in (f"(?i)^{char}$", f"(?i)^[^{char}]$", f"(?i)^(?!{char}).$"):
            both = compile_pattern(pattern, portable=True)
            assert (both - compile_pattern(pattern)).is_empty
            assert [text for text in odd if both.accepts(text) and not re.search(pattern, text)] == []


def test_large_patterns_stop_in_time() -> None:
    letters = "".join(chr(0x3400 + 2 * place) for place in range(3000))
    assert compile_pattern(f"^[{letters}]$").count() == 3000
    assert compile_pattern("^(a?){200}$") == compile_pattern("^a{0,200}$")
    with compile_budget(CompileLimits(automaton_states=2000)):
        for pattern in (".{1500}", "(a|b)*a(a|b){18}$", r"^\p{L}{0,1900}$", "{" * 9000):
            with pytest.raises(AutomatonLimitError):
                compile_pattern(pattern)
    for pattern in ("((a{1000}){1000}){1000}", "^a{60000}$", "(?:(?:x?){999}y?){999}"):
        with pytest.raises(AutomatonLimitError):
            compile_pattern(pattern)


def patterns_in(value: Any) -> Iterator[str]:
    """Values of `pattern` and keys of `patternProperties`, wherever they stand."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "pattern" and isinstance(inner, str):
                yield inner
            if key == "patternProperties" and isinstance(inner, dict):
                yield from inner
            yield from patterns_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from patterns_in(inner)


def python_pattern(pattern: str) -> re.Pattern[str] | None:
    """The pattern as Python reads it; None if it cannot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(pattern)
        except re.error:
            return None


def read_alike(pattern: str, text: str) -> bool:
    """Whether no character of the text is in classes that Python reads differently."""
    odd = set("\x1c\x1d\x1e\x1f\x85\ufeff\r\u2028\u2029")
    if text.endswith("\n") or odd & set(text):
        return False
    if re.search(r"\\[wWdDbB]", pattern):
        return not any(
            first <= ord(char) <= last for char in text if char > "\x7f" for first, last in python_word()
        )
    return True


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["real_world.dev.jsonl.gz", "json_schema_test_suite.draft2020-12.jsonl.gz"])
def test_all_of_them_compile_and_agree_with_python(name: str) -> None:
    """Portable ones hold under both readings, whatever the text."""
    patterns = sorted({pattern for row in schema_rows(name) for pattern in patterns_in(row)})
    assert len(patterns) > 30
    compared = members = 0
    for pattern in patterns:
        dfa, both = compile_pattern(pattern), compile_pattern(pattern, portable=True)
        spelled = spell_texts(dfa)
        python = python_pattern(pattern)
        rng = random.Random(pattern)
        for _ in range(25):
            text = random_member(dfa, rng)
            for candidate in (text, *mutated(text, rng)):
                found = dfa.accepts(candidate)
                assert spelled.accepts(json.dumps(candidate, ensure_ascii=False).encode()) == found
                if python is not None and both.accepts(candidate):
                    assert python.search(candidate), (pattern, candidate)
                if python is not None and read_alike(pattern, candidate):
                    assert found == bool(python.search(candidate)), (pattern, candidate)
                    compared += 1
                    members += found
    assert compared > 1000
    assert members > compared // 10


def texts_of(name: str) -> Dfa:
    texts = format_texts(name)
    assert texts is not None
    return texts


VALID = {
    "date": ["1963-06-19", "2020-02-29", "0400-02-29", "0001-01-01", "9999-12-31", "1582-10-10"],
    "time": ["08:30:06Z", "08:30:06.283185z", "23:59:60Z", "23:59:60.5+00:00", "01:29:60+01:30",
         "00:14:60+00:15", "00:29:60-23:30", "12:34:56-00:00"],
    "date-time": ["1963-06-19T08:30:06.283185Z", "1963-06-19t08:30:06z", "1990-12-31T15:59:50.123-08:00",
         "1998-12-31T23:59:60Z", "1998-12-31T15:59:60.123-08:00", "1999-01-01T00:59:60+01:00",
         "2015-07-01T08:59:60+09:00"],
    "duration": ["P4DT12H30M5S", "P2W", "PT0S", "P1Y2M3D", "P01D", "PT1M2S"],
    "email": ["joe.bloggs@example.com", "te~st@example.com", "a@b", '"joe bloggs"@example.com',
         r'"joe\"bloggs"@example.com', "joe@[127.0.0.1]", "joe@[IPv6:::1]", "x" * 64 + "@example.com"],
    "idn-email": ["실례@실례.테스트", "joe@example.com", "δοκιμή@example.com", '"δ"@example.com',
         "é" * 32 + "@a"],
    "hostname": ["www.example.com", "1host", "a--b.com", "a" * 63 + ".com", "x.n", "xn", "xn-a.de",
         "example"],
    "idn-hostname": ["실례.테스트", "bücher.example", "straße。de", "日本語．jp", "例え｡テスト",
         "Example.com", "a--b"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "10.20.30.40"],
    "ipv6": ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "1:2:3:4:5:6:7::",
         "::2:3:4:5:6:7:8"],
    "uri": ["http://foo.bar/?baz=qux#quux", "urn:oasis:names", "mailto:a@b", "ldap://[2001:db8::7]/c=GB?one",
         "http://[v1.fe]:80/", "file:///etc/hosts", "a:"],
    "uri-reference": ["", "/abc", "//host/a", "abc", "#f", "?q", "./this:that", "http://a"],
    "iri": ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "http://ƒøø.ßår/?q=\U000f0000", "http://a/\U00010300"],
    "iri-reference": ["/âππ", "âππ", "#ƒrägmênt"],
    "uuid": ["2EB8AA08-AA98-11EA-B4AA-73B441D16380", "00000000-0000-0000-0000-000000000000"],
    "uri-template": ["", "http://example.com/{term:1}/{term}", "{+a,b*}", "{a.b}", "{%41}", "a'b", "a%41b"],
    "json-pointer": ["", "/", "/foo//bar", "/a~1b", "/~0~1", "/ \n"],
    "relative-json-pointer": ["0", "10/foo", "0#", "2/0/baz"],
    "regex": ["", "^a$", "([abc])+\\s+$", "^[a-zA-Z0-9_]{3,16}$", "a|b|(c|d)*?", "[^a-z]{2,}",
         "\\d{10,20}\\.", "(?:a(b))"],
}  # fmt: skip

INVALID = {
    "date": ["", "2021-02-29", "2100-02-29", "0000-01-01", "1998-13-01", "1998-1-20", "2020-04-31",
         "2020-01-01\n", "2022-02-31"],
    "time": ["24:00:00Z", "12:00:00", "22:59:60Z", "23:59:60+01:00", "23:58:60Z", "00:00:61Z",
         "01:02:03+24:00"],
    "date-time": ["1998-12-31T23:59:61Z", "1998-12-31T22:59:60Z", "2024-12-31T23:59:60Z",
         "1998-12-31T00:59:60+01:00", "1999-01-01T23:59:60Z", "1990-02-31T15:59:59Z",
         "1985-04-12T23:20:50+01", "2022-01-01 12:00:00Z", "2022-01-01 12:00:00", "2022-01-01T12:00:00",
         "2022-01-01T12:00:00.Z"],
    "duration": ["", "P", "PT", "PT1D", "P2D1Y", "P1Y2D", "PT1H2S", "P1Y2W", "PT0.5S", "P1"],
    "email": ["2962", ".a@b", "a.@b", "a..b@c", "a@", "@b", "a@b_c", "a b@c", "a@[127.0.0.300]",
         "x" * 65 + "@a"],
    "idn-email": ["2962", "user\uff20example.com", "é" * 33 + "@a", "a@-b"],
    "hostname": ["", ".", "a.", ".a", "-a", "a-", "a_b", "a" * 64, "xn--abc", "XN--abc.de", "a.xN--b",
         "\u212aelvin.com", ".".join(["a" * 63] * 4), "a..b", "example.com:8080"],
    "idn-hostname": ["", "\u302e실례", "l\xb7l-", "\u05d0", "a\u05d0", "ü--b", "ab--ü", "xn--ü", "Ü", "aÜ",
         "Aü", "。"],
    "ipv4": ["", "127.0.0.0.1", "256.1.1.1", "01.1.1.1", "1.1.1", "1.1.1.1 "],
    "ipv6": ["", ":", ":::", "1", "12345::", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8::", "::1%eth0",
         "::1.2.3"],
    "uri": ["", "abc", "/abc", "//a", "not a valid url", "http://a b", "1http://a", "http://a/%6G",
         "http://a:b/", "http:/[::1]", 'a:"'],
    "uri-reference": ["\\\\a", "/%zz", "1:b", "//a@b@c/", "#a\\b", "/a\xae"],
    "iri": ["/abc", "http://2001:db8::7334", "âππ", "http://a/\n", "http://a/\U000f0000"],
    "iri-reference": ["\\\\a", "#ƒrä\\g"],
    "uuid": ["", "not-a-uuid", "2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4ga-73b441d16380"],
    "uri-template": ["{}", "{a,,b}", "{v:0}", "{v:10000}", "a b", "{a,}", "foo}bar", "{,+var}", "{a..b}"],
    "json-pointer": ["a", "#", "/~2", "/~", "0"],
    "relative-json-pointer": ["", "/foo", "-1", "01", "0##", "1#/a"],
    "regex": ["(", ")", "*", "\\", "[", "a**", "a{2,1}", "{1}", "^*", "(?P<n>a)", "\\a", "[z-a]", "a++", "[]",
         "(?i)a"],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_tables(name: str) -> None:
    texts = texts_of(name)
    for text in VALID[name]:
        assert texts.accepts(text), text
    for text in INVALID[name]:
        assert not texts.accepts(text), text


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_made_once_and_small(name: str) -> None:
    assert format_texts(name) is format_texts(name)
    assert texts_of(name).num_states < 2500


def test_every_day_of_the_calendar() -> None:
    dates = texts_of("date")
    first, last = datetime.date.min, datetime.date.max
    assert dates.count() == (last - first).days + 1 == 3_652_059
    assert all(
        dates.accepts((first + datetime.timedelta(days=days)).isoformat())
        for days in range(0, 3_652_059, 997)
    )


def test_addresses_are_counted() -> None:
    assert texts_of("ipv4").count() == 256**4
    assert texts_of("uuid").count() == 22**32


@given(st.text(alphabet="0123456789abf:.", max_size=20) | st.ip_addresses(v=6).map(str))
def test_ipv6_as_python_reads_it(text: str) -> None:
    assert texts_of("ipv6").accepts(text) == _is_ipv6(text)


@pytest.mark.parametrize("groups", range(10))
def test_every_compression(groups: int) -> None:
    addresses = texts_of("ipv6")
    for before in range(groups + 1):
        head, tail = ":".join(["1"] * before), ":".join(["2"] * (groups - before))
        assert addresses.accepts(f"{head}::{tail}") == (groups <= 7)
        if before < groups and tail.count(":") >= 1:
            mixed = f"{head}::{tail.rpartition(':')[0].rpartition(':')[0] or '9'}:1.2.3.4"
            assert addresses.accepts(mixed) == _is_ipv6(mixed)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def test_leap_seconds_are_where_utc_has_one() -> None:
    moments = texts_of("date-time")
    times = texts_of("time")
    leaps = {datetime.datetime(year, 6, 30, 23, 59) for year in formats.LEAPS_IN_JUNE}
    leaps |= {datetime.datetime(year, 12, 31, 23, 59) for year in formats.LEAPS_IN_DECEMBER}
    assert len(leaps) == 27
    rng = random.Random(0)
    for _ in range(3000):
        local = rng.choice(sorted(leaps)) + datetime.timedelta(minutes=rng.choice([-1440, 0, 0, 0, 15, 1440]))
        offset = rng.choice([-1, 1]) * rng.randrange(0, 24 * 60, 15)
        local += datetime.timedelta(minutes=offset)
        sign = "-" if offset < 0 else "+"
        text = f"{local:%Y-%m-%dT%H:%M}:60{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
        utc = local - datetime.timedelta(minutes=offset)
        in_use = offset in formats.AHEAD or -offset in formats.BEHIND
        assert moments.accepts(text) == (utc in leaps and in_use), text
        assert times.accepts(text.partition("T")[2]) == (f"{utc:%H:%M}" == "23:59"), text


@given(st.datetimes(timezones=st.timezones()), st.sampled_from(["auto", "seconds", "microseconds"]))
def test_moments_python_prints(moment: datetime.datetime, precision: str) -> None:
    text = moment.isoformat(timespec=precision)
    if re.fullmatch(r".*[+-]\d\d:\d\d", text):  # old offsets have seconds
        assert texts_of("date-time").accepts(text)
        assert texts_of("time").accepts(text[11:])
    assert not texts_of("date-time").accepts(text.replace("T", " "))


def test_letters_of_international_names_are_harmless() -> None:
    composed = {
        unicodedata.decomposition(chr(code)).split()[1]
        for code in range(0x110000)
        if len(unicodedata.decomposition(chr(code)).split()) == 2
        and not unicodedata.decomposition(chr(code)).startswith("<")
    }
    for first, last in formats.LETTERS:
        for code in range(first, last + 1):
            char = chr(code)
            assert unicodedata.category(char) in ("Ll", "Lo"), hex(code)
            assert unicodedata.bidirectional(char) == "L", hex(code)
            assert unicodedata.normalize("NFKC", char) == char, hex(code)
            # Lower-case sharp s and final sigma are exceptions that the standard names.
            assert char in "ßς" or unicodedata.normalize("NFKC", char.casefold()) == char, hex(code)
            assert f"{code:04X}" not in composed, hex(code)


def test_short_enough_for_punycode() -> None:
    """The costs that the automaton counts bound the characters of the encoded label."""
    rng = random.Random(1)
    letters = [code for first, last in formats.LETTERS for code in (*range(first, last, 97), last)]
    names = texts_of("idn-hostname")
    for _ in range(3000):
        label = "".join(
            chr(rng.choice(letters)) if rng.random() < 0.7 else rng.choice("abz09")
            for _ in range(rng.randint(1, 9))
        )
        if not label.isascii() and names.accepts(label):
            assert len(label.encode("punycode")) + 4 <= formats.LONGEST_LABEL


def test_long_names() -> None:
    names = texts_of("hostname")
    for labels in itertools.product((1, 15, 16, 62, 63, 64), repeat=4):
        name = ".".join("a" * length for length in labels)
        if names.accepts(name):
            assert len(name) <= 253
            assert max(labels) <= 63
    assert names.accepts(".".join(["abc"] * 15))
    assert names.lengths() == (1, 239)


@given(st.data())
def test_regular_expressions_are_some(data: st.DataObject) -> None:
    parts = [
        "a", "b", "(", ")", "(?:", "[", "]", "a-z", "^", "$", "|", "*", "+", "?", "{2}", "{2,3}", "\\d",
        "\\.", ".", "-", "/",
    ]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=10)))
    if texts_of("regex").accepts(text):
        re.compile(text)


@pytest.mark.shared_data
def test_the_official_suite() -> None:
    """No text that the suite calls invalid is admitted; all others are, but for what subsets leave out."""
    seen = set()
    for group in schema_rows("json_schema_test_suite.draft2020-12.jsonl.gz"):
        name = group["file"].startswith("optional/format/") and group["schema"].get("format")
        if name not in FORMATS:
            continue
        seen.add(name)
        in_part = FORMATS[name] is Enforcement.SUBSET and name in LEFT_OUT
        for text, is_valid in ((case["data"], case["valid"]) for case in group["tests"]):
            if isinstance(text, str):
                admitted = texts_of(name).accepts(text)
                assert is_valid or not admitted, (name, text)
                assert admitted or not is_valid or (in_part and LEFT_OUT[name](text)), (name, text)
    assert seen == set(FORMATS)


LEFT_OUT: dict[str, Callable[[str], bool]] = {
    "hostname": lambda text: "xn--" in text,
    "idn-hostname": lambda text: "xn--" in text or not _is_simple(text),
    "idn-email": lambda text: not _is_simple(text.rpartition("@")[2]),
    "regex": lambda text: bool(re.search(r"\(\?<|\[\^?\]|\\[ck]", text)),
}


def _is_simple(name: str) -> bool:
    """Whether all labels are of allowed letters, and not many of them."""
    letters = {ord(char) for char in name} - set(range(128)) - {0x3002, 0xFF0E, 0xFF61}
    allowed = all(any(first <= code <= last for first, last in formats.LETTERS) for code in letters)
    return allowed and all(len(label) < 8 for label in re.split("[.。．｡]", name) if not label.isascii())
