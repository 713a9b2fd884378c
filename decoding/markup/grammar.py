"""The annotations of one text over one vocabulary: which tokens may come, and where each leads."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.automaton.spelling import fewest_tokens
from decoding.grammar.errors import VocabularyError
from decoding.grammar.vocabulary.token_node import TokenNode
from decoding.grammar.vocabulary.vocabulary import Vocabulary
from decoding.markup.automaton import AnnotationAutomaton
from decoding.markup.boundaries import MentionRules
from decoding.markup.spelling import CLOSE, OPEN, TITLE_CLOSE, TITLE_OPEN, spelled_text
from decoding.markup.titles import LinkTitles

_MARKS = bytes([OPEN, CLOSE, TITLE_OPEN, TITLE_CLOSE])
_REFUSED = -1


class AnnotationGrammar:
    """What may be written for a text: itself, with any links that rules and titles allow.

    A `decoding.grammar.token_grammar.TokenGrammar`: greedy and sampled writing, beam search and DISC run over
    it. Not to be shared between threads; `titles` may be.

    Args:
        text: At least one character.
        titles: What links may name. Without any the text is copied.
        rules: What mentions may be.

    Raises:
        VocabularyError: the vocabulary cannot write the text, or the brackets of links.
        UnicodeEncodeError: the text has surrogates.
        ValueError: the text is empty.
    """

    start = 0

    def __init__(self, text: str, titles: LinkTitles, rules: MentionRules) -> None:
        if not text:
            raise ValueError("text: must have at least one character")
        self.vocabulary: Vocabulary = titles.searcher.vocabulary
        check_writable(spelled_text(text.encode()) + (_MARKS if len(titles) else b""), self.vocabulary)
        self._automaton = AnnotationAutomaton(text, titles, rules)
        self._copying = _fewest_from(self._automaton.text, self.vocabulary.root)
        # The most that any place from one on takes: a cut within a character may cost a token more.
        self._most_copying = [*itertools.accumulate(reversed(self._copying), max)][::-1]
        self._masks: dict[int, NDArray[np.uint32]] = {}
        self._moves: dict[tuple[int, int], int] = {}
        self._detours: dict[int, int] = {}

    @property
    def vocab_size(self) -> int:
        """Logits of the model the masks are for, V."""
        return self.vocabulary.vocab_size

    @property
    def finished(self) -> int:
        """The state behind the end token, which no bytes lead to."""
        return 1

    @property
    def copy(self) -> bytes:
        """The text without links, as it is spelled."""
        return self._automaton.text

    def copied(self, state: int) -> int | None:
        """Bytes of `copy` that are written, None inside of a link."""
        return None if state == self.finished else self._automaton.copied(_inner(state))

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Tokens that may come next, by reference: bit t % 32 of word t // 32 is token t.

        Shape: (ceil(V / 32),), uint32, read-only.
        """
        found = self._masks.get(state)
        if found is None:
            found = self._masks[state] = self._find_mask(state)
        return found

    def tokens(self, state: int) -> NDArray[np.int64]:
        """The same as `mask`, as ids, ascending. Shape: (n,), int64."""
        mask = self.mask(state)
        words = np.flatnonzero(mask)
        places = np.flatnonzero(np.unpackbits(mask[words].astype("<u4").view(np.uint8), bitorder="little"))
        found: NDArray[np.int64] = words[places // 32] * 32 + places % 32
        return found

    def advance(self, state: int, token: int) -> int:
        """The state behind one token, -1 where it is not allowed. Behind the end token: `finished`."""
        key = state, token
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = self._find_move(state, token)
        return found

    def advance_bytes(self, state: int, text: bytes) -> int:
        """The state behind some bytes, -1 where they are not allowed."""
        if state < 0 or state == self.finished:
            return state if state >= 0 and not text else _REFUSED
        inner = _inner(state)
        for byte in text:
            inner = self._automaton.step(inner, byte)
            if inner < 0:
                return _REFUSED
        return _outer(inner)

    def is_complete(self, state: int) -> bool:
        """Whether the whole text is written, so that the end token may follow; nothing else may then."""
        return state != self.finished and self._automaton.ends(_inner(state))

    def forced_bytes(self, state: int, limit: int = 1024) -> bytes:
        """The bytes that must follow whatever is chosen, and after which something may be chosen or ended."""
        written = bytearray()
        inner = _inner(state)
        while state != self.finished and len(written) < limit:
            edges = self._automaton.edges(inner)
            if edges is None or len(edges) != 1:
                break
            ((byte, inner),) = edges.items()
            written.append(byte)
        return bytes(written)

    def tokens_to_finish(self, state: int) -> int:
        """Tokens that suffice to complete the text, end token included.

        An upper bound that can always be kept: wherever it is n > 1, some allowed token leads to a state
        where it is at most n - 1. It is what a shortest way out of the link takes, and the rest of the text.
        """
        if state == self.finished:
            return 0
        found = self._detours.get(state)
        if found is None:
            inner = _inner(state)
            detour = self._automaton.detour(inner)
            after = inner
            for byte in detour:
                after = self._automaton.step(after, byte)
            cost = fewest_tokens(detour, self.vocabulary.root) if detour else 0
            found = self._detours[state] = cost + self._copying[self._automaton.written(after)] + 1
        return found

    def can_finish(self, state: int, tokens: int) -> bool:
        """Whether `tokens_to_finish` is at most `tokens`."""
        return self.tokens_to_finish(state) <= tokens

    def most_tokens_to_finish(self, state: int) -> int | None:
        """No allowed token leads to a state where `tokens_to_finish` is more.

        A bound that costs little: what is left of a mention or of a title takes no more tokens than bytes.
        """
        if state == self.finished:
            return 0
        automaton = self._automaton
        return automaton.longest_detour + self._most_copying[automaton.written(_inner(state))] + 1

    def fitting_tokens(self, state: int, left: int) -> NDArray[np.int64]:
        """Those of `tokens(state)` behind which fewer than `left` tokens can finish. Shape: (n,), int64."""
        tokens = self.tokens(state)
        # Moves are not kept: most of these tokens are never chosen.
        fits = [self.tokens_to_finish(self._find_move(state, token)) < left for token in tokens.tolist()]
        return tokens[np.array(fits, dtype=np.bool_)]

    def text(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that tokens write; the end token writes none."""
        return b"".join(map(self.vocabulary.written, token_ids))

    def _find_mask(self, state: int) -> NDArray[np.uint32]:
        if state == self.finished:
            mask = self.vocabulary.empty_mask()
        elif self.is_complete(state):
            mask = self.vocabulary.packed([self.vocabulary.end_token_id])
        else:
            found, many = self._automaton.tokens(_inner(state), self.vocabulary.root)
            mask = self.vocabulary.empty_mask() if many is None else many.copy()
            octets = mask.view(np.uint8)
            for token in found:
                octets[token >> 3] |= 1 << (token & 7)
        mask.flags.writeable = False
        return mask

    def _find_move(self, state: int, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            return _REFUSED
        if token == self.vocabulary.end_token_id:
            return self.finished if self.is_complete(state) else _REFUSED
        written = self.vocabulary.bytes_of(token)
        return _REFUSED if written is None else self.advance_bytes(state, written)


def check_writable(text: bytes, vocabulary: Vocabulary) -> None:
    """Check that every byte or character of a text is a token by itself, so that nothing is a dead end.

    Raises:
        VocabularyError: names the first one that is not.
    """
    missing = vocabulary.writable.missing(text)
    if missing:
        shown = missing.decode("utf-8", "backslashreplace")
        raise VocabularyError(f"the tokenizer cannot write {shown!r} (hex {missing.hex(' ')})")


# The automaton's states begin at 0, and 1 is the grammar's own: the state behind the end token.
def _inner(state: int) -> int:
    return state - 1 if state else 0


def _outer(inner: int) -> int:
    return inner + 1 if inner else 0


def _fewest_from(text: bytes, root: TokenNode) -> list[int]:
    """For every place the fewest tokens that write the text from it on. Length len(text) + 1."""
    impossible = len(text) + 1
    fewest = [impossible] * len(text) + [0]
    for begin in range(len(text) - 1, -1, -1):
        node: TokenNode | None = root
        for place in range(begin, len(text)):
            node = node.children.get(text[place]) if node is not None else None
            if node is None:
                break
            if node.tokens:
                fewest[begin] = min(fewest[begin], fewest[place + 1] + 1)
    return fewest
