"""A tokenizer's tokens as bytes: what a grammar knows of a tokenizer."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from decoding.grammar.errors import VocabularyError
from decoding.grammar.regular.byte_dfa import ByteDfa
from decoding.grammar.vocabulary.flat_trie import FlatTrie
from decoding.grammar.vocabulary.token_bytes import read_token_bytes
from decoding.grammar.vocabulary.token_node import TokenNode
from decoding.grammar.vocabulary.writable import find_writable

# A packed mask is words of this many tokens.
WORD_BITS = 32
_CONTINUATION = bytes(range(0x80, 0xC0))


class Vocabulary:
    """The bytes every token writes, and a trie over them.

    Args:
        token_bytes: By token id; None for tokens that stand for no text and are never allowed. Ids from its
            end to `vocab_size` stand for none either: models' logits are often padded.
        end_token_id: The token that ends an answer; writes nothing.
        vocab_size: Logits of the model, V.

    Attributes:
        end_token_id: As given.
        vocab_size: As given.
        num_words: Words of a packed mask, ceil(V / 32).
        writable: Which texts it can write at all.
        trie: Of the bytes of all tokens that may be allowed.
        root: Its root.

    Raises:
        VocabularyError: there are more tokens than logits, or the end token is none of them.
    """

    def __init__(self, token_bytes: Sequence[bytes | None], end_token_id: int, vocab_size: int) -> None:
        if not 0 <= end_token_id < vocab_size:
            raise VocabularyError(f"end token {end_token_id}: expected one of {vocab_size} logits")
        self._texts = [text or None for text in token_bytes]
        if len(self._texts) > vocab_size and any(self._texts[vocab_size:]):
            raise VocabularyError(f"{len(self._texts)} tokens do not fit {vocab_size} logits")
        del self._texts[vocab_size:]
        self._texts += [None] * (vocab_size - len(self._texts))
        self._texts[end_token_id] = None
        self.end_token_id = end_token_id
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // WORD_BITS)
        self.writable = find_writable(self._texts)
        if not self.writable.is_everything:
            self._drop_unwritable()
        self.trie = FlatTrie(self._texts)
        if not len(self.trie.tokens):
            raise VocabularyError("no token of the tokenizer writes anything")
        self.root = TokenNode(self.trie, (0,))
        self._rests: WeakValueDictionary[tuple[int, ...], TokenNode] = WeakValueDictionary()

    @classmethod
    def from_tokenizer(cls, serialised: str, end_token_id: int, vocab_size: int) -> Vocabulary:
        """Read the bytes of a tokenizer's tokens out of its file, `tokenizer.json`.

        Raises:
            VocabularyError: as the constructor; or the file is of a kind that is not known.
        """
        return cls(read_token_bytes(serialised), end_token_id, vocab_size)

    def _drop_unwritable(self) -> None:
        """Refuse tokens behind which nothing might be able to go on."""
        for token, text in enumerate(self._texts):
            if text is not None and self.writable.missing(text):
                self._texts[token] = None

    @cached_property
    def writable_texts(self) -> ByteDfa | None:
        """The texts that can be written at all, None: all. What a leaf allows has to be among them."""
        return None if self.writable.is_everything else self.writable.texts()

    def require(self, text: bytes) -> None:
        """Check that a text can be written.

        Raises:
            VocabularyError: names the first character, or byte, that cannot.
        """
        missing = b"" if self.writable.is_everything else self.writable.missing(text)
        if missing:
            shown = missing.decode("utf-8", "backslashreplace")
            raise VocabularyError(f"the tokenizer cannot write {shown!r} (hex {missing.hex(' ')})")

    def bytes_of(self, token: int) -> bytes | None:
        """What a token writes; None: nothing, it is never allowed."""
        return self._texts[token]

    def written(self, token: int) -> bytes:
        """What a token writes, b"" for one that is never allowed."""
        return self._texts[token] or b""

    @cached_property
    def fingerprint(self) -> str:
        """Equal for vocabularies that allow the same tokens with the same bytes, for as many logits."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.vocab_size} {self.end_token_id} ".encode())
        digest.update(np.array([len(text or b"") for text in self._texts], dtype="<u4").tobytes())
        digest.update(b"".join(text or b"" for text in self._texts))
        return digest.hexdigest()

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return self.trie.max_depth

    @cached_property
    def longest_token_characters(self) -> int:
        """Most code points one token can begin, those whose last bytes it leaves to others included."""
        return max(len(text.translate(None, _CONTINUATION)) for text in self._texts if text)

    @property
    def num_bytes(self) -> int:
        """Memory of the trie and of the tokens' bytes; nodes made on demand are not counted."""
        texts = sum(sys.getsizeof(text) for text in self._texts if text)
        return self.trie.num_bytes + texts + 8 * len(self._texts)

    def empty_mask(self) -> NDArray[np.uint32]:
        """A mask that allows no token. Shape: (ceil(V / 32),), uint32."""
        return np.zeros(self.num_words, dtype=np.uint32)

    @cached_property
    def nothing(self) -> NDArray[np.uint32]:
        """The mask that allows no token, for all who do not change it. Shape: (ceil(V / 32),), uint32."""
        mask = self.empty_mask()
        mask.flags.writeable = False
        return mask

    def packed(self, tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint32]:
        """A mask that allows these tokens. Shape: (ceil(V / 32),), uint32."""
        allowed = np.zeros(self.num_words * WORD_BITS, dtype=np.bool_)
        allowed[np.asarray(tokens, dtype=np.int64)] = True
        return np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32, copy=False)

    def rest(self, positions: Iterable[int]) -> TokenNode:
        """The places of the trie right behind texts that have ended, laid over each other.

        Tokens that end at these places themselves do not count. The same node for the same places, as long
        as somebody holds it.

        Args:
            positions: In the flat trie; at least one.
        """
        key = tuple(sorted(set(positions)))
        node = self._rests.get(key)
        if node is None:
            node = self._rests.setdefault(key, TokenNode(self.trie, key, has_tokens=False))
        return node
