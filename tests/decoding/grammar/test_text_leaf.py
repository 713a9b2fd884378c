"""Sets of texts inside JSON strings: every text can be written and nothing else, in Python and compiled."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genret.decoding.grammar.holes.text_leaf import ShortestTexts, TextLeaf, TextSearcher, widest_places
from genret.decoding.grammar.holes.text_places import START, TextRange, TextSearch, pack, spelled, unpack
from genret.decoding.grammar.leaves.leaf import FEW_TOKENS, LeafTokens, TitleSlotLeaf, TitleSlotName
from genret.decoding.grammar.vocabulary import Vocabulary
from genret.decoding.sorted_texts import SortedTexts, TextBatches
from genret.index_builder.merge import title_order
from tests import leaf_oracle
from tests.leaf_oracle import after, in_threads, tokens_in

# Every byte, pieces of escapes, tokens over the closing quote, and pieces of characters.
PIECES = [
    *[bytes([byte]) for byte in range(256)],
    *[
        b'"a', b'"ab', b'a"', b'b",', b'",', b'","', b'"}', b'a"}', b"ab", b"abc", b'\\"', b'\\"a',
        b"\\\\", b"a\\",
    ],
    *[b"\\u", b"\\u0", b"\\u00", b"\\u000", b"\\u001", b"\\u0001", b"\\u001f", b'\\u001f"', b"\\n", b'\\n",'],
    *["é".encode(), "é".encode()[:1] + b"a", "😀".encode(), "😀".encode()[:3], b'\xa9",', b'""', b'"":'],
]  # fmt: skip
VOCABULARY = Vocabulary([*PIECES, b"ab", None, b""], end_token_id=len(PIECES) + 1, vocab_size=320)
NAME = TitleSlotName("titles")

TEXT = st.text(st.sampled_from('ab"\\/\n\t\x00\x01\x0b\x1f\x7f é😀\u2028\ud7ff\uffff'), max_size=6)
TEXTS = st.lists(TEXT, min_size=1, max_size=25)


SEARCHERS = [TextSearcher(VOCABULARY), TextSearcher(VOCABULARY)]
SEARCHERS[1].warm_up()


def leaf_of(texts: list[str], searcher: TextSearcher, rows: int = 4) -> TextLeaf:
    batches = TextBatches.of([text.encode() for text in texts], rows)
    return TextLeaf(NAME, tuple(texts), SortedTexts(batches, title_order(batches, 1000)), searcher)


def written(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def brute_tokens(leaf: TextLeaf, prefix: bytes, goals: list[bytes]) -> tuple[set[int], dict[int, bytes]]:
    """Tokens that stay within the texts, and what those that go on behind one write there."""
    inside, behind = set(), {}
    for token, piece in enumerate(VOCABULARY.bytes_of(token) for token in range(VOCABULARY.vocab_size)):
        if piece is None:
            continue
        whole = prefix + piece
        if any(goal.startswith(whole) for goal in goals):
            inside.add(token)
        ended = [goal for goal in goals if whole.startswith(goal) and len(whole) > len(goal) > len(prefix)]
        if ended:
            behind[token] = whole[len(ended[0]) :]
    return inside, behind


def tokens_of(found: LeafTokens | None) -> tuple[set[int], dict[int, bytes]]:
    assert found is not None
    inside, exits = leaf_oracle.tokens_of(found)
    assert found.many is None or (len(inside) > FEW_TOKENS and not found.many.flags.writeable)
    assert exits.keys() <= {0}
    return inside, {token: text for text, token in exits.get(0, ())}


def test_the_loops_are_compiled_where_numba_is() -> None:
    pytest.importorskip("numba")
    assert SEARCHERS[1]._compiled is not None


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.data())
def test_bytes_tokens_and_texts_are_those_of_brute_force(texts: list[str], data: st.DataObject) -> None:
    goals = sorted({written(text) for text in texts})
    goal = data.draw(st.sampled_from(goals))
    prefix = goal[: data.draw(st.integers(0, len(goal)))]
    following = {goal[len(prefix)] for goal in goals if goal.startswith(prefix) and len(goal) > len(prefix)}
    rests = [goal[len(prefix) :] for goal in goals if goal.startswith(prefix)]
    inside, behind = brute_tokens(leaf_of(texts, SEARCHERS[0]), prefix, goals)
    states = set()
    for searcher in SEARCHERS:
        leaf = leaf_of(texts, searcher)
        assert isinstance(leaf, TitleSlotLeaf)
        state = after(leaf, prefix)
        states.add(state)
        assert leaf.spelling(state) == prefix
        assert {byte for byte in range(256) if leaf.step(state, byte) >= 0} == following
        edges = leaf.edges(state)
        if edges is not None:
            assert dict(edges) == {byte: leaf.step(state, byte) for byte in following}
            assert list(edges) == sorted(edges)
        assert leaf.goes_on(state) == bool(following)
        assert leaf.label(state) == (0 if prefix in goals else -1)
        if prefix in goals:
            assert leaf.members(state) == tuple(n for n, text in enumerate(texts) if written(text) == prefix)
        assert leaf.shortest(state) == min(rests, key=lambda rest: (len(rest), rest))
        assert tokens_of(leaf.tokens(state, VOCABULARY.root)) == (inside, behind)
        assert pack(unpack(state, len(texts))) == state
    assert len(states) == 1


@settings(max_examples=100, deadline=None)
@given(TEXTS, st.data())
def test_tokens_below_a_node_and_behind_other_texts(texts: list[str], data: st.DataObject) -> None:
    """Tokens that have begun outside, and places of the trie laid over each other."""
    goals = sorted({written(text) for text in texts})
    for searcher in SEARCHERS:
        leaf = leaf_of(texts, searcher)
        node = VOCABULARY.root.children[data.draw(st.sampled_from([0x22, 0x61, 0x2C]), label="byte")]
        first = VOCABULARY.trie.byte[node.positions[0]]
        inside, _ = tokens_of(leaf.tokens(0, node))
        assert inside - {len(PIECES)} == {
            token
            for token, piece in enumerate(PIECES)
            if piece[0] == first and len(piece) > 1 and any(g.startswith(piece[1:]) for g in goals)
        }


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.data())
def test_a_subset_is_a_set_of_its_own(texts: list[str], data: st.DataObject) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    batches = TextBatches.of([text.encode() for text in texts], 4)
    some = SortedTexts(batches, title_order(batches, 1000)).among(np.array(allowed))
    kept = {text for text, is_allowed in zip(texts, allowed, strict=True) if is_allowed}
    for searcher in SEARCHERS:
        leaf = TextLeaf(NAME, "some", some, searcher)
        assert leaf.is_empty == (not kept)
        if leaf.is_empty:
            leaf.warm_up()
            continue
        for text in texts:
            state = after(leaf, written(text))
            assert (state >= 0) == (text in kept)
            if state >= 0:
                expected = tuple(n for n, other in enumerate(texts) if other == text and allowed[n])
                assert leaf.members(state) == expected


def test_texts_have_the_one_spelling_of_json() -> None:
    for number in range(0x250):
        assert b'"' + spelled(chr(number).encode()) + b'"' == written(chr(number))
    leaf = leaf_of(['a"b', "a/b", "é", "\x1f", "\n", "\x7f"], SEARCHERS[1])
    for other in ("a\\u0022b", "a\\/b", "\\u00e9", "\\u001F", "\\u000a", "\\u007f", "\x1f"):
        assert after(leaf, f'"{other}"'.encode()) < 0


@pytest.mark.parametrize("number", [0, 1])
def test_wide_runs_are_found_before_anybody_asks(number: int) -> None:
    letters = ["abcdefgh", "abcdefgh", "abcdefgh", "abcdefghijklmnop"]
    texts = list(map("".join, itertools.product(*letters)))
    leaf = leaf_of(texts, SEARCHERS[number], 1 << 16)
    places = list(widest_places(leaf._texts, SEARCHERS[number], 100))
    widths = [place.end - place.begin for place in places]
    assert widths == sorted(widths, reverse=True)
    assert widths[:2] == [8192, 1024]
    assert len(places) == len(set(places)) == 1 + 8 + 64
    leaf.warm_up()
    begun = leaf.num_bytes
    state = after(leaf, b'"')
    found = leaf.tokens(state, VOCABULARY.root)
    assert found is leaf.tokens(state, VOCABULARY.root)
    assert leaf.num_bytes == begun
    assert tokens_of(found)[0] == brute_tokens(leaf, b'"', [written(text) for text in texts])[0]
    assert leaf.shortest(0) == b'"aaaa"'


@pytest.mark.parametrize("number", [0, 1])
def test_an_order_that_is_none_leads_to_nonsense_and_no_further(number: int) -> None:
    """An index whose digests nobody has looked at may have any order of numbers in range."""
    rng = np.random.default_rng(number)
    for size in (1, 2, 5, 60):
        texts = [bytes(rng.choice(list(b'ab"\\\x01c'), rng.integers(0, 6)).tolist()) for _ in range(size)]
        order = rng.integers(0, size, size).astype(np.int32)
        leaf = TextLeaf(NAME, "any", SortedTexts(TextBatches.of(texts, 4), order), SEARCHERS[number])
        leaf.warm_up()
        states, known = [0], {0}
        for state in states:
            assert leaf.tokens(state, VOCABULARY.root) is not None
            leaf.shortest(state)
            leaf.members(state)
            leaf.edges(state)
            after_bytes = {leaf.step(state, byte) for byte in range(256)} - known - {-1}
            states += sorted(after_bytes)[: 200 - len(states)]
            known |= after_bytes


def test_threads_find_the_same() -> None:
    texts = [f"{a}{b}{c}" for a in "abcdef" for b in "abcdefgh" for c in 'abcdefghijklmnop"\\\n']
    alone, shared = (leaf_of(texts, SEARCHERS[1], 64) for _ in range(2))
    prefixes = [written(text)[:length] for text in texts[::7] for length in range(6)]

    def walk(leaf: TextLeaf) -> list[tuple[set[int], dict[int, bytes]]]:
        states = [after(leaf, prefix) for prefix in prefixes]
        return [tokens_of(leaf.tokens(state, VOCABULARY.root)) for state in states]

    expected = walk(alone)
    assert all(found == expected for found in in_threads(lambda: walk(shared), 4))


def brute(texts: list[bytes], begin: int, end: int, depth: int) -> bytes:
    return min((spelled(text[depth:]) for text in texts[begin:end]), key=lambda text: (len(text), text))


@pytest.mark.parametrize("longest", [(1 << 16) - 1, 3])
def test_runs_of_many_blocks(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genret.decoding.grammar.holes.text_leaf._LONGEST", longest)
    rng = random.Random(0)
    for alphabet in ("ab", 'a"\\', '"\x01', "\x00\x01\n"):
        texts = sorted("".join(rng.choices(alphabet, k=rng.randint(2, 9))).encode() for _ in range(700))
        found = ShortestTexts(SortedTexts.of(texts))
        for _ in range(150):
            begin, end = sorted(rng.sample(range(len(texts) + 1), 2))
            assert found.spelling(begin, end, 0) == brute(texts, begin, end, 0)
            assert found.spelling(begin, end, 2) == brute(texts, begin, end, 2)
        for begin, end in ((0, 700), (64, 128), (63, 129), (70, 100), (0, 64), (640, 700)):
            assert found.spelling(begin, end, 1) == brute(texts, begin, end, 1)


def test_no_run() -> None:
    with pytest.raises(ValueError, match=r"expected a run of texts, got \[0, 0\)"):
        ShortestTexts(SortedTexts.of([b"a"])).spelling(0, 0, 0)


SOME_TEXT = st.text(st.sampled_from('abc"\\\n\x01\x1fé😀'), max_size=8)
PIECE = st.one_of(
    SOME_TEXT.map(lambda text: spelled(text.encode())),
    SOME_TEXT.map(lambda text: spelled(text.encode()) + b'",'),
    st.binary(max_size=4),
    st.none(),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SOME_TEXT, min_size=1, max_size=20), st.lists(PIECE, max_size=60), st.data())
def test_walks_agree_on_any_trie(texts: list[str], pieces: list[bytes | None], data: st.DataObject) -> None:
    pytest.importorskip("numba")
    from genret.decoding.grammar.holes.compiled_search import CompiledSearch

    goal = data.draw(st.sampled_from(texts))
    opening = [b'"' + spelled(goal.encode())[:2], b'"']
    tokens = [*pieces, *opening, None]
    vocabulary = Vocabulary(tokens, end_token_id=len(tokens) - 1, vocab_size=len(tokens))
    trie = vocabulary.trie
    compiled = CompiledSearch(vocabulary)
    assert compiled.num_bytes == 16 * (len(trie.byte) + 1)
    these = SortedTexts.of([text.encode() for text in texts])
    place = TextRange(0, len(these), 0, START)
    search = TextSearch(these)
    for byte in b'"' + spelled(goal.encode())[: data.draw(st.integers(0, 6))]:
        after = search.narrow(place, byte)
        assert after is not None
        assert compiled.narrow(these, place, byte) == after
        place = after
    roots = data.draw(st.lists(st.integers(0, len(trie.byte) - 1), max_size=3, unique=True))
    for positions in ((0,), tuple(roots)):
        expected = search.walk(place, trie, positions)
        found = compiled.walk(these, place, positions)
        written = found.tokens if found.mask is None else tokens_in(found.mask)
        assert written is not None
        assert expected.tokens is not None
        assert set(written) == set(expected.tokens)
        assert sorted(found.exits.get(0, [])) == sorted(expected.exits.get(0, []))
