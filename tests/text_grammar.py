"""Grammars that are plain sets of texts, small enough to be enumerated, and tiny vocabularies for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.vocabulary.vocabulary import Vocabulary

END = 0


class Pieces:
    """A vocabulary of a few tokens: 0 ends, the pieces follow, and behind them are logits without a token."""

    def __init__(self, pieces: Sequence[bytes], vocab_size: int | None = None) -> None:
        self.pieces = [None, *pieces]
        self.vocab_size = vocab_size or len(self.pieces)
        self.longest_token = max(map(len, pieces))

    def bytes_of(self, token: int) -> bytes | None:
        return self.pieces[token] if token < len(self.pieces) else None

    def packed(self, tokens: Iterable[int]) -> NDArray[np.uint32]:
        mask = np.zeros(-(-self.vocab_size // 32), dtype=np.uint32)
        for token in tokens:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask


class TextGrammar:
    """A set of texts (`decoding.grammar.grammar.Grammar`), by looking at all of them.

    Args:
        vocabulary: Its tokens can write every text.
        texts: Not empty.
    """

    start = 0
    finished = 1

    def __init__(self, vocabulary: Pieces | Vocabulary, texts: Iterable[bytes]) -> None:
        self._vocabulary = vocabulary
        self.texts = sorted(set(texts))
        self._prefixes = [b"", None, *sorted({t[:n] for t in self.texts for n in range(1, len(t) + 1)})]
        self._states = {prefix: state for state, prefix in enumerate(self._prefixes)}
        self._shortest = dict.fromkeys(self.texts, 1)
        for prefix in sorted((p for p in self._prefixes if p is not None), key=len, reverse=True):
            following = [
                self._shortest[prefix + piece]
                for piece in self._pieces(prefix)
                if prefix + piece in self._shortest
            ]
            if following:
                least = 1 + min(following)
                self._shortest[prefix] = min(self._shortest.get(prefix, least), least)
        assert b"" in self._shortest, "the tokens cannot write a text"

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @cache  # noqa: B019
    def allowed(self, state: int) -> tuple[int, ...]:
        """Tokens that may come next, ascending."""
        return tuple(token for token in range(self.vocab_size) if self.advance(state, token) >= 0)

    def mask(self, state: int) -> NDArray[np.uint32]:
        return self._vocabulary.packed(self.allowed(state))

    def advance(self, state: int, token: int) -> int:
        prefix = self._prefixes[state]
        if prefix is None:
            return -1
        if token == END:
            return self.finished if prefix in self.texts else -1
        piece = self._vocabulary.bytes_of(token)
        behind = None if piece is None else prefix + piece
        return self._states[behind] if behind in self._shortest else -1

    def is_complete(self, state: int) -> bool:
        return self._prefixes[state] in self.texts

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        prefix = self._prefixes[state]
        assert prefix is not None
        live = [text for text in self.texts if text.startswith(prefix)]
        end = len(prefix)
        while prefix not in live and end - len(prefix) < limit:
            if live[0][:end] in live or len({text[end] for text in live}) > 1:
                break
            end += 1
        return live[0][len(prefix) : end]

    def tokens_to_finish(self, state: int) -> int:
        prefix = self._prefixes[state]
        return 0 if prefix is None else self._shortest[prefix]

    def text(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self._vocabulary.bytes_of(token) or b"" for token in token_ids)

    def rows(self, budget: int = 99) -> list[tuple[int, ...]]:
        """Every way to write a text in at most so many tokens, end token included."""
        found = []

        def follow(state: int, row: tuple[int, ...]) -> None:
            for token in self.allowed(state) if len(row) < budget else ():
                following = self.advance(state, token)
                if following == self.finished:
                    found.append((*row, token))
                else:
                    follow(following, (*row, token))

        follow(self.start, ())
        return found

    def _pieces(self, prefix: bytes) -> set[bytes]:
        longest = self._vocabulary.longest_token
        texts = {text for text in self.texts if text.startswith(prefix)}
        coming = {text[len(prefix) : len(prefix) + n] for text in texts for n in range(1, longest + 1)}
        known = {self._vocabulary.bytes_of(token) for token in range(self.vocab_size)}
        return {piece for piece in coming if piece in known}


def binary_texts(longest: int) -> list[bytes]:
    """All texts of the letters a and b, from one letter on."""
    return [
        bytes(letters)
        for length in range(1, longest + 1)
        for letters in itertools.product(b"ab", repeat=length)
    ]
