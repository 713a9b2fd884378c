"""Which tokens may follow, found by walking a trie of their bytes one byte at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.json_grammar import Grammar
from genret.decoding.grammar.vocabulary import Vocabulary


class ByteTrie:
    """The tokens of a vocabulary by their bytes; made without the vocabulary's own trie."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._children: list[dict[int, int]] = [{}]
        self._tokens: list[list[int]] = [[]]
        for token in range(vocabulary.vocab_size):
            text = vocabulary.bytes_of(token)
            if text:
                self._tokens[self._node(text)].append(token)

    def _node(self, text: bytes) -> int:
        node = 0
        for byte in text:
            children = self._children[node]
            if byte not in children:
                children[byte] = len(self._children)
                self._children.append({})
                self._tokens.append([])
            node = children[byte]
        return node

    def allowed(self, grammar: Grammar, state: int, moves: dict[tuple[int, int], int]) -> set[int]:
        """The tokens all of whose bytes can be followed, and the end token where the text is complete.

        Args:
            grammar: Of the vocabulary.
            state: One of its states.
            moves: What single bytes led to, by state and byte: of the same grammar. Added to.
        """
        found: set[int] = set()
        if grammar.is_complete(state):
            found.add(self._vocabulary.end_token_id)
        waiting = [(0, state)]
        while waiting:
            node, here = waiting.pop()
            for byte, child in self._children[node].items():
                key = here, byte
                there = moves.get(key)
                if there is None:
                    there = moves[key] = grammar.advance_bytes(here, bytes((byte,)))
                if there >= 0:
                    found.update(self._tokens[child])
                    waiting.append((child, there))
        return found


def mask_of(vocabulary: Vocabulary, tokens: set[int]) -> NDArray[np.uint32]:
    """A packed mask of some tokens, bit by bit."""
    mask = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.uint32)
    for token in tokens:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def walked_states(grammar: Grammar, rng: random.Random, walks: int, steps: int) -> list[int]:
    """States along random walks, the start among them, each once.

    Half of the walks prefer, the longer they are, tokens that close what is open, so that all parts of a
    schema are reached; the others take any token.
    """
    states = [grammar.start]
    for walk in range(walks):
        state = grammar.start
        for written in range(steps):
            allowed = grammar.tokens(state).tolist()
            allowed = [token for token in allowed if token != grammar.vocabulary.end_token_id]
            if not allowed:
                break
            state = grammar.advance(state, chosen(grammar, rng, allowed, written if walk % 2 else 0))
            assert state >= 0
            states.append(state)
    return list(dict.fromkeys(states))


def chosen(grammar: Grammar, rng: random.Random, allowed: Sequence[int], written: int) -> int:
    """One of some tokens: the more have been written, the likelier one that closes something."""
    if rng.random() < min(0.9, written / 25):
        end = grammar.vocabulary.end_token_id
        closing = [token for token in allowed if token == end or grammar.text([token])[-1:] in b'"]}']
        if closing:
            return rng.choice(closing)
    return rng.choice(allowed)
