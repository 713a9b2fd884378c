"""Keys by name laid over others: against automata that are made minimal, and rows that are compared."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoding.grammar.leaves.dfa_leaf import DfaLeaf, StateModels
from decoding.grammar.leaves.restricted_keys import LabelledKeys
from decoding.grammar.leaves.table_walk import TableWalker
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.regular.dfa import Dfa
from decoding.grammar.regular.regex_compiler import compile_pattern
from decoding.grammar.schema.members import spelled_classes, spelled_keys
from decoding.grammar.vocabulary import Vocabulary

PATTERNS = [None, "", "^x-", "^a.*b$", "^[0-9]{2,4}$", "^a?$"]


def random_names(rng: np.random.Generator) -> list[str]:
    lengths = rng.integers(0, 7, size=int(rng.integers(1, 8)))
    return list({"".join(rng.choice(list('axb-01"\\\né\U0001f600'), size=n).tolist()) for n in lengths})


def spelled(names: list[str]) -> list[bytes]:
    return [json.dumps(name, ensure_ascii=False).encode() for name in names]


def random_keys(seed: int) -> tuple[list[str], ByteDfa]:
    rng = np.random.default_rng(seed)
    names, pattern = random_names(rng), PATTERNS[seed % len(PATTERNS)]
    if pattern is None:
        return names, spelled_keys(spelled(names), ByteDfa.literals([]))
    return names, spelled_keys(spelled(names), spelled_classes((compile_pattern(pattern),)))


@pytest.mark.parametrize("seed", range(60))
def test_states_are_numbered_as_in_any_automaton(seed: int) -> None:
    names, keys = random_keys(seed)
    same = ByteDfa.from_rows(keys.rows, keys.ends)
    assert (same.rows, same.ends, same.digest) == (keys.rows, keys.ends, keys.digest)
    assert [keys.label_of(text) for text in spelled(names)] == list(range(len(names)))


@pytest.mark.parametrize("seed", range(60))
def test_what_is_laid_over_is_what_differs(seed: int) -> None:
    _, keys = random_keys(seed)
    vocabulary = Vocabulary([None, b"a"], 0, 2)
    rows = (keys.rows, keys.ends.__getitem__, lambda _: True, vocabulary)
    compared, known = StateModels(*rows), StateModels(*rows, overlay=keys.overlay)
    assert keys.overlay is not None
    for state, below in keys.overlay.below.items():
        if below >= 0:
            expected, found = compared._differing(state, below), known._differing(state, below)
            assert expected is not None
            assert found is not None
            assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("seed", range(60))
def test_labels_that_can_be_reached(seed: int) -> None:
    _, keys = random_keys(seed)
    walker = TableWalker(Vocabulary([None, b"a"], 0, 2))
    plain = ByteDfa.from_rows(keys.rows, keys.ends)
    assert plain.overlay is None
    expected = LabelledKeys(DfaLeaf(plain, walker)).reachable
    assert LabelledKeys(DfaLeaf(keys, walker)).reachable == expected


def test_all_texts_below_names_keep_their_label() -> None:
    keys = spelled_keys([b'"ab"', b'"a"'], spelled_classes((Dfa.everything(),)))
    texts = [b'"a"', b'"ab"', b'"abc"', b'""', b'"b"', b'"a']
    assert [keys.label_of(text) for text in texts] == [1, 0, 2, 2, 2, -1]
