"""How texts are spelled in JSON, against the standard library."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.json_spelling import BETWEEN, spell_any_text, spell_labelled, spell_texts
from genret.decoding.grammar.regular.ranges import scalar
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from tests.regex_texts import random_member
from tests.shape_walker import spelled

SCALARS = st.characters(exclude_categories=["Cs"])
ODD = st.sampled_from('"\\/bfnrtu01f\b\f\n\r\t\x00\x01\x0f\x10\x1f\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff')
TEXTS = st.text(
    ODD | SCALARS | st.sampled_from("\U00010000\U0003ffff\U000fffff\U00100000\U0010ffff"), max_size=6
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF)), max_size=4), TEXTS)
def test_ranges_of_code_points(pairs: list[tuple[int, int]], text: str) -> None:
    ranges = scalar([(min(pair), max(pair)) for pair in pairs])
    chars = Dfa.from_rows([[(*each, 1) for each in ranges], []], [-1, 0])
    repeated = Dfa.from_rows([[(*each, 0) for each in ranges]], [0])
    assert spell_texts(repeated).accepts(spelled(text)) == repeated.accepts(text)
    single = spell_texts(chars)
    assert single.count() == chars.count()
    edges = {code for pair in pairs for end in pair for code in (end - 1, end, end + 1)}
    for code in edges:
        if 0 <= code < 0xD800 or 0xE000 <= code < 0x110000:
            assert single.accepts(spelled(chr(code))) == chars.accepts(chr(code))


@pytest.mark.parametrize(
    "text",
    [
        b'"\xc0\xaf"', b'"\xe0\x80\xaf"', b'"\xf0\x80\x80\xaf"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"',
        b'"\xff"', b'"\x80"', b'"\x01"', b'"\n"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"',
        b'"\\ud800x"', b'"\\ud800\\ud800"', b'"\\x41"', b'"\\u12g4"', b'"a', b'a"', b'"a""',
    ],
)  # fmt: skip
def test_what_is_no_text_is_refused(text: bytes) -> None:
    assert not spell_any_text().accepts(text)
    assert not spell_texts(Dfa.everything()).accepts(text)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(0, 2**32))
def test_any_text_has_all_escapes(text: str, seed: int) -> None:
    rng = random.Random(seed)
    out = bytearray(b'"')
    for char in text:
        short = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.get(char, char)
        units = char.encode("utf-16-be")
        unicode = "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
        forms = [unicode, unicode.upper().replace("\\U", "\\u")]
        if char in '"\\/\b\f\n\r\t':
            forms.append("\\" + short)
        if char >= " " and char not in '"\\':
            forms.append(char)
        out += rng.choice(forms).encode()
    out += b'"'
    assert json.loads(out) == text
    assert spell_any_text().accepts(bytes(out))
    assert spell_texts(Dfa.everything()).accepts(bytes(out)) == (bytes(out) == spelled(text))


def test_any_text_holds_the_one_spelling_of_every_text() -> None:
    assert (spell_texts(Dfa.everything()) - spell_any_text()).is_empty
    assert spell_any_text() is spell_any_text()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=8))
def test_random_bytes_are_read_as_json_reads_them(inside: bytes) -> None:
    text = b'"' + inside + b'"'
    try:
        value = json.loads(text.decode("utf-8"))
        readable = isinstance(value, str)
    except ValueError:
        readable = False
    assert spell_any_text().accepts(text) == readable


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sets(TEXTS, max_size=4), max_size=5), TEXTS)
def test_labels_are_kept_apart(sets: list[set[str]], other: str) -> None:
    """A text of several sets has the smallest label of them."""
    expected = {text: label for label in reversed(range(len(sets))) for text in sets[label]}
    found = spell_labelled([(Dfa.of_texts(texts), label) for label, texts in enumerate(sets)])
    assert found.label_of(spelled(other)) == expected.get(other, -1)
    assert {text: found.label_of(spelled(text)) for text in expected} == expected
    assert found.count() == len(expected)
    literals = ByteDfa.literals((spelled(text), label) for text, label in expected.items())
    without_marks = ByteDfa.from_rows(found.rows, [max(label, -1) for label in found.ends])
    assert without_marks.digest == literals.digest


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_spellings_are_minimal(seed: int) -> None:
    rng = random.Random(seed)
    atoms = ("n", "u", "0", "1", '"', r"\\", r"\n", r"\x01", r"\x1f", "é", "[^a]", r'["\\bfnrtu]', r"[\n\t]")
    pieces = [rng.choice(atoms) + rng.choice(("", "", "*", "+", "?")) for _ in range(rng.randint(1, 5))]
    dfa = compile_pattern("^(?:" + rng.choice(("", "|")).join(pieces) + ")$")
    found = spell_texts(dfa)
    assert ByteDfa.from_rows(found.rows, found.ends).digest == found.digest
    for _ in range(20):
        text = random_member(dfa, rng)
        assert found.accepts(spelled(text)) == dfa.accepts(text)


def test_states_between_characters_are_marked() -> None:
    for pattern, num_states in (('^"*$', 4), ("^(?:\n|xn)$", 6)):
        found = spell_texts(compile_pattern(pattern))
        assert found.num_states == num_states
        text = json.dumps(compile_pattern(pattern).shortest()).encode()
        marks = [found.label_of(text[:length]) for length in range(len(text) + 1)]
        assert marks == [BETWEEN, BETWEEN, *([] if len(text) == 2 else [-1, BETWEEN]), 0]
    assert spell_texts(Dfa.nothing()).is_empty
    assert spell_labelled([]).is_empty
    assert spell_labelled([(Dfa.nothing(), 3)]).is_empty
