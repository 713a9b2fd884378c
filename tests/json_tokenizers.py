"""Small tokenizers of three kinds, trained on JSON: byte-level BPE, BPE with byte fallback, WordPiece."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from benchmarks.harness.answer_schemas import SCHEMAS
from genret.decoding.grammar.leaves.leaf_factory import Leaves
from genret.decoding.grammar.vocabulary import Vocabulary
from tests.checkpoints import train_tokenizer

_PADDING = 9  # logits without a token
_SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
_SAMPLES = [
    *(one.text for one in SCHEMAS),
    '{"name": "Zoë Müller", "tags": ["日本語", "한국어"], "ok": true, "none": null, "n": -1.5e+10}',
    '[{"a": 1}, {"a": 12}, {"a": 123}, {"a": -0.5}, [[1, 2], [3, 4]], {"b": {"c": {"d": "\\n\\t\\u0000"}}}]',
    "the quick brown fox jumps over the lazy dog, THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG",
]
_PUNCTUATION = '{}[]":,.-+\\/#_!?()$%&*<>=@^`|~;0123456789'


def _vocabulary(tokenizer: dict[str, Any]) -> Vocabulary:
    """Read a tokenizer's file; its model has a few logits more than there are tokens."""
    ids = [token["id"] for token in tokenizer["added_tokens"]] + list(tokenizer["model"]["vocab"].values())
    (end_id,) = (token["id"] for token in tokenizer["added_tokens"] if token["content"] == "</s>")
    return Vocabulary.from_tokenizer(json.dumps(tokenizer), end_id, max(ids) + 1 + _PADDING)


def _trained(tokenizer: Tokenizer, trainer: object, samples: Sequence[str] = _SAMPLES) -> dict[str, Any]:
    tokenizer.train_from_iterator(samples, trainer)
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


@cache
def byte_level() -> Vocabulary:
    """As GPT-2's: bytes are written by characters, tokens may end within a character."""
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _vocabulary(json.loads(train_tokenizer(_SAMPLES, 800, _SPECIAL, whole).to_str()))


@cache
def byte_fallback() -> Vocabulary:
    """As Llama's: characters, U+2581 for blanks, and 256 tokens for the bytes of all others."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    made = _trained(
        tokenizer, trainers.BpeTrainer(vocab_size=500, special_tokens=_SPECIAL, show_progress=False)
    )
    texts: dict[str, int] = made["model"]["vocab"]
    for byte in range(256):
        texts[f"<0x{byte:02X}>"] = len(texts)
    made["model"]["byte_fallback"] = True
    made["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    return _vocabulary(made)


@cache
def wordpiece() -> Vocabulary:
    """As BERT's: characters, glued by `##`; no blanks, and nothing outside of its alphabet."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = sorted(set(_PUNCTUATION) | {chr(letter) for letter in range(ord("a"), ord("z") + 1)})
    made = _trained(
        tokenizer,
        trainers.WordPieceTrainer(
            vocab_size=600, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
        ),
        ["".join(alphabet), *_SAMPLES],
    )
    return _vocabulary({**made, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}})


KINDS: dict[str, Callable[[], Vocabulary]] = {
    "byte-level": byte_level,
    "byte fallback": byte_fallback,
    "wordpiece": wordpiece,
}


@cache
def leaves(kind: str) -> Leaves:
    return Leaves(KINDS[kind]())
