"""Strings of bounded length: characters are counted as `json.loads` counts them, however they are written."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import AutomatonLimitError
from genret.decoding.grammar.leaves.counted_text import CountableTexts, CountedTextLeaf
from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf
from genret.decoding.grammar.leaves.table_walk import TableWalker
from genret.decoding.grammar.regular.completions import Completions
from genret.decoding.grammar.regular.dfa import ENDLESS, Dfa
from genret.decoding.grammar.regular.json_spelling import spell_any_text, spell_texts, written_with
from genret.decoding.grammar.regular.ranges import Ranges
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import STRING_VOCABULARY, after, check_tokens, label_of, real_vocabulary, steps_of
from tests.regex_texts import random_pattern

BOUNDS = [(0, None), (1, None), (0, 0), (0, 1), (2, 3), (3, 3), (4, None), (0, 300), (1, 65536)]
_SPELLINGS = [b"a", b" ", b"\\n", b'\\"', b"\\/", b"\\u00e9", b"\\ud83d\\ude00", "é".encode()]
_SPELLINGS += ["😀".encode(), b"\x7f"]
spellings = st.lists(st.sampled_from(_SPELLINGS), max_size=6).map(b"".join)


def texts_of(vocabulary: Vocabulary, dfa: Dfa | None = None, is_warm: bool = False) -> CountableTexts:
    """The texts of an automaton, one spelling each; of none: all, with all escapes."""
    walker = TableWalker(vocabulary)
    spelled = spell_any_text() if dfa is None else spell_texts(dfa)
    texts = CountableTexts(written_with(spelled, vocabulary.writable_texts), walker)
    if is_warm:
        walker.warm_up()
        texts.warm_up()
    return texts


ANY_TEXT = texts_of(STRING_VOCABULARY)


def leaf_of(least: int, most: int | None, texts: CountableTexts = ANY_TEXT) -> CountedTextLeaf:
    return CountedTextLeaf(texts, ((least, ENDLESS if most is None else most),))


def accepts(leaf: CountedTextLeaf, text: bytes) -> bool:
    return label_of(leaf, text) == 0


@settings(max_examples=150, deadline=None)
@given(spellings, st.sampled_from(BOUNDS))
def test_characters_are_counted_as_readers_do(text: bytes, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    length = len(json.loads(b'"' + text + b'"'))
    allowed = least <= length and (most is None or length <= most)
    assert accepts(leaf_of(least, most), b'"' + text + b'"') == allowed


def states_of(leaf: CountedTextLeaf, text: bytes) -> list[int]:
    """The states along a text, up to where it is refused."""
    states = [after(leaf, text[:length]) for length in range(len(text) + 1)]
    return [state for state in states if state >= 0]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_tokens_are_those_of_the_oracle_and_every_state_can_be_completed(
    bounds: tuple[int, int | None], is_warm: bool
) -> None:
    leaf = leaf_of(*bounds, texts_of(STRING_VOCABULARY, is_warm=is_warm))
    beyond_ascii = (b'"a\xc3\xa9\\n', b'"\\ud83d\\ude00a', b'"\xf0\x9f\x98\x80ab')
    for text in (*beyond_ascii, b'""', b'"abcde', b'"\\u12'):
        for length, state in enumerate(states_of(leaf, text)):
            check_tokens(STRING_VOCABULARY, leaf, state, (b"", b'"', b"a", b"\\"))
            rest = leaf.shortest(state)
            assert accepts(leaf, text[:length] + rest)
            steps = steps_of(leaf, state)
            assert leaf.edges(state) in (None, steps)
            assert leaf.goes_on(state) == bool(steps)
            # None of the shorter texts would do: every byte leads at most one byte nearer to the end.
            assert all(len(leaf.shortest(after)) >= len(rest) - 1 for after in steps.values())


PATTERNS = [
    "^(?:ab|c{3})*$",
    "^(?:a|é{2}|日)*x?$",
    "^a{2,9}$|^(?:bb)*$",
    '["\\\\\\n]b*$',
    "^(?:a{3})*(?:b{5})*$",
]


@st.composite
def counted_texts(draw: st.DrawFn) -> tuple[Dfa, Ranges]:
    """An automaton, and one or two ranges of lengths."""
    seed = draw(st.integers(0, 2**32))
    pattern = draw(st.sampled_from(PATTERNS) | st.just(random_pattern(random.Random(seed), 2)))
    bounds = sorted(draw(st.lists(st.integers(0, 14), min_size=1, max_size=4, unique=True)))
    bounds += [ENDLESS] * (len(bounds) % 2)
    return compile_pattern(pattern), tuple(zip(bounds[::2], bounds[1::2], strict=True))


@settings(max_examples=30, deadline=None)
@example((Dfa.nothing(), ((0, ENDLESS),)), None)
@given(counted_texts(), st.data())
def test_counting_beside_an_automaton_is_counting_in_it(
    counted: tuple[Dfa, Ranges], data: st.DataObject
) -> None:
    dfa, lengths = counted
    inside = dfa & Dfa.of_lengths(lengths)
    costs = Completions.of_characters(dfa).costs(lengths[-1][0])
    assert any(costs.fewest(least, 0) <= most for least, most in lengths) == (not inside.is_empty)
    if inside.is_empty:
        return
    beside = CountedTextLeaf(texts_of(STRING_VOCABULARY, dfa), lengths)
    oracle = DfaLeaf(spell_texts(inside), TableWalker(STRING_VOCABULARY))
    assert not beside.is_empty
    assert len(json.loads(beside.shortest(0))) == inside.lengths()[0]  # type: ignore[index]
    state = other = 0
    for _ in range(60):  # some sets have texts without end
        assert beside.label(state) == oracle.label(other)
        assert beside.goes_on(state) == oracle.goes_on(other)
        steps, others = steps_of(beside, state), steps_of(oracle, other)
        assert list(steps) == list(others)
        assert beside.edges(state) in (None, steps)
        check_tokens(STRING_VOCABULARY, beside, state)
        rest = beside.shortest(state)
        assert label_of(oracle, rest, other) == 0
        assert beside.farthest >= len(rest) >= len(oracle.shortest(other))
        if rest:
            assert beside.shortest(after(beside, rest[:1], state)) == rest[1:]
        if not steps:
            break
        byte = data.draw(st.sampled_from(sorted(steps)))
        state, other = steps[byte], others[byte]


def test_a_table_of_costs_is_bounded() -> None:
    ways = "|".join(f"{chr(prime + 80)}(?:x{{{prime}}})*" for prime in (7, 11, 13, 17, 19, 23))
    completions = Completions.of_characters(compile_pattern(f"^(?:{ways})$"))
    assert completions.costs(1000).fewest(1000, 0) == 1002  # a letter and 7 * 11 * 13 more
    with pytest.raises(AutomatonLimitError):
        completions.costs(10**6)
    assert Completions.of_characters(compile_pattern("^(?:ab|c{3})*$")).costs(10**6).fewest(10**6, 0) == 10**6


def test_long_bounds_take_few_masks() -> None:
    any_text = texts_of(STRING_VOCABULARY)
    leaf = leaf_of(30_000, 65_536, any_text)
    state = leaf.step(0, ord('"'))
    found = set()
    for _ in range(65_536):
        state = leaf.step(state, ord("a"))
        found.add(id(leaf.tokens(state, STRING_VOCABULARY.root)))
    assert len(found) <= 2 * any_text.longest_token + 2
    assert leaf.num_bytes < 200_000


def test_a_vocabulary_of_characters_restricts_strings() -> None:
    texts = [*'{}[]":,\\nab', "é", "日"]
    vocabulary = Vocabulary([None, *[text.encode() for text in texts], b'ab"', b"aaa"], 0, 40)
    any_text = texts_of(vocabulary)
    for bounds in ((0, None), (1, 2)):
        leaf = leaf_of(*bounds, any_text)
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
    any_text = texts_of(vocabulary, is_warm=True)
    rng = np.random.default_rng(3)
    for least, most in [(0, 3), (5, None), (2, 20)]:
        leaf = leaf_of(least, most, any_text)
        for text in (b'"a b', b'"aaaaaa', b'"'):
            states = states_of(leaf, text)
            state = states[int(rng.integers(len(states)))]
            check_tokens(vocabulary, leaf, state, (b"", b'"'))


def test_what_is_known_of_places_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.decoding.grammar.leaves.counted_text._PROFILE_BYTES", 1_900)
    any_text = texts_of(STRING_VOCABULARY)
    leaf = leaf_of(1, 2, any_text)
    state = leaf.step(0, ord('"'))
    for prefix in (b"", b"a", b'"', b"ab", b"\\", b"", b"x"):
        check_tokens(STRING_VOCABULARY, leaf, state, [prefix])
        assert any_text._profiles.size <= 1_900 or len(any_text._profiles) == 1
    assert any_text._profiles.evictions
