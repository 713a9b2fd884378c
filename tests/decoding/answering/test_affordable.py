"""Masks under a budget: those of the grammar, found once, within so many bytes."""

from __future__ import annotations

import gc
import itertools
import random
import threading

import numpy as np
import pytest
import torch

from decoding.answering import AnswerParams, AnswerText, answer, write_answers
from decoding.answering.answer import AffordableMasks
from tests.fakes import TableModel
from tests.text_grammar import Pieces, TextGrammar, binary_texts

PIECES = Pieces([b"a", b"b", b"ab", b"ba", b"aab"], vocab_size=70)


class Counting(TextGrammar):
    """Counts how often all tokens are looked at."""

    def __init__(self, longest: int) -> None:
        super().__init__(PIECES, binary_texts(longest))
        self.looks = 0

    def fitting_tokens(self, state: int, left: int) -> np.ndarray:
        self.looks += 1
        return super().fitting_tokens(state, left)


def fitting(grammar: TextGrammar, state: int, left: int) -> list[int]:
    """By following every token."""
    return [
        token
        for token in grammar.allowed(state)
        if grammar.tokens_to_finish(grammar.advance(state, token)) < left
    ]


def tokens_of(mask: np.ndarray) -> list[int]:
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


@pytest.mark.parametrize("max_bytes", [0, 1000, 3000, 1 << 20])
def test_masks_are_the_grammars_whatever_is_kept(max_bytes: int) -> None:
    grammars = [Counting(longest) for longest in (2, 3, 4)]
    masks = AffordableMasks(max_bytes)
    rng = random.Random(0)
    for _ in range(1500):
        grammar = rng.choice(grammars)
        state, left = rng.choice([0, 2, 3, 4]), rng.randrange(1, 5)
        mask = masks.mask(grammar, state, left)
        assert tokens_of(mask) == fitting(grammar, state, left)
        assert mask.dtype == np.uint32
        assert mask.shape == grammar.mask(state).shape
        assert not mask.flags.writeable
        assert masks.num_bytes <= max_bytes
    looks = sum(grammar.looks for grammar in grammars)
    # Three grammars, four states and four numbers of tokens.
    assert looks == (1500 if max_bytes == 0 else 48 if max_bytes == 1 << 20 else looks)
    assert looks >= 48


def test_masks_that_are_asked_for_stay() -> None:
    grammar = Counting(4)
    masks = AffordableMasks(1000)  # two masks
    for state in range(2, 12):
        masks.mask(grammar, 0, 3)
        masks.mask(grammar, state, 3)
    assert grammar.looks == 11


def test_grammars_are_not_kept_and_not_mistaken_for_others() -> None:
    masks = AffordableMasks(1 << 20)
    for longest in [2, 3, 4] * 10:
        grammar = Counting(longest)
        assert tokens_of(masks.mask(grammar, 0, 2)) == fitting(grammar, 0, 2)
        assert grammar.looks == 1
        del grammar
        gc.collect()


def test_threads_find_the_same() -> None:
    grammar = Counting(4)
    masks = AffordableMasks(2000)
    wrong: list[tuple[int, int]] = []

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(300):
            state, left = rng.choice([0, 2, 3, 4, 5]), rng.randrange(1, 5)
            if tokens_of(masks.mask(grammar, state, left)) != fitting(grammar, state, left):
                wrong.append((state, left))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert masks.num_bytes <= 2000


LETTERS = range(97, 117)
CLOSED = Pieces([b".", *(bytes([byte]) for byte in LETTERS)])


class Closed(Counting):
    """Texts that most tokens only lengthen: at the end of a budget none of the likeliest will do."""

    def __init__(self) -> None:
        texts = [bytes(text) + b"." for n in range(3) for text in itertools.product(LETTERS, repeat=n)]
        TextGrammar.__init__(self, CLOSED, texts)
        self.looks = 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_the_same_with_and_without_memory(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TableModel(22, lambda p, r: torch.tensor([0.0, -9.0, *[float(n % 7) for n in range(20)]]))

    def write(grammar: Closed) -> list[object]:
        params = [
            AnswerParams(max_tokens=2 + seed % 3, temperature=temperature, seed=seed, forced_spans=False)
            for seed in range(40)
        ]
        answers = write_answers(model, [[1]] * 40, [grammar] * 40, params)
        assert all(isinstance(answer, AnswerText) and answer.text in grammar.texts for answer in answers)
        return list(answers)

    grammar, forgetful = Closed(), Closed()
    remembered = write(grammar)
    looks = grammar.looks
    assert write(grammar) == remembered
    assert grammar.looks == looks
    monkeypatch.setattr(answer, "_AFFORDABLE", AffordableMasks(0))
    assert write(forgetful) == remembered
    assert forgetful.looks >= 27 > looks  # each of the answers that budgets of 2 and 3 close, at least once
