"""Formats against tables, counts, Python's own readers and the official suite."""

from __future__ import annotations

import datetime
import ipaddress
import itertools
import random
import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genret.decoding.grammar.regular import formats
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.formats import FORMATS, Enforcement, format_texts
from tests.shared_titles import schema_rows


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
