"""Regular expressions against Python's `re`, where both read alike, and against ECMA-262 where not."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import AutomatonLimitError, CompileLimits, compile_budget
from genret.decoding.grammar.regular.dfa import Dfa
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
    assert raised.value.position == position


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


def test_equal_patterns_are_equal_automata() -> None:
    assert compile_pattern("a*") == Dfa.everything()
    assert compile_pattern("^a*$") == compile_pattern("^(?:a|aa|)*$")
    assert compile_pattern("^[a-z]$") == compile_pattern(r"^(?:[a-m]|[n-z])\b$")
    assert compile_pattern("^(?!b)[ab]$") == compile_pattern("^a$")
    assert compile_pattern("x^a").is_empty


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


def patterns_of(name: str) -> list[str]:
    """All patterns of a file of schemas, once each."""
    return sorted({pattern for row in schema_rows(name) for pattern in patterns_in(row)})


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
    patterns = patterns_of(name)
    assert len(patterns) > 30
    compared = members = 0
    for pattern in patterns:
        dfa = compile_pattern(pattern)
        spelled = spell_texts(dfa)
        python = python_pattern(pattern)
        rng = random.Random(pattern)
        for _ in range(25):
            text = random_member(dfa, rng)
            for candidate in (text, *mutated(text, rng)):
                found = dfa.accepts(candidate)
                assert spelled.accepts(json.dumps(candidate, ensure_ascii=False).encode()) == found
                if python is not None and read_alike(pattern, candidate):
                    assert found == bool(python.search(candidate)), (pattern, candidate)
                    compared += 1
                    members += found
    assert compared > 1000
    assert members > compared // 10


@pytest.mark.shared_data
def test_portable_ones_hold_under_both_readings() -> None:
    for pattern in patterns_of("real_world.dev.jsonl.gz"):
        python = python_pattern(pattern)
        assert python is not None
        dfa = compile_pattern(pattern, portable=True)
        rng = random.Random(pattern)
        for _ in range(20):
            text = random_member(dfa, rng)
            if dfa.accepts(text):
                assert python.search(text), (pattern, text)
