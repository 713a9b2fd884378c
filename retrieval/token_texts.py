"""Tokens as texts that people can read, one by one."""

from __future__ import annotations

from functools import cached_property

from decoding.grammar.errors import VocabularyError
from decoding.grammar.vocabulary.token_bytes import read_token_bytes
from retrieval.text import TextTokenizer


class TokenTexts:
    """What every token of a tokenizer writes. Reads the vocabulary when the first one is asked for.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _bytes(self) -> list[bytes | None]:
        """What tokens write within a text, by id; nothing of a tokenizer whose decoder is not known."""
        try:
            return read_token_bytes(self._tokenizer.serialized)
        except VocabularyError:
            return []

    def text(self, token_id: int) -> str:
        """Return the text of one token.

        Blanks at its beginning are kept, and part of a character is U+FFFD. A special token has its name, and
        so has any token of a tokenizer that does not say how its tokens are joined; a token that the
        tokenizer lacks is an empty text.
        """
        written = self._bytes[token_id] if token_id < len(self._bytes) else None
        if written is not None:
            return written.decode("utf-8", "replace")
        return self._tokenizer.token_name(token_id)
