"""Finds the tokens that the tokenizer itself would write for bytes that are known to come.

Appended tokens must be those of the whole text as the tokenizer cuts it, whatever follows: a model has seen
no others. A cut depends on the text on both sides, so neither the first nor the last tokens of
`encode(bytes)` are certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from weakref import WeakKeyDictionary

from genret.decoding.grammar.constraint import TokenGrammar
from genret.decoding.grammar.token_trie import TokenNode
from genret.decoding.grammar.vocabulary import Vocabulary

# Tokens before the new ones that are cut along with them. Cuts depend on their word and the blanks before it,
# which take far fewer.
CONTEXT_TOKENS = 32
# Spans remembered per grammar; a schema has some dozens, with a few contexts each.
REMEMBERED = 1 << 11

Encode = Callable[[bytes], Sequence[int] | None]
# Certain tokens, and likely ones behind them.
_Spelled = tuple[tuple[int, ...], tuple[int, ...]]


class Speller:
    """Spells forced spans as the tokenizer would. Thread-safe; to be kept between requests.

    Args:
        encode: Returns the tokenizer's tokens of a text, without special tokens; None if it has none, as for
            invalid UTF-8.
        vocabulary: The bytes of the tokens.
    """

    def __init__(self, encode: Encode, vocabulary: Vocabulary) -> None:
        self._encode = encode
        self._vocabulary = vocabulary
        self._spans: WeakKeyDictionary[TokenGrammar, dict[tuple[int, tuple[int, ...]], _Spelled]]
        self._spans = WeakKeyDictionary()
        self._is_pair = lru_cache(REMEMBERED)(self._cuts_apart)

    def span(self, grammar: TokenGrammar, state: int, written: Sequence[int]) -> tuple[int, ...]:
        """Return the certain tokens of the bytes forced behind `written`; often fewer than spell them all, or
        none.
        """
        return self._spelled(grammar, state, written)[0]

    def likely(self, grammar: TokenGrammar, state: int, written: Sequence[int]) -> tuple[int, ...]:
        """Return the likely tokens behind `span` that end within the forced bytes; arguments as there."""
        return self._spelled(grammar, state, written)[1]

    def _spelled(self, grammar: TokenGrammar, state: int, written: Sequence[int]) -> _Spelled:
        context = self._context(written)
        spans = self._spans.setdefault(grammar, {})
        key = state, context
        known = spans.get(key)
        if known is None:
            coming = grammar.forced_bytes(state)
            known = self._find(grammar, state, context, coming) if coming else ((), ())
            if len(spans) >= REMEMBERED:
                spans.clear()
            spans[key] = known
        return known

    def _context(self, written: Sequence[int]) -> tuple[int, ...]:
        """The last tokens, from the first that does not begin within a character."""
        context = tuple(written[-CONTEXT_TOKENS:])
        while context and _continues(self._vocabulary.bytes_of(context[0]) or b""):
            context = context[1:]
        return context

    def _find(self, grammar: TokenGrammar, state: int, context: tuple[int, ...], coming: bytes) -> _Spelled:
        before = b"".join(self._vocabulary.bytes_of(token) or b"" for token in context)
        text = before + coming
        cut = self._cut(text[: _whole_characters(text)])
        if cut is None:
            return (), ()
        tokens, ends = cut
        if before and len(before) not in ends:
            return (), ()  # the tokenizer would not have stopped here
        first = ends.index(len(before)) + 1 if before else 0
        certain = self._first_open(text, len(before), grammar, state)
        last = first
        for place in range(first, len(tokens)):
            if ends[place] > certain:
                break
            if self._stands(tokens[place], text[ends[place] :]):
                last = place + 1
        return tuple(tokens[first:last]), tuple(tokens[last:])

    def _cut(self, text: bytes) -> tuple[list[int], list[int]] | None:
        """The tokens of a text and where each ends; None if they do not write the very same bytes."""
        encoded = self._encode(text)
        if encoded is None:
            return None
        tokens = list(encoded)
        pieces = [self._vocabulary.bytes_of(token) or b"" for token in tokens]
        if b"".join(pieces) != text:
            return None  # changed by a normaliser, or partly encoded as a special token
        return tokens, list(accumulate(map(len, pieces)))

    def _first_open(self, text: bytes, begin: int, grammar: TokenGrammar, state: int) -> int:
        """Return the first place from which a token may extend beyond the text: cuts behind it are not
        certain.

        The forced part begins at `begin`, where the grammar is in `state`.
        """
        behind = grammar.advance_bytes(state, text[begin:])
        first = max(len(text) - self._vocabulary.longest_token + 1, 0)
        for start in range(first, len(text)):
            node = self._node(text[start:])
            if node is None or not node.children:
                continue
            if not any(grammar.advance_bytes(behind, bytes([byte])) >= 0 for byte in node.children):
                continue
            if start < begin or self._is_allowed(
                node, grammar, grammar.advance_bytes(state, text[begin:start])
            ):
                return start
        return len(text)

    @staticmethod
    def _is_allowed(node: TokenNode, grammar: TokenGrammar, state: int) -> bool:
        """Whether one of the longer tokens below a node is allowed."""
        (position,) = node.positions
        trie = node.trie
        longer = trie.tokens[trie.token_begin[position + 1] : trie.token_begin[trie.end[position]]]
        mask = grammar.mask(state)
        return bool(((mask[longer >> 5] >> (longer & 31).astype(mask.dtype)) & 1).any())

    def _stands(self, token: int, rest: bytes) -> bool:
        """Whether the cut behind a token stays, whichever token of known bytes comes next.

        Merges within a word are decided by neighbours: two tokens that the tokenizer cuts alike when it sees
        nothing else are cut alike in every text.
        """
        node: TokenNode | None = self._vocabulary.root
        for byte in rest:
            node = node.children.get(byte) if node is not None else None
            if node is None:
                return True
            if not all(self._is_pair(token, following) for following in node.tokens):
                return False
        return True

    def _cuts_apart(self, *pair: int) -> bool:
        """Whether the tokenizer writes the bytes of two tokens as these two."""
        text = b"".join(self._vocabulary.bytes_of(token) or b"" for token in pair)
        return tuple(self._encode(text) or ()) == pair

    def _node(self, text: bytes) -> TokenNode | None:
        node: TokenNode | None = self._vocabulary.root
        for byte in text:
            node = node.children.get(byte) if node is not None else None
            if node is None:
                return None
        return node


def _continues(text: bytes) -> bool:
    """Whether a text begins within a character of UTF-8."""
    return bool(text) and text[0] & 0xC0 == 0x80


def _whole_characters(text: bytes) -> int:
    """Length of a text without an incomplete last character."""
    for last in range(len(text) - 1, max(len(text) - 5, -1), -1):
        byte = text[last]
        if byte & 0xC0 != 0x80:
            size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(text) if last + size <= len(text) else last
    return len(text)
