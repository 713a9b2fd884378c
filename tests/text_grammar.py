"""Grammars that are plain sets of texts, small enough to be enumerated, and tiny vocabularies for them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.constraint import TokenGrammar
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.regex_texts import all_texts

END = 0


def pieces(texts: Sequence[bytes], vocab_size: int | None = None) -> Vocabulary:
    """A vocabulary of a few tokens: 0 ends, the texts follow, and behind them are logits without a token."""
    return Vocabulary([None, *texts], END, vocab_size or len(texts) + 1)


class TextGrammar:
    """A set of texts (`decoding.grammar.json_grammar.Grammar`), by looking at all of them.

    Args:
        vocabulary: Its tokens can write every text.
        texts: Not empty.
    """

    start = 0
    finished = 1

    def __init__(self, vocabulary: Vocabulary, texts: Iterable[bytes]) -> None:
        self.vocabulary = vocabulary
        self._tokens: dict[bytes, list[int]] = {}
        for token in range(vocabulary.vocab_size):
            if piece := vocabulary.bytes_of(token):
                self._tokens.setdefault(piece, []).append(token)
        self.texts = sorted(set(texts))
        self._all = frozenset(self.texts)
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
        return self.vocabulary.vocab_size

    @cache  # noqa: B019
    def allowed(self, state: int) -> tuple[int, ...]:
        """Tokens that may come next, ascending."""
        prefix = self._prefixes[state]
        if prefix is None:
            return ()
        end = [self.vocabulary.end_token_id] if self.is_complete(state) else []
        pieces = [piece for piece in self._pieces(prefix) if prefix + piece in self._shortest]
        return tuple(sorted(end + [token for piece in pieces for token in self._tokens[piece]]))

    def tokens(self, state: int) -> NDArray[np.int64]:
        return np.array(self.allowed(state), dtype=np.int64)

    def can_finish(self, state: int, tokens: int) -> bool:
        return self.tokens_to_finish(state) <= tokens

    def fitting_tokens(self, state: int, left: int) -> NDArray[np.int64]:
        fitting = [t for t in self.allowed(state) if self.tokens_to_finish(self.advance(state, t)) < left]
        return np.array(fitting, dtype=np.int64)

    def mask(self, state: int) -> NDArray[np.uint32]:
        return self.vocabulary.packed(self.allowed(state))

    def advance(self, state: int, token: int) -> int:
        prefix = self._prefixes[state]
        if prefix is None:
            return -1
        if token == self.vocabulary.end_token_id:
            return self.finished if prefix in self._all else -1
        piece = self.vocabulary.bytes_of(token)
        behind = None if piece is None else prefix + piece
        return self._states[behind] if behind in self._shortest else -1

    def advance_bytes(self, state: int, text: bytes) -> int:
        prefix = self._prefixes[state] if state >= 0 else None
        return -1 if prefix is None else self._states.get(prefix + text, -1)

    def is_complete(self, state: int) -> bool:
        return self._prefixes[state] in self._all

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        prefix = self._prefixes[state]
        assert prefix is not None
        live = self._live(prefix)
        first, last, end = live[0], live[-1], len(prefix)
        while end < min(len(first), len(prefix) + limit) and first[end] == last[end]:
            end += 1
        return first[len(prefix) : end]

    def tokens_to_finish(self, state: int) -> int:
        prefix = self._prefixes[state]
        return 0 if prefix is None else self._shortest[prefix]

    def text(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.vocabulary.bytes_of(token) or b"" for token in token_ids)

    def _live(self, prefix: bytes) -> list[bytes]:
        """The texts that begin so."""
        begin = bisect_left(self.texts, prefix)
        return self.texts[begin : bisect_left(self.texts, prefix + b"\xff", begin)]

    def _pieces(self, prefix: bytes) -> set[bytes]:
        """What tokens could write next."""
        longest = range(1, self.vocabulary.longest_token + 1)
        coming = {text[len(prefix) : len(prefix) + n] for text in self._live(prefix) for n in longest}
        return coming & self._tokens.keys()


@cache
def rows_of(grammar: TokenGrammar, budget: int = 99) -> tuple[tuple[int, ...], ...]:
    """Every way to write a text in at most so many tokens, end token included."""
    found = []

    def follow(state: int, row: tuple[int, ...]) -> None:
        for token in grammar.tokens(state).tolist() if len(row) < budget else ():
            following = grammar.advance(state, token)
            if following == grammar.finished:
                found.append((*row, token))
            else:
                follow(following, (*row, token))

    follow(grammar.start, ())
    return tuple(found)


def binary_texts(longest: int) -> list[bytes]:
    """All texts of the letters a and b, from one letter on."""
    return [text.encode() for text in all_texts("ab", longest) if text]


def longest_match(vocabulary: Vocabulary, text: bytes) -> list[int]:
    """Encode a text as a tokenizer that takes the longest piece from the left."""
    pieces = {piece: t for t in range(vocabulary.vocab_size) if (piece := vocabulary.bytes_of(t))}
    tokens = []
    while text:
        best = max((piece for piece in pieces if text.startswith(piece)), key=len)
        tokens.append(pieces[best])
        text = text[len(best) :]
    return tokens
