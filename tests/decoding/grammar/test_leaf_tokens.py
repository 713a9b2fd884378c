"""Tokens that leaves let through against an oracle that asks byte by byte; leaves that leave texts out."""

from __future__ import annotations

import json
import random
import sys
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.json_grammar import compile_schema
from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf, LabelledKeys, RestrictedKeys
from genret.decoding.grammar.leaves.distinct_leaf import DistinctLeaf, Texts
from genret.decoding.grammar.leaves.leaf import Leaf, LeafTokens, SparseLeaf, TokenCache
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.leaves.table_walk import TableWalker, sparse_zeros
from genret.decoding.grammar.regular.byte_dfa import ByteDfa, byte_edges
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.json_spelling import spell_any_text, spell_texts
from genret.decoding.grammar.regular.minimise import Row
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.grammar_oracle import INTEGER, STRING, array, brute_force, byte_vocabulary, record, unpacked
from tests.leaf_oracle import (
    BYTES,
    STRING_VOCABULARY,
    after,
    check_tokens,
    comparable,
    in_threads,
    label_of,
    random_leaf_dfa,
    random_vocabulary,
    real_vocabulary,
    shortest_ways,
    steps_of,
)

ALPHABET = b"abcdefghijkl"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_warm", [False, True])
def test_random_leaves_are_what_their_bytes_say(seed: int, is_warm: bool) -> None:
    rng = np.random.default_rng(seed)
    alphabet = ALPHABET[: int(rng.integers(1, 13))]
    vocabulary = random_vocabulary(rng, alphabet, int(rng.choice([3, 40, 200])))
    walker = TableWalker(vocabulary)
    if is_warm:
        walker.warm_up()
    for _ in range(5):
        automaton = random_leaf_dfa(rng, alphabet, 3)
        keys = LabelledKeys(DfaLeaf(automaton, walker))
        leaves = [keys.leaf, RestrictedKeys(keys, 0b001, walker), RestrictedKeys(keys, 0b110, walker)]
        for leaf in leaves:
            for state in shortest_ways(leaf) if leaf.goes_on(0) else ():
                check_tokens(vocabulary, leaf, state, (b"", alphabet[:1], alphabet[-2:]), may_lack=True)
                steps = steps_of(leaf, state)
                assert leaf.edges(state) == (steps if len(steps) <= 8 else None)
                assert leaf.goes_on(state) == bool(steps)
                assert leaf.goes_on(state) or leaf.label(state) >= 0
                shortest = [way for end, way in shortest_ways(leaf, state).items() if leaf.label(end) >= 0]
                assert leaf.shortest(state) == shortest[0]


def test_sparse_leaves_are_tries_of_their_texts() -> None:
    vocabulary = Vocabulary([*BYTES, b"tr", b"true,", b"null]", b"e}"], 0, 260)
    leaf = SparseLeaf("x", {b"true": 3, b"trust": 4, b"null": 0, b"tr": 7})
    shortest_rests = {b"": b"tr", b"t": b"r", b"tr": b"", b"tru": b"e", b"trus": b"t", b"nul": b"l"}
    for text, shortest in shortest_rests.items():
        state = after(leaf, text)
        check_tokens(vocabulary, leaf, state)
        assert leaf.shortest(state) == shortest
    assert leaf.tokens(0, vocabulary.root) is None
    assert leaf.step(0, ord("x")) == -1
    with pytest.raises(ValueError, match="at least one"):
        SparseLeaf("x", {})
    with pytest.raises(ValueError, match="none that is empty"):
        SparseLeaf("x", {b"": 0})


def test_threads_that_ask_at_once_get_the_same() -> None:
    rng = np.random.default_rng(1)
    vocabulary = random_vocabulary(rng, ALPHABET, 2000)
    walker = TableWalker(vocabulary)
    for _ in range(20):
        leaf = DfaLeaf(random_leaf_dfa(rng, ALPHABET, 2), walker)

        def ask(leaf: DfaLeaf = leaf) -> list[LeafTokens | None]:
            return [leaf.tokens(state, vocabulary.root) for state in range(leaf.automaton.num_states)]

        answers = in_threads(ask)
        for one in answers:
            assert all(left is right for left, right in zip(one, answers[0], strict=True))


def test_an_entry_of_the_cache_that_is_in_use_stays() -> None:
    cache = TokenCache(max_bytes=10_000)
    cache.put("small", LeafTokens(tuple(range(20)), None, ()))
    large = LeafTokens((), np.zeros(100_000, dtype=np.uint32), ())
    assert cache.put("large", large) is large
    assert cache.get("small") is None
    assert cache.put("large", LeafTokens((), None, ())) is large
    assert cache.size > 400_000


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gpt2", "mistral_v1_sp32k", "titles_bytebpe8k"])
@pytest.mark.parametrize("is_warm", [False, True])
def test_real_tokenizers(name: str, is_warm: bool) -> None:
    vocabulary = real_vocabulary(name)
    walker = TableWalker(vocabulary)
    if is_warm:
        walker.warm_up()
    months = spell_texts(Dfa.of_texts(["January", "Février", "三月", "may", 'a"b', "tab\t", "\x01"]))
    letters = spell_texts(compile_pattern("^[a-z ]{3,12}$"))
    for automaton in (spell_any_text(), months, letters, NumberSet.of().spelled()):
        leaf = DfaLeaf(automaton, walker)
        for state in range(0, automaton.num_states, max(1, automaton.num_states // 6)):
            check_tokens(vocabulary, leaf, state, (b"", b'"', b"1", b' "'), may_lack=True)


@pytest.mark.parametrize("error", [ImportError("no numba"), RuntimeError("broken")])
def test_without_numba_tokens_are_found_with_numpy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    module = pytest.importorskip("genret.decoding.grammar.leaves.numba_walk")

    def fail(vocabulary: Vocabulary) -> None:
        raise error

    monkeypatch.setattr(module, "CompiledWalk", fail)
    rng = np.random.default_rng(0)
    vocabulary = random_vocabulary(rng, ALPHABET, 300)
    walker = TableWalker(vocabulary)
    walker.warm_up()
    assert walker.num_bytes == 0
    assert ("does not work" in caplog.text) == isinstance(error, RuntimeError)
    leaf = DfaLeaf(random_leaf_dfa(rng, ALPHABET, 1), walker)
    check_tokens(vocabulary, leaf, 0)


# Characters of one to four bytes, several of them with the same first bytes.
CHARACTERS = 'ab-"\\\n\x7f\x80\xbf\xe9\u07ff\u0800\u0fff\u4e00\u4e01\ud7ff\ue000\uffff\U00010000\U0010ffff'
CUT_TEXTS = st.text(alphabet=CHARACTERS, min_size=1, max_size=6).map(str.encode)
CUT = st.tuples(CUT_TEXTS, st.integers(0, 3), st.integers(0, 3)).map(
    lambda cut: cut[0][cut[1] :][: 9 - cut[2]]
)
# Characters, parts of them at both ends, and bytes that are none.
TOKENS = st.one_of(CUT_TEXTS, CUT.filter(bool), st.binary(min_size=1, max_size=3))
# Ranges of characters that a state treats alike.
RANGES = [(0x20, 0x2C), (0x2D, 0x2D), (0x2E, 0x60), (0x61, 0x61), (0x62, 0x7F), (0x80, 0xE8), (0xE9, 0xE9)]
RANGES += [(0xEA, 0x7FF), (0x800, 0xFFF), (0x1000, 0x4DFF), (0x4E00, 0x4E00), (0x4E01, 0xD7FF)]
RANGES += [(0xE000, 0xFFFF), (0x10000, 0x3FFFF), (0x40000, 0x10FFFF)]
NUM_STATES = 4
# One target for most characters, others for some.
TARGETS = st.tuples(
    st.integers(-1, NUM_STATES - 1),
    st.dictionaries(st.integers(0, len(RANGES) - 1), st.integers(-1, NUM_STATES - 1), max_size=4),
)


def automaton_of(targets: list[tuple[int, dict[int, int]]], labels: list[int]) -> ByteDfa:
    """The automaton whose states lead to these over ranges of characters."""
    rows: list[list[tuple[int, int, int]]] = [[] for _ in targets]

    def make_state(row: Row) -> int:
        rows.append(list(row))
        return len(rows) - 1

    for state, (common, others) in enumerate(targets):
        leads = [(*ends, others.get(place, common)) for place, ends in enumerate(RANGES)]
        rows[state] = byte_edges([edge for edge in leads if edge[2] >= 0], make_state)
    return ByteDfa.from_rows(rows, labels + [-1] * (len(rows) - len(labels)))


@settings(max_examples=40, deadline=None)
@given(
    targets=st.lists(TARGETS, min_size=NUM_STATES, max_size=NUM_STATES),
    labels=st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=NUM_STATES, max_size=NUM_STATES),
    tokens=st.lists(TOKENS, min_size=1, max_size=150),
)
def test_all_ways_of_walking_agree(
    targets: list[tuple[int, dict[int, int]]], labels: list[int], tokens: list[bytes]
) -> None:
    module = pytest.importorskip("genret.decoding.grammar.leaves.numba_walk")
    automaton = automaton_of(targets, labels)
    texts = [None, *BYTES, *tokens]  # without all bytes, some could not be written
    vocabulary = Vocabulary(texts, 0, len(texts))
    walker = TableWalker(vocabulary)
    walk = module.CompiledWalk(vocabulary)
    keys = LabelledKeys(DfaLeaf(automaton, walker))
    leaves: list[DfaLeaf | RestrictedKeys] = [
        keys.leaf,
        RestrictedKeys(keys, 0b01, walker),
        RestrictedKeys(keys, 0b10, walker),
    ]
    inner = [place for place, end in enumerate(vocabulary.trie.end_view) if end > place + 1]
    places = [tuple(inner[:: max(len(inner) // 3, 1)]), (0,)]
    for leaf in leaves:
        for state in range(automaton.num_states):
            if leaf is not keys.leaf and not leaf.goes_on(state):
                continue
            for positions in places:
                expected = comparable(walker.walk_nodes(leaf, state, positions), nested=True)
                for _ in range(2):  # the second time with rows written
                    assert comparable(walk(leaf.table, state, positions), nested=True) == expected
    for state in range(automaton.num_states):
        fresh = DfaLeaf(automaton, walker)
        for positions in places:
            expected = comparable(walker.walk_nodes(fresh, state, positions), nested=True)
            assert comparable(walker.walk_by_depth(fresh.table, state, positions), nested=True) == expected
        allowed = [token for token, text in enumerate(texts) if text and after(automaton, text, state) >= 0]
        assert expected[0] == allowed


@pytest.mark.parametrize("shape", [(0, 4), (3,), (7, 5, 2), (4097, 256)])
@pytest.mark.parametrize("dtype", [np.int32, np.uint64, np.uint8])
def test_sparse_memory_is_an_array_of_zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    made = sparse_zeros(shape, dtype)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.flags.c_contiguous
    assert made.flags.writeable
    assert not made.any()
    made[...] = 1
    assert (made == 1).all()


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read in Linux's unit")
def test_a_row_here_and_there_takes_a_page_of_memory_each() -> None:
    rows = sparse_zeros((1 << 18, 256), np.int32)
    touched = range(0, 1 << 18, 2048)
    before = _resident_bytes()
    for row in touched:
        rows[row, :] = 1
    assert _resident_bytes() - before < 64 * PAGESIZE * len(touched)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGESIZE


WORDS = ["", "a", "ab", "abc", "b", "bb", "é", "ef", "e", "x\ny", *"cdfghijklmnop"]


def language(leaf: Leaf, limit: int = 8) -> set[bytes]:
    """All texts of a leaf of up to so many bytes; checks that no state is a dead end."""
    found = set()
    waiting = [(b"", 0)]
    for text, state in waiting:
        if leaf.label(state) >= 0:
            found.add(text)
        steps = steps_of(leaf, state)
        assert leaf.goes_on(state) == bool(steps)
        assert leaf.edges(state) in (None, steps)
        assert label_of(leaf, leaf.shortest(state), state) >= 0
        if len(text) < limit:
            waiting.extend((text + bytes([byte]), behind) for byte, behind in steps.items())
    return found


def words(leaves: Leaves) -> Leaf:
    return leaves.texts(TextSet.of(automaton=Dfa.of_texts(WORDS)))


def small_numbers(leaves: Leaves) -> Leaf:
    return leaves.numbers(NumberSet.of_values([1, 2, 10, 11, 12, 123, 23, 3, 4, 5, 6, 7, 8, 9, -1]), True)


@pytest.mark.parametrize("make", [words, small_numbers])
@pytest.mark.parametrize("seed", range(4))
def test_excluding_is_the_difference_of_sets(make: object, seed: int) -> None:
    leaves = Leaves(STRING_VOCABULARY)
    base = make(leaves)  # type: ignore[operator]
    texts = Texts()
    leaf = leaves.remembering(base, texts)
    everything = language(base)
    assert language(leaf) == everything
    order = np.random.default_rng(seed).permutation(sorted(everything, key=repr)).tolist()
    for number, text in enumerate(order):
        label = label_of(leaf, text)
        assert texts.bytes_of(label) == text
        left = everything - set(order[: number + 1])
        following = leaves.excluding(leaf, frozenset({label}))
        if not left:
            assert following is None
            return
        assert following is not None
        assert language(following) == left
        assert following.shortest(0) == min(left, key=lambda one: (len(one), one))
        for state in (0, following.step(0, min(left)[0])):
            check_tokens(STRING_VOCABULARY, following, state)
        leaf = following
    raise AssertionError("the last one was never left out")


@pytest.mark.parametrize("is_warm", [False, True])
def test_strings_of_any_content_can_be_left_out(is_warm: bool) -> None:
    leaves = Leaves(STRING_VOCABULARY)
    if is_warm:
        leaves.warm_up()
    texts = Texts()
    leaf = leaves.remembering(leaves.texts(TextSet.everything()), texts)
    for written in ('""', '"a"', '"ab"', '"é"', '"abab"'):
        leaf = leaves.excluding(leaf, frozenset({label_of(leaf, written.encode())}))  # type: ignore[assignment]
        assert leaf is not None
        assert label_of(leaf, written.encode()) == -1
    assert leaf.shortest(0) == b'" "'
    assert label_of(leaf, b'"aba"') >= 0
    assert label_of(leaf, b'"\\/"') == -1  # one spelling for a text
    for prefix in (b'"', b'"a', b'"ab', b'"aba', b'"\xc3', b'"x'):
        check_tokens(STRING_VOCABULARY, leaf, after(leaf, prefix), (b"", b'"', b"a"))


def test_equal_texts_of_different_leaves_have_equal_labels() -> None:
    leaves = Leaves(STRING_VOCABULARY)
    texts = Texts()
    first = leaves.remembering(words(leaves), texts)
    second = leaves.remembering(leaves.texts(TextSet.of(automaton=Dfa.of_texts(["zz", "ab", "b"]))), texts)
    assert label_of(first, b'"ab"') == label_of(second, b'"ab"') >= 0
    assert len({label_of(second, b'"zz"'), label_of(second, b'"b"'), label_of(second, b'"ab"')}) == 3
    without = leaves.excluding(second, frozenset({label_of(first, b'"a"'), label_of(first, b'"b"')}))
    assert without is not None
    assert language(without) == {b'"zz"', b'"ab"'}
    assert leaves.remembering(words(leaves), texts) is first
    assert leaves.excluding(second, frozenset({label_of(first, b'"a"'), label_of(first, b'"b"')})) is without


def test_threads_number_texts_alike() -> None:
    texts = Texts()
    answers = in_threads(lambda: [texts.number(texts.place_of(b"%d" % n)) for n in range(500)])
    assert all(answer == answers[0] for answer in answers)
    assert sorted(answers[0]) == list(range(500))
    assert [texts.bytes_of(label) for label in answers[0]] == [b"%d" % n for n in range(500)]


def test_memory_is_told() -> None:
    leaves = Leaves(STRING_VOCABULARY)
    leaf = leaves.remembering(leaves.texts(TextSet.everything()), Texts())
    before = leaf.num_bytes
    assert label_of(leaf, b'"abcdefghij"') >= 0
    assert leaf.num_bytes > before
    assert not leaf.is_shared
    assert type(leaf) is DistinctLeaf


UNIQUE = {"uniqueItems": True}
ITEMS: list[dict[str, Any]] = [
    STRING, {"type": "string", "maxLength": 40}, {"type": "string", "maxLength": 2},
    {"type": "string", "pattern": "^[ab]*$"}, {"type": "string", "pattern": "^(a|b.*)$"},
    INTEGER, {"enum": ["a", "b", "ab", 1, 2]},
    {"anyOf": [INTEGER, {"type": "string", "pattern": "^a"}, {"const": "b"}]},
    {"type": ["string", "number", "null"]},
    {**record(a=INTEGER, b={"enum": ["a", "b"]}), "required": ["a"]},
    {"anyOf": [STRING, array({"enum": [1, "a"]}, maxItems=2)]},
]  # fmt: skip
SCHEMAS = [
    *[array(items, **UNIQUE, maxItems=4) for items in ITEMS],
    array(STRING, **UNIQUE, minItems=3),
    {**array({"enum": ["a", "b"]}, **UNIQUE, minItems=2), "prefixItems": [STRING]},
    {"anyOf": [array(STRING, **UNIQUE), array(ITEMS[7])]},
    {"type": "object", "properties": {"a": array(STRING, **UNIQUE)}},
]
_PIECES = r"""
"," "], "] ", a","a a"," ","a ","a" a" "a "a" ab [[" [" 1,1 1, ,1 12 1," 1,"a "a",1 ," "],"a "a":[" ","b","
","a","a" null "]} b","ab" ","ab "]]
{"a": {"a":1} ,"b":"a"} },{"a" "},{" 1},{ ],[ [1],[
"""
ITEM_PIECES = [*_PIECES.split(), '", "', ', "', "\n", '",\n"']


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("whitespace", ["flexible", "compact", "spaced"])
def test_masks_are_the_tokens_that_can_be_read(schema: dict[str, Any], whitespace: str) -> None:
    """Where every text is told apart, tokens are still found together."""
    rng = random.Random(json.dumps(schema) + whitespace)
    pieces = ["".join(rng.choices('ab"",,,] 1\n', k=rng.randint(2, 7))) for _ in range(120)]
    vocabulary = byte_vocabulary([*ITEM_PIECES, *pieces])
    options = GrammarOptions(whitespace=whitespace)  # type: ignore[arg-type]
    grammar = compile_schema(schema, Leaves(vocabulary), options)
    for _ in range(5):
        state = grammar.start
        for _ in range(24):
            allowed = unpacked(grammar, state)
            assert allowed == brute_force(grammar, state)
            read = sorted(allowed - {vocabulary.end_token_id})
            if not read:
                break
            texts = {token: vocabulary.written(token) for token in read}
            likely = [token for token in read if len(texts[token]) > 1 or texts[token] in b'ab"1,[ ']
            state = grammar.advance(state, rng.choice(likely or read))
