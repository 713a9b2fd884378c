"""Strings of bounded length: characters are counted as `json.loads` counts them, however they are written."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.leaves.counted_text import AnyText, CountedTextLeaf
from genret.decoding.grammar.leaves.table_walk import TableWalker
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import after, check_tokens, label_of, real_vocabulary, steps_of

PIECES = [
    *[bytes([byte]) for byte in range(256)],
    *[b"ab", b"abc", "é".encode(), "日本".encode(), "a😀b".encode(), b'"', b'",', b'ab",', b'"a', b'""'],
    *[b"\\u", b"\\ud83d", b"\\ude00a", b"\\n", b"\\nab", b"\\", b'\\"', b"00", b"e9x", b'x"}', b"abcdefgh"],
    *[b"\xe6\x97", b"\xa5ab", b"\x9f\x98\x80", b'\x80"'],
]
VOCABULARY = Vocabulary([None, *PIECES], 0, len(PIECES) + 1)
BOUNDS = [(0, None), (1, None), (0, 0), (0, 1), (2, 3), (3, 3), (4, None), (0, 300), (1, 65536)]
_SPELLINGS = [b"a", b" ", b"\\n", b'\\"', b"\\/", b"\\u00e9", b"\\ud83d\\ude00", "é".encode()]
_SPELLINGS += ["😀".encode(), b"\x7f"]
spellings = st.lists(st.sampled_from(_SPELLINGS), max_size=6).map(b"".join)


def any_text_of(vocabulary: Vocabulary, is_warm: bool = False, canonical: bool = False) -> AnyText:
    walker = TableWalker(vocabulary)
    any_text = AnyText(vocabulary, walker, canonical)
    if is_warm:
        walker.warm_up()
        any_text.warm_up()
    return any_text


def leaf_of(least: int, most: int | None, canonical: bool = False) -> CountedTextLeaf:
    return CountedTextLeaf(least, most, any_text_of(VOCABULARY, canonical=canonical))


def accepts(leaf: CountedTextLeaf, text: bytes) -> bool:
    return label_of(leaf, text) == 0


@settings(max_examples=150, deadline=None)
@given(spellings, st.sampled_from(BOUNDS))
def test_characters_are_counted_as_readers_do(text: bytes, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    length = len(json.loads(b'"' + text + b'"'))
    allowed = least <= length and (most is None or length <= most)
    assert accepts(leaf_of(least, most), b'"' + text + b'"') == allowed


def test_texts_may_have_one_spelling_only() -> None:
    leaf = leaf_of(0, 3, canonical=True)
    for value in ('a"b', "\\", "\n\t\x01", "é😀", "/"):
        assert accepts(leaf, json.dumps(value, ensure_ascii=False).encode())
    for text in (b'"\\/"', b'"\\u00e9"', b'"\\u000a"', b'"\\u001F"', b'"abcd"'):
        assert not accepts(leaf, text)


def states_of(leaf: CountedTextLeaf, text: bytes) -> list[int]:
    """The states along a text, up to where it is refused."""
    states = [after(leaf, text[:length]) for length in range(len(text) + 1)]
    return [state for state in states if state >= 0]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_tokens_are_those_of_the_oracle(bounds: tuple[int, int | None], is_warm: bool) -> None:
    leaf = CountedTextLeaf(*bounds, any_text_of(VOCABULARY, is_warm))
    for text in (b'"a\xc3\xa9\\n', b'"\\ud83d\\ude00a', b'"\xf0\x9f\x98\x80ab', b'"""', b'"abcde'):
        for state in states_of(leaf, text):
            check_tokens(VOCABULARY, leaf, state, (b"", b'"', b"a", b"\\"))


@pytest.mark.parametrize("bounds", BOUNDS)
def test_every_state_can_be_completed(bounds: tuple[int, int | None]) -> None:
    leaf = leaf_of(*bounds)
    for text in (b'"a\xc3\xa9\\n', b'"\\ud83d\\ude00a', b'"\xf0\x9f\x98\x80ab', b'"', b'"\\u12'):
        states = states_of(leaf, text)
        for length, state in enumerate(states):
            rest = leaf.shortest(state)
            assert accepts(leaf, text[:length] + rest)
            steps = steps_of(leaf, state)
            assert leaf.edges(state) in (None, steps)
            assert leaf.goes_on(state) == bool(steps)
            # None of the shorter texts would do: every byte leads at most one byte nearer to the end.
            assert all(len(leaf.shortest(after)) >= len(rest) - 1 for after in steps.values())


def test_shortest_strings() -> None:
    assert leaf_of(0, None).shortest(0) == b'""'
    assert leaf_of(3, 5).shortest(0) == b'"   "'
    leaf = leaf_of(2, 2)
    assert leaf.shortest(states_of(leaf, b'"\xe6')[-1]) == b'\x80\x80 "'
    assert leaf.shortest(states_of(leaf, b'"\\')[-1]) == b'" "'


def test_long_bounds_take_few_masks() -> None:
    any_text = any_text_of(VOCABULARY)
    leaf = CountedTextLeaf(30_000, 65_536, any_text)
    state = leaf.step(0, ord('"'))
    found = set()
    for _ in range(65_536):
        state = leaf.step(state, ord("a"))
        found.add(id(leaf.tokens(state, VOCABULARY.root)))
    assert len(found) <= 2 * any_text.longest_token + 2
    assert leaf.num_bytes < 1000


def test_bounds_that_nothing_meets_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 to 2"):
        leaf_of(3, 2)


def test_a_vocabulary_of_characters_restricts_strings() -> None:
    texts = [*'{}[]":,\\nab', "é", "日"]
    vocabulary = Vocabulary([None, *[text.encode() for text in texts], b'ab"', b"aaa"], 0, 40)
    any_text = any_text_of(vocabulary)
    for bounds in ((0, None), (1, 2)):
        leaf = CountedTextLeaf(*bounds, any_text)
        assert accepts(leaf, '"aé"'.encode())
        assert accepts(leaf, b'"\\n"')
        assert not accepts(leaf, b'"c"')
        assert not accepts(leaf, b'"\\t"')
        for text in (b'"a', b'"\\', '"日'.encode()):
            for state in states_of(leaf, text):
                check_tokens(vocabulary, leaf, state)
    assert leaf.shortest(0) == b'","'


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gpt2", "mistral_v1_sp32k", "titles_unigram32k"])
def test_real_tokenizers(name: str) -> None:
    vocabulary = real_vocabulary(name, padded=100)
    any_text = any_text_of(vocabulary, is_warm=True)
    rng = np.random.default_rng(3)
    for least, most in [(0, 3), (5, None), (2, 20)]:
        leaf = CountedTextLeaf(least, most, any_text)
        for text in (b'"a b', b'"aaaaaa', b'"'):
            states = states_of(leaf, text)
            state = states[int(rng.integers(len(states)))]
            check_tokens(vocabulary, leaf, state, (b"", b'"'))


def test_what_is_known_of_places_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.decoding.grammar.leaves.counted_text._MAX_PROFILES", 3)
    any_text = any_text_of(VOCABULARY)
    leaf = CountedTextLeaf(1, 2, any_text)
    state = leaf.step(0, ord('"'))
    for prefix in (b"", b"a", b'"', b"ab", b"\\", b"", b"x"):
        check_tokens(VOCABULARY, leaf, state, [prefix])
        assert len(any_text._profiles) <= 3
