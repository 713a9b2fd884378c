"""The leaves of a vocabulary: what they allow, and that equal languages are one object."""

from __future__ import annotations

import gc
from decimal import Decimal

import numpy as np
import pytest

from genret.decoding.grammar.compile_options import GrammarOptions
from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.json_grammar import Grammar
from genret.decoding.grammar.leaves.dfa_leaf import StateModels
from genret.decoding.grammar.leaves.leaf import Leaf
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.regular.dfa import Dfa
from genret.decoding.grammar.regular.json_spelling import spell_labelled
from genret.decoding.grammar.regular.number_set import NumberSet
from genret.decoding.grammar.regular.regex_compiler import compile_pattern
from genret.decoding.grammar.regular.text_set import TextSet
from genret.decoding.grammar.schema.members import spelled_classes, spelled_keys
from genret.decoding.grammar.shapes import ValueNode
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.grammar_oracle import byte_vocabulary
from tests.leaf_oracle import BYTES, after, check_tokens, in_threads, label_of
from tests.shape_walker import spelled

VOCABULARY = Vocabulary([*BYTES, b'":', b'",', b"tr", b'{"', b'name":', b"12", b'" '], 270, 300)


def labels(leaf: Leaf, *texts: bytes) -> list[int]:
    return [label_of(leaf, text) for text in texts]


def test_literals() -> None:
    leaves = Leaves(VOCABULARY)
    assert labels(leaves.literals(6), b"null", b"false", b"true", b"tru") == [-1, 0, 0, -1]
    assert label_of(leaves.literals(1), b"null") == 0
    assert leaves.literals(7) is leaves.literals(7)
    assert leaves.literals(3).is_shared
    with pytest.raises(ValueError, match="at least one"):
        leaves.literals(8)


def test_keys_by_name_have_their_labels() -> None:
    leaf = Leaves(VOCABULARY).literal_keys([("name", 3), ('a"\\\n', 0), ("é", 7), ("", 1)])
    texts = (b'"name"', b'"a\\"\\\\\\n"', '"é"'.encode(), b'""', b'"\\u00e9"')
    assert labels(leaf, *texts) == [3, 0, 7, 1, -1]


def test_texts_are_the_kind_of_leaf_that_costs_least() -> None:
    leaves = Leaves(VOCABULARY)
    everything = leaves.texts(TextSet.everything())
    assert leaves.texts(TextSet.of(0, None)) is everything
    assert everything.is_shared
    assert label_of(everything, b'"\\u00e9"') == 0
    counted = leaves.texts(TextSet.of(1, 65536))
    assert label_of(counted, b'""') == -1
    assert label_of(counted, b'"a"') == 0
    colours = leaves.texts(TextSet.of(automaton=Dfa.of_texts(["red", "green"])))
    assert leaves.texts(TextSet.of(automaton=Dfa.of_texts(["green", "red"]))) is colours
    assert label_of(colours, b'"red"') == 0
    assert not colours.is_shared
    canonical = leaves.texts(TextSet.everything(), canonical=True)
    assert label_of(canonical, b'"\\u00e9"') == -1


def test_numbers() -> None:
    leaves = Leaves(VOCABULARY)
    integers = leaves.numbers(NumberSet.of(integers=True))
    assert integers.is_shared
    assert leaves.numbers(NumberSet.of(integers=True)) is integers
    percent = leaves.numbers(NumberSet.of(least=Decimal(0), most=Decimal(100), integers=True))
    assert labels(percent, b"0", b"100", b"100.0", b"101", b"-1", b"007") == [0, 0, 0, -1, -1, -1]
    five = NumberSet.of(integers=True, least=Decimal(5), below=Decimal(6))
    assert leaves.numbers(NumberSet.of_values([5])) is leaves.numbers(five)
    assert label_of(leaves.numbers(NumberSet.of(integers=True), canonical=True), b"1.0") == -1


def test_keys_that_may_still_come() -> None:
    leaves = Leaves(VOCABULARY)
    names = [(Dfa.of_texts(["name"]), 0), (Dfa.of_texts(["age"]), 1)]
    automaton = spell_labelled([*names, (Dfa.everything() - Dfa.of_texts(["nam"]), 2)])
    everything = leaves.keys(automaton, frozenset({0, 1, 2}))
    assert labels(everything, b'"name"', b'"age"', b'"x"', b'"nam"') == [0, 1, 2, -1]
    rest = leaves.keys(automaton, frozenset({1, 2}))
    assert labels(rest, b'"name"', b'"age"', b'"names"', b'"nam"') == [-1, 1, 2, -1]
    only = leaves.keys(automaton, frozenset({0}))
    assert only.shortest(0) == b'"name"'
    assert only.edges(0) == {ord('"'): only.step(0, ord('"'))}
    assert leaves.keys(automaton, frozenset({1, 2})) is rest
    # Where no key that is left out can be reached, the tokens are those that all share.
    state = after(rest, b'"x')
    assert rest.tokens(state, VOCABULARY.root) is everything.tokens(state, VOCABULARY.root)
    with pytest.raises(ValueError, match="no key"):
        leaves.keys(automaton, frozenset({5}))


def test_leaves_go_when_no_grammar_holds_them() -> None:
    leaves = Leaves(VOCABULARY)
    for number in range(1000):
        leaves.literal_keys([(f"key {number}", 0)])
        leaves.texts(TextSet.of(automaton=Dfa.of_texts([f"text {number}"])))
    gc.collect()
    assert len(leaves._kept) < 300
    assert leaves.num_bytes < 4 << 20


def test_threads_get_one_object() -> None:
    for attempt in range(20):
        leaves = Leaves(VOCABULARY)

        def ask(leaves: Leaves = leaves, attempt: int = attempt) -> tuple[Leaf, Leaf]:
            texts = leaves.texts(TextSet.of(automaton=Dfa.of_texts(["a", str(attempt)])))
            return texts, leaves.literal_keys([("a", attempt)])

        found = in_threads(ask)
        assert len({id(one) for one, _ in found}) == len({id(one) for _, one in found}) == 1


def test_warming_up_finds_the_tokens_of_strings() -> None:
    leaves = Leaves(VOCABULARY)
    leaves.warm_up()
    everything = leaves.texts(TextSet.everything())
    size = everything.num_bytes
    state = everything.step(0, ord('"'))
    everything.tokens(state, VOCABULARY.root)
    everything.tokens(state, VOCABULARY.root.children[ord('"')])
    assert everything.num_bytes == size
    assert leaves.num_bytes > size


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(VocabularyError, match=r"cannot write '\{' \(hex 7b\)"):
        Leaves(Vocabulary([text for byte, text in enumerate(BYTES) if byte != 0x7B], 255, 256))
    characters: list[bytes | None] = [character.encode() for character in '{}[]":,abtrue 1']
    leaves = Leaves(Vocabulary([*characters, None], len(characters), len(characters) + 1))
    assert label_of(leaves.literals(4), b"true") == 0
    with pytest.raises(VocabularyError, match="cannot write 'n'"):
        leaves.literals(1)
    with pytest.raises(VocabularyError, match="cannot write 'x'"):
        leaves.literal_keys([("ax", 0)])
    texts = leaves.texts(TextSet.of(automaton=Dfa.of_texts(["ab", "ax", "x"])))
    assert labels(texts, b'"ab"', b'"ax"', b'"x"') == [0, -1, -1]
    with pytest.raises(VocabularyError, match="any of the texts"):
        leaves.texts(TextSet.of(automaton=Dfa.of_texts(["x"])))
    with pytest.raises(VocabularyError, match="any of the texts"):
        leaves.numbers(NumberSet.of_values([2, 3]))
    assert label_of(leaves.numbers(NumberSet.of(integers=True)), b"11") == 0


def test_without_blanks_json_is_written_compactly() -> None:
    characters: list[bytes | None] = [character.encode() for character in '{}[]":,ab']
    vocabulary = Vocabulary([*characters, None], len(characters), len(characters) + 1)
    value = ValueNode(leaves=(Leaves(vocabulary).texts(TextSet.everything()),), shortest=2)
    grammar = Grammar(value, vocabulary, GrammarOptions(whitespace="compact"))
    assert grammar.advance_bytes(grammar.start, b'"ab"') >= 0
    with pytest.raises(VocabularyError, match="cannot write ' '"):
        Grammar(value, vocabulary, GrammarOptions.for_writing())


PATTERNS = [None, "", "^x-", "^a.*b$", "^[0-9]{2,4}$", "^a?$"]
LETTERS = 'ab"\\u:, é\U0001f600'


def random_vocabulary(rng: np.random.Generator) -> Vocabulary:
    """All bytes, and longer tokens in which keys begin, end and go on."""
    lengths = rng.integers(2, 7, size=150).tolist()
    return byte_vocabulary("".join(rng.choice(list(LETTERS), size=length).tolist()) for length in lengths)


def random_names(rng: np.random.Generator, letters: str, longest: int, most: int) -> list[str]:
    lengths = rng.integers(0, longest + 1, size=int(rng.integers(1, most + 1)))
    return sorted({"".join(rng.choice(list(letters), size=n).tolist()) for n in lengths})


def random_keys(seed: int) -> tuple[list[str], ByteDfa]:
    """Names over the keys of a pattern, or over none."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(random_names(rng, 'axb-01"\\\né\U0001f600', 6, 7)).tolist()
    pattern = PATTERNS[seed % len(PATTERNS)]
    below = ByteDfa.literals([]) if pattern is None else spelled_classes((compile_pattern(pattern),))
    return names, spelled_keys(list(map(spelled, names)), below)


def states_on_the_way(leaf: Leaf, texts: list[bytes]) -> list[int]:
    """States of a leaf that some texts pass."""
    found = {after(leaf, text[:length]) for text in texts for length in range(len(text) + 1)}
    return sorted(found - {-1})


@pytest.mark.parametrize("seed", range(60))
def test_names_laid_over_other_keys_are_an_automaton_like_any_other(seed: int) -> None:
    names, keys = random_keys(seed)
    same = ByteDfa.from_rows(keys.rows, keys.ends)
    assert (same.rows, same.ends, same.digest) == (keys.rows, keys.ends, keys.digest)
    assert [keys.label_of(text) for text in map(spelled, names)] == list(range(len(names)))


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
    texts = list(map(spelled, names))
    automaton = spelled_keys(texts, spelled_classes(classes))
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
        for state in states_on_the_way(leaf, texts + others):
            check_tokens(vocabulary, leaf, state, (b"", b"a", b'"'))
    assert any(by_model)


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
