"""Reads which bytes every token of a tokenizer writes, and which texts the tokens can write at all.

Bytes come from the tokenizer's own alphabet, never from decoding single tokens: a token that is part of a
character decodes to a replacement character, and hundreds of tokens to the same one. A token's bytes are
those it writes within a text: the blank that some decoders drop before a text's first token does not matter,
since an answer is JSON and its first token is not the first of the sequence.

No prefix that the tokens can write may be a dead end. A vocabulary of bytes writes every text whose every
byte is a token by itself; what a token leaves unfinished, others can finish byte by byte. A vocabulary of
characters writes every text whose every character is a token by itself. Tokens with any other byte or
character, and in a vocabulary of characters those with parts of one, are dropped, because nothing might be
able to go on behind them.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.regular.byte_dfa import ByteDfa
from genret.decoding.grammar.token_trie import FlatTrie, TokenNode

# A packed mask is words of this many tokens.
WORD_BITS = 32
_SET_ONE_BY_ONE = 500
_CONTINUATION = bytes(range(0x80, 0xC0))


class Vocabulary:
    """The bytes every token writes, and a trie over them.

    Args:
        token_bytes: By token id; None for tokens that stand for no text and are never allowed. Ids from its
            end to `vocab_size` stand for none either: models' logits are often padded.
        end_token_id: The token that ends an answer; writes nothing.
        vocab_size: Logits of the model, V.

    Attributes:
        num_words: Words of a packed mask, ceil(V / 32).
        writable: The units that texts can be written of.
        trie: Trie of the bytes of all tokens that may be allowed.
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
            # Nothing might be able to go on behind tokens with other units.
            self._texts = [None if text and self.writable.missing(text) else text for text in self._texts]
        self.trie = FlatTrie(self._texts)
        if not len(self.trie.tokens):
            raise VocabularyError("no token of the tokenizer writes anything")
        self.root = TokenNode(self.trie, (0,))
        self._rests: WeakValueDictionary[tuple[int, ...], TokenNode] = WeakValueDictionary()

    @classmethod
    def from_tokenizer(cls, serialised: str, end_token_id: int, vocab_size: int) -> Vocabulary:
        """Read the bytes of a tokenizer's tokens out of its file, `tokenizer.json`.

        Raises:
            VocabularyError: see the constructor; or the file is of a kind that is not known.
        """
        return cls(read_token_bytes(serialised), end_token_id, vocab_size)

    @cached_property
    def writable_texts(self) -> ByteDfa | None:
        """The texts that can be written at all; None: all."""
        return None if self.writable.is_everything else self.writable.texts()

    def require(self, text: bytes, is_json: bool = True) -> None:
        """Raise VocabularyError, with the first character or byte missing, unless a text can be written.

        A text that is not `is_json` may have control characters.
        """
        missing = b"" if is_json and self.writable.is_everything else self.writable.missing(text)
        if missing:
            shown = missing.decode("utf-8", "backslashreplace")
            raise VocabularyError(f"the tokenizer cannot write {shown!r} (hex {missing.hex(' ')})")

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that a token writes; None: it is never allowed."""
        return self._texts[token]

    def written(self, token: int) -> bytes:
        """The bytes that a token writes, b"" for one that is never allowed."""
        return self._texts[token] or b""

    @cached_property
    def fingerprint(self) -> str:
        """Equal for vocabularies that allow the same tokens with the same bytes, for as many logits."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{self.vocab_size} {self.end_token_id} ".encode())
        texts = [text or b"" for text in self._texts]
        digest.update(np.array([len(text) for text in texts], dtype="<u4").tobytes())
        digest.update(b"".join(texts))
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

    @cached_property
    def nothing(self) -> NDArray[np.uint32]:
        """The read-only mask that allows no token. Shape: (ceil(V / 32),), uint32."""
        return self.packed(())

    def packed(self, tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.uint32]:
        """A read-only mask that allows these tokens. Shape: (ceil(V / 32),), uint32."""
        if len(tokens) <= _SET_ONE_BY_ONE:
            octets = bytearray(self.num_words * WORD_BITS // 8)
            for token in tokens:
                octets[token >> 3] |= 1 << (token & 7)
            return np.frombuffer(bytes(octets), "<u4").astype(np.uint32, copy=False)
        allowed = np.zeros(self.num_words * WORD_BITS, dtype=np.bool_)
        allowed[np.asarray(tokens, dtype=np.int64)] = True
        mask = np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32, copy=False)
        mask.flags.writeable = False
        return mask

    def rest(self, positions: Iterable[int]) -> TokenNode:
        """The places of the trie right behind texts that have ended, at least one, laid over each other.

        Tokens that end at these places themselves do not count. The same node for the same places, as long
        as somebody holds it.
        """
        key = tuple(sorted(set(positions)))
        node = self._rests.get(key)
        if node is None:
            node = self._rests.setdefault(key, TokenNode(self.trie, key, has_tokens=False))
        return node


def tokens_of(mask: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the tokens that a packed mask allows, ascending. Shape: (n,), int64."""
    words = np.flatnonzero(mask)
    bits = np.flatnonzero(np.unpackbits(mask[words].astype("<u4").view(np.uint8), bitorder="little"))
    tokens: NDArray[np.int64] = words[bits // WORD_BITS] * WORD_BITS + bits % WORD_BITS
    return tokens


# The bytes of UTF-8.
_ALL_BYTES = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
# JSON writes control characters with escapes.
_NEEDED_BYTES = _ALL_BYTES - set(range(0x20))


@dataclass(frozen=True, slots=True)
class Writable:
    """The units that texts can be written of."""

    units: frozenset[bytes]  # The single bytes, or the single characters, that are tokens
    is_of_bytes: bool
    is_everything: bool = False  # Whether every JSON text can be written

    @property
    def has_all_bytes(self) -> bool:
        """Whether every text of UTF-8 can be written as it is, control characters included."""
        return self.is_of_bytes and {unit[0] for unit in self.units} >= _ALL_BYTES

    def missing(self, text: bytes) -> bytes:
        """The first byte or character of a text that cannot be written, b"" if all of it can.

        A byte of a text that is not UTF-8 is a character of its own.
        """
        return next((unit for unit in self._units_of(text) if unit not in self.units), b"")

    def texts(self) -> ByteDfa:
        """All texts that can be written, the empty one included, with label 0."""
        units = ByteDfa.literals((unit, 0) for unit in self.units)
        # No unit begins another one, so behind each a text begins anew.
        rows = [
            [(first, last, 0 if units.ends[target] >= 0 else target) for first, last, target in row]
            for row in units.rows
        ]
        return ByteDfa.from_rows(rows, [0] + [-1] * (len(rows) - 1))

    def _units_of(self, text: bytes) -> Sequence[bytes]:
        if self.is_of_bytes:
            return [text[place : place + 1] for place in range(len(text))]
        return [unit.encode("utf-8", "surrogateescape") for unit in text.decode("utf-8", "surrogateescape")]


def find_writable(texts: Sequence[bytes | None]) -> Writable:
    """Find the units of a vocabulary, given its tokens' bytes: bytes or characters, whichever write more."""
    single = frozenset(text for text in texts if text and len(text) == 1)
    of_bytes = Writable(single, True, {byte[0] for byte in single} >= _NEEDED_BYTES)
    if of_bytes.is_everything:
        return of_bytes
    characters = frozenset(text for text in texts if text and len(text) <= 4 and _is_character(text))
    if _count_characters({byte[0] for byte in single}) >= len(characters):
        return of_bytes
    return Writable(characters, is_of_bytes=False)


def _is_character(text: bytes) -> bool:
    try:
        return len(text.decode()) == 1
    except UnicodeDecodeError:
        return False


def _count_characters(single: set[int]) -> int:
    """The number of characters that bytes make; overlong forms and surrogates are counted as well."""
    tails = len(single & set(range(0x80, 0xC0)))
    lengths = ((0x00, 0x80), (0xC2, 0xE0), (0xE0, 0xF0), (0xF0, 0xF5))
    return sum(len(single & set(range(*leads))) * tails**more for more, leads in enumerate(lengths))


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# A decoder's effect on one token.
_Step = Callable[[str], "str | bytes"]


def read_token_bytes(serialised: str) -> list[bytes | None]:
    """Read the bytes of every token.

    Tokens of WordPiece are glued together: a token without the prefix of continuations writes no blank
    before it, so that such a vocabulary writes no blanks at all.

    Args:
        serialised: The contents of a `tokenizer.json`.

    Returns:
        By token id, up to the highest one; None for special tokens, the unknown token and unused ids.

    Raises:
        VocabularyError: the file is no tokenizer, or of a kind that is not known.
    """
    try:
        tokenizer = json.loads(serialised)
    except ValueError as error:
        raise VocabularyError(f"the tokenizer's file is not JSON: {error}") from None
    if not isinstance(tokenizer, dict) or not isinstance(tokenizer.get("model"), dict):
        raise VocabularyError("the tokenizer's file holds no model")
    model = tokenizer["model"]
    texts = _read_vocabulary(model)
    steps = _read_steps(tokenizer)
    unknown = _unknown_token(model, texts)
    added = {token["id"]: token for token in tokenizer.get("added_tokens") or ()}
    size = max([*texts, *added], default=-1) + 1
    found: list[bytes | None] = [None] * size
    for token, text in texts.items():
        if token != unknown:
            found[token] = _spell(text, steps)
    for token, entry in added.items():
        found[token] = None if entry.get("special") or token == unknown else entry["content"].encode()
    return found


def _read_vocabulary(model: Mapping[str, Any]) -> dict[int, str]:
    """The model's own tokens by id."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):  # BPE, WordPiece, WordLevel
        return {token: text for text, token in vocabulary.items()}
    if isinstance(vocabulary, list):  # Unigram
        return {token: text for token, (text, _) in enumerate(vocabulary)}
    raise VocabularyError(f"tokenizer model {model.get('type')!r}: it has no vocabulary")


def _unknown_token(model: Mapping[str, Any], texts: Mapping[int, str]) -> int | None:
    """The token for what the tokenizer cannot write; it stands for no text."""
    number = model.get("unk_id")
    if number is not None:
        return int(number)
    name = model.get("unk_token")
    return next((token for token, text in texts.items() if text == name), None)


def _spell(text: str, steps: list[_Step]) -> bytes:
    """Apply the decoders one after the other; what has become bytes stays as it is."""
    for step in steps:
        changed = step(text)
        if isinstance(changed, bytes):
            return changed
        text = changed
    return text.encode("utf-8", "surrogatepass")


def _read_steps(tokenizer: Mapping[str, Any]) -> list[_Step]:
    """The effects of the tokenizer's decoders on one token within a text."""
    decoder = tokenizer.get("decoder")
    if decoder is None:
        return _steps_without_decoder(tokenizer)
    steps: list[_Step] = []
    for part in _flat(decoder, "decoders"):
        kind = part.get("type")
        if kind == "Fuse":
            break  # what follows concerns a text as a whole: its first and last blanks
        steps.append(_read_step(kind, part))
    return steps


def _steps_without_decoder(tokenizer: Mapping[str, Any]) -> list[_Step]:
    """Tell from the splitter; without either, tokens would be joined by blanks, which is no spelling."""
    for part in _flat(tokenizer.get("pre_tokenizer") or {}, "pretokenizers"):
        if part.get("type") == "ByteLevel":
            return [_from_byte_alphabet]
        if part.get("type") == "Metaspace":
            return [_read_step("Metaspace", part)]
    raise VocabularyError("the tokenizer has no decoder that says how its tokens are joined")


def _flat(part: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The parts of sequences of sequences."""
    if part.get("type") != "Sequence":
        return [part] if part else []
    return [inner for each in part.get(name, ()) for inner in _flat(each, name)]


def _read_step(kind: object, part: Mapping[str, Any]) -> _Step:
    if kind == "ByteLevel":
        return _from_byte_alphabet
    if kind == "ByteFallback":
        return _from_byte_token
    if kind == "Metaspace":
        blank = part.get("replacement", "\u2581")
        return lambda text: text.replace(blank, " ")
    if kind == "Replace":
        pattern, content = part.get("pattern"), part.get("content", "")
        if isinstance(pattern, dict) and isinstance(pattern.get("String"), str):
            literal = pattern["String"]
            return lambda text: text.replace(literal, content)
    if kind == "Strip":
        return _strip_step(part)
    if kind == "WordPiece":
        prefix = part.get("prefix", "##")
        return lambda text: text.removeprefix(prefix)
    if kind == "BPEDecoder":
        suffix = part.get("suffix", "</w>")
        return lambda text: text[: -len(suffix)] + " " if suffix and text.endswith(suffix) else text
    raise VocabularyError(f"the tokenizer's decoder {kind!r} is not known, or not in this use")


def _strip_step(part: Mapping[str, Any]) -> _Step:
    """Strip a character from both sides of every token, as often as the decoder says."""
    content, start, stop = re.escape(part.get("content", " ")), part.get("start", 0), part.get("stop", 0)
    ends = re.compile(rf"\A{content}{{0,{int(start)}}}|{content}{{0,{int(stop)}}}\Z")
    return lambda text: ends.sub("", text)


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes: printable ones of Latin-1 are themselves."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1)]
    printable += range(ord("\u00ae"), ord("\u00ff") + 1)
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update({chr(256 + number): byte for number, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()
_TO_LATIN_1 = str.maketrans({character: chr(byte) for character, byte in _BYTE_OF.items()})
_IS_OF_ALPHABET = re.compile("[" + re.escape("".join(_BYTE_OF)) + "]*").fullmatch


def _from_byte_alphabet(text: str) -> bytes:
    """Read a token of byte-level BPE; one with any other character stands for itself."""
    if _IS_OF_ALPHABET(text):
        return text.translate(_TO_LATIN_1).encode("latin-1")
    return text.encode("utf-8", "surrogatepass")


def _from_byte_token(text: str) -> str | bytes:
    """Read a token of byte fallback, such as `<0x0A>`."""
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text
