"""Tokens that leaves let through: every way of walking against an oracle that asks byte by byte."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from decoding.grammar.leaves.dfa_leaf import DfaLeaf
from decoding.grammar.leaves.leaf import FEW_TOKENS, LeafTokens, SparseLeaf, TokenCache
from decoding.grammar.leaves.restricted_keys import LabelledKeys, RestrictedKeys
from decoding.grammar.leaves.table_walk import TableWalk, TableWalker
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.json_spelling import spell_any_text, spell_texts
from decoding.grammar.regular.number_set import NumberSet
from decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import (
    node_at,
    oracle_tokens,
    random_leaf_dfa,
    random_vocabulary,
    real_vocabulary,
    walked_tokens,
)

ALPHABET = b"abcdefghijkl"
Walk = Callable[[TableWalker, DfaLeaf, int, tuple[int, ...]], TableWalk]


def in_python(walker: TableWalker, leaf: DfaLeaf, state: int, positions: tuple[int, ...]) -> TableWalk:
    return walker.walk_nodes(leaf, state, positions)


def with_numpy(walker: TableWalker, leaf: DfaLeaf, state: int, positions: tuple[int, ...]) -> TableWalk:
    return walker.walk_levels(leaf.table, state, positions)


def compiled(walker: TableWalker, leaf: DfaLeaf, state: int, positions: tuple[int, ...]) -> TableWalk:
    module = pytest.importorskip("decoding.grammar.leaves.numba_walk")
    walk = module.CompiledWalk(walker.vocabulary)
    found: TableWalk = walk(leaf.table, state, positions)
    return found


def comparable(walked: TableWalk) -> tuple[list[int], dict[int, list[int]]]:
    tokens, mask, exits = walked
    if tokens is None:
        assert mask is not None
        tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        assert len(tokens) > FEW_TOKENS
    return sorted(tokens), {label: sorted(places) for label, places in exits.items()}


@pytest.mark.parametrize("walk", [with_numpy, compiled])
@pytest.mark.parametrize("seed", range(8))
def test_all_ways_of_walking_find_the_same(walk: Walk, seed: int) -> None:
    rng = np.random.default_rng(seed)
    alphabet = ALPHABET[: int(rng.integers(1, 13))]
    vocabulary = random_vocabulary(rng, alphabet, int(rng.choice([3, 40, 400])))
    walker = TableWalker(vocabulary)
    trie = vocabulary.trie
    for _ in range(10):
        leaf = DfaLeaf(random_leaf_dfa(rng, alphabet, 3), walker)
        for state in range(leaf.automaton.num_states):
            some = sorted(set(rng.integers(0, len(trie.byte), size=3).tolist()))
            for positions in ((0,), tuple(some)):
                expected = comparable(in_python(walker, leaf, state, positions))
                assert comparable(walk(walker, leaf, state, positions)) == expected


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_warm", [False, True])
def test_random_leaves_let_through_what_the_oracle_does(seed: int, is_warm: bool) -> None:
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
            for state in reachable_states(leaf):
                for prefix in (b"", alphabet[:1], alphabet[-2:]):
                    node = node_at(vocabulary, prefix)
                    if node is not None:
                        expected = oracle_tokens(vocabulary, leaf, state, prefix)
                        assert walked_tokens(leaf, state, node) == expected


def reachable_states(leaf: DfaLeaf | RestrictedKeys) -> list[int]:
    """All states of a leaf, none where it is empty: its start would lead nowhere."""
    if not leaf.goes_on(0):
        return []
    states = [0]
    for state in states:
        for byte in range(256):
            after = leaf.step(state, byte)
            if after >= 0 and after not in states:
                states.append(after)
    return states


@pytest.mark.parametrize("seed", range(10))
def test_what_leaves_say_of_their_states_agrees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = random_vocabulary(rng, ALPHABET, 5)
    walker = TableWalker(vocabulary)
    keys = LabelledKeys(DfaLeaf(random_leaf_dfa(rng, ALPHABET, 3), walker))
    for leaf in (keys.leaf, RestrictedKeys(keys, 0b010, walker), RestrictedKeys(keys, 0b101, walker)):
        for state in reachable_states(leaf):
            steps = {byte: leaf.step(state, byte) for byte in range(256) if leaf.step(state, byte) >= 0}
            edges = leaf.edges(state)
            assert edges == steps if len(steps) <= 8 else edges is None
            assert leaf.goes_on(state) == bool(steps)
            assert leaf.goes_on(state) or leaf.label(state) >= 0
            assert leaf.shortest(state) == shortest_by_search(leaf, state)


def shortest_by_search(leaf: DfaLeaf | RestrictedKeys, state: int) -> bytes:
    """Breadth first, low bytes first."""
    waiting = [(b"", state)]
    seen = {state}
    for text, here in waiting:
        if leaf.label(here) >= 0:
            return text
        for byte in range(256):
            after = leaf.step(here, byte)
            if after >= 0 and after not in seen:
                seen.add(after)
                waiting.append((text + bytes([byte]), after))
    raise AssertionError("no text can be reached")


def test_sparse_leaves_are_tries_of_their_texts() -> None:
    vocabulary = Vocabulary(
        [bytes([byte]) for byte in range(256)] + [b"tr", b"true,", b"null]", b"e}"], 0, 260
    )
    leaf = SparseLeaf("x", {b"true": 3, b"trust": 4, b"null": 0, b"tr": 7})
    for text in (b"", b"t", b"tr", b"tru", b"trus", b"nul"):
        state = 0
        for byte in text:
            state = leaf.step(state, byte)
        assert walked_tokens(leaf, state, vocabulary.root) == oracle_tokens(vocabulary, leaf, state)
        assert leaf.shortest(state) == {b"": b"tr", b"t": b"r", b"tr": b"", b"nul": b"l"}.get(
            text, {b"tru": b"e", b"trus": b"t"}.get(text)
        )
    assert leaf.tokens(0, vocabulary.root) is None
    assert leaf.step(0, ord("x")) == -1
    with pytest.raises(ValueError, match="at least one"):
        SparseLeaf("x", {})
    with pytest.raises(ValueError, match="none that is empty"):
        SparseLeaf("x", {b"": 0})


def test_a_number_may_end_or_go_on() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b"12", b"1,", b"12,3", b".5]"], 0, 260)
    leaf = DfaLeaf(NumberSet.of().spelled(), TableWalker(vocabulary))
    state = leaf.step(0, ord("7"))
    assert leaf.label(state) == 0
    inside, exits = walked_tokens(leaf, state, vocabulary.root)
    assert 256 in inside
    # Behind 71 and behind 712: what goes on with a digit is refused by what follows the number.
    assert exits == {0: {(b"2", 256), (b",", 257), (b"2,3", 258), (b",3", 258), (b"]", 259)}}
    # What may follow the 7 that has ended is the caller's to find.
    assert ord(",") not in inside


def test_tokens_are_found_once() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b'a",'], 0, 257)
    leaf = DfaLeaf(spell_any_text(), TableWalker(vocabulary))
    body = leaf.step(0, ord('"'))
    found = leaf.tokens(body, vocabulary.root)
    assert found is not None
    assert found.many is not None
    assert not found.many.flags.writeable
    assert leaf.tokens(body, vocabulary.root) is found
    size = leaf.num_bytes
    leaf.tokens(body, vocabulary.root.children[ord("a")])
    assert leaf.num_bytes > size


def test_threads_that_ask_at_once_get_the_same() -> None:
    rng = np.random.default_rng(1)
    vocabulary = random_vocabulary(rng, ALPHABET, 2000)
    walker = TableWalker(vocabulary)
    for _ in range(20):
        leaf = DfaLeaf(random_leaf_dfa(rng, ALPHABET, 2), walker)
        barrier = threading.Barrier(8)
        answers: list[list[LeafTokens | None]] = []

        def ask(
            leaf: DfaLeaf = leaf,
            barrier: threading.Barrier = barrier,
            answers: list[list[LeafTokens | None]] = answers,
        ) -> None:
            barrier.wait()
            answers.append(
                [leaf.tokens(state, vocabulary.root) for state in range(leaf.automaton.num_states)]
            )

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 8
        for one in answers:
            assert all(left is right for left, right in zip(one, answers[0], strict=True))


def test_the_cache_keeps_to_its_bound() -> None:
    cache = TokenCache(max_bytes=10_000)
    for number in range(100):
        cache.put(number, LeafTokens(tuple(range(20)), None, ()))
        assert cache.num_bytes <= 10_000
    assert cache.get(0) is None
    assert cache.get(99) is not None
    large = LeafTokens((), np.zeros(100_000, dtype=np.uint32), ())
    assert cache.put("large", large) is large
    assert cache.put("large", LeafTokens((), None, ())) is large
    assert cache.num_bytes > 400_000  # an entry that is in use stays, also alone


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gpt2", "mistral_v1_sp32k", "titles_bytebpe8k"])
@pytest.mark.parametrize("is_warm", [False, True])
def test_real_tokenizers(name: str, is_warm: bool) -> None:
    vocabulary = real_vocabulary(name)
    walker = TableWalker(vocabulary)
    if is_warm:
        walker.warm_up()
    months = spell_texts(Dfa.of_texts(["January", "Février", "三月", "may", 'a"b', "tab\t", "\x01"]))
    letters = spell_texts(Dfa.of_chars([(97, 122), (0x20, 0x20)]).repeated(3, 12))
    for automaton in (spell_any_text(), months, letters, NumberSet.of().spelled()):
        leaf = DfaLeaf(automaton, walker)
        for state in range(0, automaton.num_states, max(1, automaton.num_states // 6)):
            for prefix in (b"", b'"', b"1", b' "'):
                node = node_at(vocabulary, prefix)
                if node is not None:
                    expected = oracle_tokens(vocabulary, leaf, state, prefix)
                    assert walked_tokens(leaf, state, node) == expected


def test_automata_keep_their_key() -> None:
    walker = TableWalker(Vocabulary([b"a"], 1, 2))
    first = DfaLeaf(ByteDfa.literals([(b"a", 0), (b"b", 1)]), walker)
    assert first.key == DfaLeaf(ByteDfa.literals([(b"b", 1), (b"a", 0)]), walker).key
    assert first.key != DfaLeaf(ByteDfa.literals([(b"a", 1), (b"b", 0)]), walker).key


@pytest.mark.parametrize("error", [ImportError("no numba"), RuntimeError("broken")])
def test_without_numba_tokens_are_found_with_numpy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    module = pytest.importorskip("decoding.grammar.leaves.numba_walk")

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
    assert walked_tokens(leaf, 0, vocabulary.root) == oracle_tokens(vocabulary, leaf, 0)
