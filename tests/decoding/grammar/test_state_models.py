"""Tokens found by a model of a state: against every token asked byte by byte."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoding.grammar.leaves.dfa_leaf import DfaLeaf, StateModels
from decoding.grammar.leaves.leaf import Leaf
from decoding.grammar.leaves.leaf_factory import Leaves
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.regex_compiler import compile_pattern
from decoding.grammar.regular.text_set import TextSet
from decoding.grammar.schema.members import spelled_classes, spelled_keys
from decoding.grammar.token_trie import TokenNode
from decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import oracle_tokens, walked_tokens

LETTERS = 'ab"\\u:, é\U0001f600'


def random_vocabulary(rng: np.random.Generator) -> Vocabulary:
    """All bytes, and longer tokens in which keys begin, end and go on."""
    texts: list[bytes | None] = [None, *[bytes([byte]) for byte in range(256)]]
    for _ in range(150):
        length = int(rng.integers(2, 7))
        texts.append("".join(rng.choice(list(LETTERS), size=length).tolist()).encode())
    return Vocabulary(texts, 0, len(texts))


def random_names(rng: np.random.Generator) -> list[str]:
    lengths = rng.integers(0, 5, size=int(rng.integers(1, 7)))
    names = {"".join(rng.choice(list('ab"\\é\U0001f600'), size=n).tolist()) for n in lengths}
    return sorted(names)


def states_on_the_way(leaf: Leaf, texts: list[bytes]) -> list[int]:
    """States of a leaf that some texts pass."""
    found = {0}
    for text in texts:
        state = 0
        for byte in text:
            state = leaf.step(state, byte)
            if state < 0:
                break
            found.add(state)
    return sorted(found)


@pytest.mark.parametrize("seed", range(12))
def test_free_keys_beside_named_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = random_vocabulary(rng)
    leaves = Leaves(vocabulary)
    names = random_names(rng)
    classes: tuple[Dfa, ...] = (Dfa.everything(),)
    if seed % 3 == 0:
        special = compile_pattern("^a.*b$")
        classes = (special, Dfa.everything() - special)
    spelled = [json.dumps(name, ensure_ascii=False).encode() for name in names]
    automaton = spelled_keys(spelled, spelled_classes(classes))
    free = range(len(names), len(names) + len(classes))
    by_model = []
    known = StateModels.tokens

    def counting(self: StateModels, *args: object) -> object:
        found = known(self, *args)  # type: ignore[arg-type]
        by_model.append(found is not None)
        return found

    monkeypatch.setattr(StateModels, "tokens", counting)
    for allowed in [
        frozenset([*range(len(names)), *free]),
        frozenset([*range(0, len(names), 2), *free]),
        frozenset([*range(1, len(names), 2), free[0]]),
    ]:
        leaf = leaves.keys(automaton, allowed)
        others = [b'"xyz', '"é\\u0001'.encode(), b'"abab"']
        for state in states_on_the_way(leaf, spelled + others):
            for prefix in (b"", b"a", b'"'):
                node: TokenNode | None = vocabulary.root
                for byte in prefix:
                    node = node.children.get(byte) if node is not None else None
                assert node is not None
                assert walked_tokens(leaf, state, node) == oracle_tokens(vocabulary, leaf, state, prefix)
    assert any(by_model)


@pytest.mark.parametrize("pattern", ["^a.*$", "^(?!ab$).*$", "[^b]$", "a.*b", "^[^ab]*$", "^(a|b)*c?$"])
def test_patterns(pattern: str) -> None:
    vocabulary = random_vocabulary(np.random.default_rng(1))
    leaf = Leaves(vocabulary).texts(TextSet.of(automaton=compile_pattern(pattern)))
    assert isinstance(leaf, DfaLeaf)
    for state in range(leaf.automaton.num_states):
        found = walked_tokens(leaf, state, vocabulary.root)
        assert found == oracle_tokens(vocabulary, leaf, state)


def test_tokens_of_any_text_are_found_once_for_all_keys() -> None:
    vocabulary = random_vocabulary(np.random.default_rng(2))
    leaves = Leaves(vocabulary)
    masks = []
    for name in (b'"a"', b'"b"'):
        leaf = leaves.keys(spelled_keys([name], spelled_classes((Dfa.everything(),))), frozenset([0, 1]))
        state = 0
        for byte in b'"xy':
            state = leaf.step(state, byte)
        found = leaf.tokens(state, vocabulary.root)
        assert found is not None
        assert [exit.label for exit in found.exits] == [1]
        masks.append(found.many)
    assert masks[0] is not None
    assert masks[0] is masks[1]
