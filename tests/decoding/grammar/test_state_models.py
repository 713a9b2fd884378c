"""Keys by name laid over others, and tokens found by a model of a state, against plain automata and walks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from genret.decoding.grammar.leaves.dfa_leaf import DfaLeaf, StateModels
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.members import spelled_classes, spelled_keys
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.leaf_oracle import after, check_tokens

PATTERNS = [None, "", "^x-", "^a.*b$", "^[0-9]{2,4}$", "^a?$"]
LETTERS = 'ab"\\u:, é\U0001f600'


def random_vocabulary(rng: np.random.Generator) -> Vocabulary:
    """All bytes, and longer tokens in which keys begin, end and go on."""
    texts: list[bytes | None] = [None, *[bytes([byte]) for byte in range(256)]]
    for _ in range(150):
        length = int(rng.integers(2, 7))
        texts.append("".join(rng.choice(list(LETTERS), size=length).tolist()).encode())
    return Vocabulary(texts, 0, len(texts))


def random_names(rng: np.random.Generator, letters: str, longest: int, most: int) -> list[str]:
    lengths = rng.integers(0, longest + 1, size=int(rng.integers(1, most + 1)))
    return sorted({"".join(rng.choice(list(letters), size=n).tolist()) for n in lengths})


def spelled_names(names: list[str]) -> list[bytes]:
    return [json.dumps(name, ensure_ascii=False).encode() for name in names]


def random_keys(seed: int) -> tuple[list[str], ByteDfa]:
    """Names over the keys of a pattern, or over none."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(random_names(rng, 'axb-01"\\\né\U0001f600', 6, 7)).tolist()
    pattern = PATTERNS[seed % len(PATTERNS)]
    below = ByteDfa.literals([]) if pattern is None else spelled_classes((compile_pattern(pattern),))
    return names, spelled_keys(spelled_names(names), below)


def states_on_the_way(leaf: Leaf, texts: list[bytes]) -> list[int]:
    """States of a leaf that some texts pass."""
    found = {after(leaf, text[:length]) for text in texts for length in range(len(text) + 1)}
    return sorted(found - {-1})


@pytest.mark.parametrize("seed", range(60))
def test_names_laid_over_other_keys_are_an_automaton_like_any_other(seed: int) -> None:
    names, keys = random_keys(seed)
    same = ByteDfa.from_rows(keys.rows, keys.ends)
    assert (same.rows, same.ends, same.digest) == (keys.rows, keys.ends, keys.digest)
    assert [keys.label_of(text) for text in spelled_names(names)] == list(range(len(names)))


def test_all_texts_below_names_keep_their_label() -> None:
    keys = spelled_keys([b'"ab"', b'"a"'], spelled_classes((Dfa.everything(),)))
    texts = [b'"a"', b'"ab"', b'"abc"', b'""', b'"b"', b'"a']
    assert [keys.label_of(text) for text in texts] == [1, 0, 2, 2, 2, -1]


@pytest.mark.parametrize("seed", range(12))
def test_free_keys_beside_named_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = random_vocabulary(rng)
    leaves = Leaves(vocabulary)
    names = random_names(rng, 'ab"\\é\U0001f600', 4, 6)
    classes: tuple[Dfa, ...] = (Dfa.everything(),)
    if seed % 3 == 0:
        special = compile_pattern("^a.*b$")
        classes = (special, Dfa.everything() - special)
    spelled = spelled_names(names)
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
            check_tokens(vocabulary, leaf, state, (b"", b"a", b'"'))
    assert any(by_model)


@pytest.mark.parametrize("pattern", ["^a.*$", "^(?!ab$).*$", "[^b]$", "a.*b", "^[^ab]*$", "^(a|b)*c?$"])
def test_patterns(pattern: str) -> None:
    vocabulary = random_vocabulary(np.random.default_rng(1))
    leaf = Leaves(vocabulary).texts(TextSet.of(automaton=compile_pattern(pattern)))
    assert isinstance(leaf, DfaLeaf)
    for state in range(leaf.automaton.num_states):
        check_tokens(vocabulary, leaf, state)


def test_tokens_of_any_text_are_found_once_for_all_keys() -> None:
    vocabulary = random_vocabulary(np.random.default_rng(2))
    leaves = Leaves(vocabulary)
    masks = []
    for name in (b'"a"', b'"b"'):
        leaf = leaves.keys(spelled_keys([name], spelled_classes((Dfa.everything(),))), frozenset([0, 1]))
        found = leaf.tokens(after(leaf, b'"xy'), vocabulary.root)
        assert found is not None
        assert [exit.label for exit in found.exits] == [1]
        masks.append(found.many)
    assert masks[0] is not None
    assert masks[0] is masks[1]
