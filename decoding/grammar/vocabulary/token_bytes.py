"""Which bytes every token of a tokenizer stands for, read from the tokenizer's file.

Bytes come from the tokenizer's own alphabet, never from decoding single tokens: a token that is part of a
character decodes to a replacement character, and hundreds of tokens to the same one.

A token's bytes are those it writes within a text. Some decoders drop a blank before the first token of a
text; an answer is JSON and begins with none, and the first token of an answer is not the first of the
sequence, so that does not concern us.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from decoding.grammar.errors import VocabularyError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# How one decoder changes the bytes of one token.
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
    """Return the model's own tokens by id."""
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):  # BPE, WordPiece, WordLevel
        return {token: text for text, token in vocabulary.items()}
    if isinstance(vocabulary, list):  # Unigram
        return {token: text for token, (text, _) in enumerate(vocabulary)}
    raise VocabularyError(f"tokenizer model {model.get('type')!r}: it has no vocabulary")


def _unknown_token(model: Mapping[str, Any], texts: Mapping[int, str]) -> int | None:
    """Return the token for what the tokenizer cannot write; it stands for no text."""
    number = model.get("unk_id")
    if number is not None:
        return int(number)
    name = model.get("unk_token")
    if name is None:
        return None
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
    """Return what the tokenizer's decoders do to one token within a text."""
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
    """List the parts of sequences of sequences."""
    if part.get("type") != "Sequence":
        return [part] if part else []
    return [inner for each in part.get(name, ()) for inner in _flat(each, name)]


def _read_step(kind: object, part: Mapping[str, Any]) -> _Step:
    """Return what one decoder does to one token."""
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
    """Return how a character is stripped from both sides of every token."""
    content, start, stop = part.get("content", " "), int(part.get("start", 0)), int(part.get("stop", 0))

    def strip(text: str) -> str:
        first, last = 0, len(text)
        while first < min(start, last) and text[first] == content:
            first += 1
        while last > first and len(text) - last < stop and text[last - 1] == content:
            last -= 1
        return text[first:last]

    return strip


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
