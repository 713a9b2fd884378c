"""Automata that treat many characters alike, over tokens of characters and their parts: all walks agree."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from decoding.grammar.leaves.dfa_leaf import DfaLeaf
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.leaves.restricted_keys import LabelledKeys, RestrictedKeys
from decoding.grammar.leaves.table_walk import TableWalk, TableWalker
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.regex_compiler import compile_pattern
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.schema.members import spelled_classes, spelled_keys
from decoding.grammar.vocabulary import Vocabulary

# Of one to four bytes, from both ends of what UTF-8 can say, and what JSON spells in its own way.
CHARACTERS = (
    'afgzAFGZ059 _-."\\/:,\n\x7f'
    "\x80\u07ff\u0800\u0fff\u1000\ucfff\ud000\ud7ff\ue000\uffff\U00010000\U0003ffff\U00040000\U0010ffff"
)
PATTERNS = [
    "^[^-]+$",
    "^[a-zA-Z0-9_-]{0,6}$",
    "[a-fA-F]{3}",
    "^[a-f]*[g-z]{2}",
    "^[^<>:.]{1,5}$",
    ".*fa.*",
    "^[\\u0000-\\u07ff]*$",
    "^[^\\u0800]*$",
    "^[^\\ud000-\\ud7ff]*z$",
    "^(.a)*$",
    "^\\S+@\\S+\\.\\S+$",
    "^dev|alpha|fa|az|AF|zA$",
    "^(?:[^ ]+ ){0,3}[^ ]{1,9}$",
    "^[^<>:.]{1,20}$",
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """All bytes, texts of many characters, and texts cut within characters at both ends."""
    rng = np.random.default_rng(0)
    texts: list[bytes | None] = [None, *[bytes([byte]) for byte in range(256)]]
    for _ in range(600):
        text = "".join(rng.choice(list(CHARACTERS), size=int(rng.integers(1, 7))).tolist()).encode()
        begin = int(rng.integers(0, 2)) * int(rng.integers(0, 3))
        texts.append(text[begin : begin + int(rng.integers(1, 12))] or b"a")
    for _ in range(100):
        texts.append(bytes(rng.integers(0, 256, size=int(rng.integers(2, 4))).tolist()))
    return Vocabulary(texts, 0, len(texts))


def comparable(walked: TableWalk) -> tuple[list[int], dict[int, list[int]]]:
    tokens, mask, exits = walked
    if tokens is None:
        assert mask is not None
        tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return sorted(tokens), {label: sorted(places) for label, places in exits.items()}


def check(vocabulary: Vocabulary, leaf: DfaLeaf | RestrictedKeys, states: Iterable[int]) -> None:
    """Compare the compiled loop, twice because it writes rows, and NumPy's with the walk in Python."""
    module = pytest.importorskip("decoding.grammar.leaves.numba_walk")
    walk = module.CompiledWalk(vocabulary)
    walker = TableWalker(vocabulary)
    places = sorted({vocabulary.root.children[byte].positions[0] for byte in b'a"\\\xe0\xf0\x80'})
    for _ in range(2):
        for state in states:
            for positions in ((0,), tuple(places)):
                expected = comparable(walker.walk_nodes(leaf, state, positions))
                assert comparable(walk(leaf.table, state, positions)) == expected
                assert comparable(walker.walk_levels(leaf.table, state, positions)) == expected


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(vocabulary: Vocabulary, pattern: str) -> None:
    leaf = Leaves(vocabulary).texts(TextSet.of(automaton=compile_pattern(pattern)))
    assert isinstance(leaf, DfaLeaf)
    check(vocabulary, leaf, range(min(leaf.automaton.num_states, 40)))


@pytest.mark.parametrize("allowed", [0b00001, 0b10000, 0b10101, 0b11110])
def test_some_keys_of_an_object(vocabulary: Vocabulary, allowed: int) -> None:
    leaves = Leaves(vocabulary)
    names = ['"aff"', '"afgz"', '"é"', '"a\\""']
    automaton = spelled_keys([name.encode() for name in names], spelled_classes((Dfa.everything(),)))
    keys = LabelledKeys(DfaLeaf(automaton, leaves.walker))
    leaf = RestrictedKeys(keys, allowed, leaves.walker)
    check(vocabulary, leaf, [n for n in range(automaton.num_states) if keys.reachable[n] & allowed])
