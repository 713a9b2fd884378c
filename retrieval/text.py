"""Turns text into token ids: the tokenizer, and how a title is rendered after a prompt.

No torch and no transformers here: the index builder tokenises millions of titles with this module alone.
Users' text (queries, titles) never turns into special tokens; markup of a template does.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from genret.retrieval.arguments import check_text
from genret.retrieval.checkpoints import find_checkpoint, json_object, local_folder
from genret.retrieval.errors import InputError, ModelError

# End-of-sequence names tried, in order, when a bare tokenizer.json says nothing about its special tokens.
_COMMON_END_TOKENS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "[SEP]")

_MAX_REMEMBERED = 64  # texts of templates
# Least bytes that a token is allowed where one may stand for any text: no text has words as long on average.
_BYTES_OF_UNBOUNDED = 256


@dataclass(frozen=True, slots=True)
class Rendering:
    """The text around a title behind a prompt, and the token that ends it."""

    context: str = ""  # last plain text of the prompt; titles are tokenised after it and it is stripped again
    prefix: str = ""  # text put in front of every title, e.g. " " or " <"
    suffix: str = ""  # text put behind every title, e.g. ">"
    # Token that closes a row, or text that is one token, e.g. a line break; None: the tokenizer's end token.
    end_token: str | None = None

    def to_json(self) -> dict[str, str | None]:
        """Return the fields as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Rendering:
        """Read the object written by `to_json`; InputError for an unknown key or a wrong type."""
        if not isinstance(value, dict):
            raise InputError("rendering", f"expected an object, got {type(value).__name__}")
        unknown = sorted(set(value) - {"context", "prefix", "suffix", "end_token"})
        if unknown:
            raise InputError("rendering", f"unknown keys {unknown}")
        for key, text in value.items():
            if not (key == "end_token" and text is None):
                check_text(f"rendering.{key}", text)
        return cls(**value)


class TextTokenizer:
    """A fast tokenizer with two voices: plain text, and template markup with special tokens.

    Args:
        tokenizer: The `tokenizers` object; it is copied, padding and truncation are switched off.
        end_token: The tokenizer's end-of-sequence token, or None when it is not known.
        source: Its file, or the folder of the checkpoint; for a GGUF file or a hub id a folder in a cache.

    Attributes:
        name: The user's name for it, for messages.
        frame: Special tokens that the tokenizer itself puts before and behind a text.
        unknown_id: Token of text that the vocabulary cannot spell. Tokenizers that fall back to bytes may
            have such a token; they never write it.
        max_token_bytes: Most bytes of text in one token: a text of more bytes than `n` times as many has more
            than `n` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, end_token: str | None, source: str) -> None:
        serialized = tokenizer.to_str()
        self._markup = Tokenizer.from_str(serialized)
        self._plain = Tokenizer.from_str(_without_special_pieces(serialized))
        for voice in (self._markup, self._plain):
            voice.no_padding()
            voice.no_truncation()
        self._plain.encode_special_tokens = True
        self._remembered: dict[tuple[bool, str], list[int]] = {}
        added = self._markup.get_added_tokens_decoder().values()
        self._special_tokens = tuple(token.content for token in added if token.special)
        self.frame = self._find_frame()
        self.end_token = end_token
        self.source = self.name = source
        # Ids may have holes (added tokens far above the merges), so the count of tokens is no bound.
        self.vocab_size: int = 1 + max(self._markup.get_vocab(with_added_tokens=True).values(), default=-1)
        document = json.loads(self._markup.to_str())
        canonical = json.dumps(document, sort_keys=True, ensure_ascii=True)
        self.fingerprint = "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
        self.unknown_id: int | None = _unknown_id(document["model"])
        self.max_token_bytes: int = _max_token_bytes(document)

    @property
    def serialized(self) -> str:
        """The tokenizer as the JSON of its file."""
        return str(self._markup.to_str())

    @classmethod
    def load(cls, path_or_id: str | Path) -> TextTokenizer:
        """Load the tokenizer of a checkpoint (see `find_checkpoint`), or a tokenizer.json file.

        Raises:
            ModelError: nothing usable is there; the text says what was looked for.
            MissingExtraError: a GGUF file needs a package that is not installed.
        """
        found = find_checkpoint(path_or_id)
        path = Path(found.weights)
        if found.adapter is None and path.is_file():
            tokenizer = cls(_read_tokenizer(path), None, str(path))
        elif found.adapter is not None and (found.adapter / "tokenizer.json").is_file():
            tokenizer = cls._of_folder(found.adapter)
        else:
            tokenizer = cls._of_folder(local_folder(found.weights))
        if found.adapter is not None:
            tokenizer.source = str(found.adapter)
        tokenizer.name = str(path_or_id)
        return tokenizer

    @classmethod
    def _of_folder(cls, folder: Path) -> TextTokenizer:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"{folder}: no tokenizer.json in this directory (a fast tokenizer is needed; "
                "save one with transformers' AutoTokenizer.save_pretrained)"
            )
        return cls(_read_tokenizer(file), _declared_end_token(folder), str(folder))

    def encode_text(self, text: str, after: str = "") -> list[int]:
        """Tokenise user text: special tokens in it stay plain characters.

        Args:
            text: The text.
            after: Template text before it. The part behind its last special token is taken as context, so
                that no mark of a text's beginning appears in the middle of a prompt.
        """
        context = self._plain_end(after)
        if not context:
            return self._ids(self._plain, text)
        return self._behind(self._plain, context, self._ids_of_template(self._plain, context), text)

    def encode_bytes(self, text: bytes) -> list[int] | None:
        """Tokenise text that stands behind another, so that no blank is put before it; None if not UTF-8."""
        try:
            return self.encode_text(text.decode(), after="\n")
        except UnicodeDecodeError:
            return None

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise a batch of user texts in parallel."""
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        return [list(encoding.ids) for encoding in encodings]

    def encode_markup(self, text: str, after: str = "") -> list[int]:
        """Tokenise template text, with user text `after` as context: special tokens become their ids."""
        if not after or text.startswith(self._special_tokens):  # nothing merges across a special token
            return list(self._ids_of_template(self._markup, text))
        return self._behind(self._markup, after, self._ids(self._markup, after), text)

    def _find_frame(self) -> tuple[list[int], list[int]]:
        encoding = self._markup.encode("a", add_special_tokens=True)
        text = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
        ids = list(encoding.ids)
        return (ids[: text[0]], ids[text[-1] + 1 :]) if text else ([], [])

    def _behind(self, voice: Tokenizer, context: str, before: list[int], text: str) -> list[int]:
        """Return the tokens of a text behind a context, given those of the context."""
        ids = self._ids(voice, context + text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        # The text merges with its context: both are tokenised apart, as the template wrote them.
        return self._ids(voice, text)

    @staticmethod
    def _ids(voice: Tokenizer, text: str) -> list[int]:
        return list(voice.encode(text, add_special_tokens=False).ids)

    def _ids_of_template(self, voice: Tokenizer, text: str) -> list[int]:
        """Return the tokens of a text that comes back with every query; the list must not be changed."""
        key = (voice is self._plain, text)
        ids = self._remembered.get(key)
        if ids is None:
            ids = self._ids(voice, text)
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = ids
        return ids

    def _plain_end(self, template: str) -> str:
        ends = [template.rfind(token) + len(token) for token in self._special_tokens if token in template]
        return template[max(ends, default=0) :]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids; special tokens are left out."""
        return str(self._markup.decode(list(token_ids), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        """Return the id of one token, or None when the vocabulary lacks it."""
        token_id: int | None = self._markup.token_to_id(token)
        return token_id

    def token_name(self, token_id: int) -> str:
        """Return one token as the vocabulary has it, special ones too; empty when it lacks it."""
        return self._markup.id_to_token(token_id) or ""

    def text_token_id(self, text: str) -> int | None:
        """Return the token that is a text, whatever the vocabulary calls it; None where there is none."""
        ids = self.encode_text(text, after="a")
        return ids[0] if len(ids) == 1 and ids[0] != self.unknown_id else None

    def end_token_id(self, rendering: Rendering) -> int:
        """Return the id of the token that closes every row; InputError if there is none."""
        token = rendering.end_token or self.end_token or self._guess_end_token()
        if token is None:
            raise InputError(
                "end_token", f"the tokenizer {self.name} names no end-of-sequence token; name one"
            )
        token_id = self.token_id(token)
        if token_id is None:
            token_id = self.text_token_id(token)
        if token_id is None:
            raise InputError(
                "end_token",
                f"{token!r} is not in the vocabulary of {self.name}, nor text that is one token of it",
            )
        return token_id

    def doubt_of_end(self, rendering: Rendering) -> str | None:
        """Return why the token that closes rows looks wrong; None where it ends a line, a turn or a text."""
        end = self.end_token_id(rendering)
        text = str(self._markup.decode([end], skip_special_tokens=False))
        if self.token_name(end) in self._special_tokens or "\n" in text:
            return None
        right = [f"{token!r} ends a text" for token in [self.end_token or self._guess_end_token()] if token]
        line_end = self.text_token_id("\n")
        if line_end is not None:
            right.append(f"{self.token_name(line_end)!r} ends a line")
        return (
            f"the end token {self.token_name(end)!r} is the text {text!r} in the vocabulary of "
            f"{self.name}, neither a special token nor a line break; "
            f"there {' and '.join(right) or 'is no such token'}"
        )

    def encode_titles(self, titles: Sequence[str], rendering: Rendering) -> list[list[int] | None]:
        """Tokenise titles in the context of the prompt's end, end token included.

        A row is None where the title's first characters merge with the context, so that it could not follow
        the prompt's own tokens.
        """
        end = self.end_token_id(rendering)
        before = self.encode_text(rendering.context) if rendering.context else []
        texts = [rendering.context + rendering.prefix + t + rendering.suffix for t in titles]
        rows: list[list[int] | None] = []
        for ids in self.encode_texts(texts):
            stable = ids[: len(before)] == before
            rows.append([*ids[len(before) :], end] if stable else None)
        return rows

    def _guess_end_token(self) -> str | None:
        return next((token for token in _COMMON_END_TOKENS if self.token_id(token) is not None), None)


def _read_tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception for every malformed file
        raise ModelError(f"{file}: not a readable tokenizer.json: {error}") from error


def _without_special_pieces(serialized: str) -> str:
    """Rename the special tokens among the pieces of a vocabulary, so that no text is cut into them.

    `encode_special_tokens` only stops special tokens from being looked for before the text is cut into
    pieces. Where they are pieces themselves (WordLevel, WordPiece, above all Unigram models), they would
    still be found. Ids stay as they are.
    """
    document = json.loads(serialized)
    model = document["model"]
    vocabulary = model["vocab"]
    is_list = isinstance(vocabulary, list)  # Unigram: [piece, score] in the order of the ids
    pieces = {piece for piece, _ in vocabulary} if is_list else set(vocabulary)
    hidden = {token["content"] for token in document["added_tokens"] if token["special"]} & pieces
    hidden.discard(model.get("unk_token"))  # must be found under its name, like the parts of merges
    if hidden:
        hidden -= {part for merge in model.get("merges", ()) for part in _merge_pieces(merge)}
    if not hidden:
        return serialized
    salt = secrets.token_hex(16)  # whoever could guess the new name could write it

    def rename(piece: str) -> str:
        return salt + piece if piece in hidden else piece

    if is_list:
        model["vocab"] = [[rename(piece), score] for piece, score in vocabulary]
    else:
        model["vocab"] = {rename(piece): number for piece, number in vocabulary.items()}
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] not in hidden]
    document["post_processor"] = None  # it names special tokens, and is not used for user text
    return json.dumps(document)


def _unknown_id(model: dict[str, Any]) -> int | None:
    if isinstance(model["vocab"], list):  # Unigram
        index: int | None = model.get("unk_id")
        return index
    number: int | None = model["vocab"].get(model.get("unk_token"))
    return number


def _max_token_bytes(document: dict[str, Any]) -> int:
    """Return the most bytes of text in one token, at least 256 unless the tokenizer keeps every byte.

    Others drop blanks, normalise text, or write a whole unknown word as one token.
    """
    model, added = document["model"], document["added_tokens"]
    steps = document["pre_tokenizer"] or {"type": "none"}
    kinds = {step["type"]: step for step in steps.get("pretokenizers", [steps])}
    is_byte_level = "ByteLevel" in kinds
    pieces = [piece for piece, _ in model["vocab"]] if isinstance(model["vocab"], list) else model["vocab"]
    # A byte-level vocabulary spells each byte as one character.
    longest = max((len(piece) if is_byte_level else len(piece.encode()) for piece in pieces), default=1)
    longest = max([longest, *(len(token["content"].encode()) for token in added)])
    keeps_bytes = (
        is_byte_level
        and model["type"] == "BPE"
        and document["normalizer"] is None
        and kinds.keys() <= {"ByteLevel", "Split", "Digits"}
        and kinds.get("Split", {}).get("behavior") != "Removed"
        and not any(token["lstrip"] or token["rstrip"] for token in added if not token["special"])
    )
    return longest if keeps_bytes else max(longest, _BYTES_OF_UNBOUNDED)


def _merge_pieces(merge: str | list[str]) -> tuple[str, ...]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right


def _declared_end_token(folder: Path) -> str | None:
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = folder / name
        if not file.is_file():
            continue
        declared = json_object(file).get("eos_token")
        if isinstance(declared, dict):
            declared = declared.get("content")
        if isinstance(declared, str):
            return declared
    return None
