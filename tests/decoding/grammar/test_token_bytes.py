"""Bytes of tokens: what tokenizers write, from their own files, without decoding a single token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.vocabulary import read_token_bytes
from tests.shared_titles import shared_file

SAMPLE_MODEL = Path(__file__).parents[3] / "data" / "small-model" / "tokenizer.json"
BYTE_LEVEL = ["gpt2", "cl100k_base", "o200k_base", "titles_bytebpe8k"]
BYTE_FALLBACK = ["mistral_v1_sp32k", "mistral_v3_sp32k"]
TEXTS = [
    '{"name": "Zoë", "tags": ["a", "b"], "n": -1.5e+10, "ok": true, "none": null}',
    "naïve café — “quotes” … ½ ﬁ",
    "日本語テキスト 한국어 العربية עברית हिन्दी ไทย",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈",
    "tabs\tand\nlines\r\n  and   blanks",
    "control \x00\x01\x1f\x7f\x80\x9f",
    "\ufeff\u200b\u2028\ufffd\U0010ffff",
    'a \\"b\\" \\u00e9 \\\\',
]


def read(serialised: str) -> tuple[Tokenizer, list[bytes | None]]:
    return Tokenizer.from_str(serialised), read_token_bytes(serialised)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def written(token_bytes: list[bytes | None], tokens: list[int]) -> bytes:
    return b"".join(token_bytes[token] or b"" for token in tokens)


def tokenizer_file(name: str) -> str:
    return shared_file("tokenizers", f"{name}.tokenizer.json").read_text()


def test_the_sample_models_tokens_write_what_was_encoded() -> None:
    tokenizer, token_bytes = read(SAMPLE_MODEL.read_text())
    for text in TEXTS:
        # This tokenizer puts a blank before a text that begins without one.
        assert written(token_bytes, encoded(tokenizer, text)).removeprefix(b" ") == text.encode()
    for token in ("<pad>", "</s>", "<query>", "<title>"):
        assert token_bytes[tokenizer.token_to_id(token)] is None


@pytest.mark.shared_data
@pytest.mark.parametrize("name", [*BYTE_LEVEL, *BYTE_FALLBACK])
def test_tokens_write_what_was_encoded(name: str) -> None:
    tokenizer, token_bytes = read(tokenizer_file(name))
    # These tokenizers put a blank before the first word of a text, and write their mark of a blank as one.
    blank, mark = (b" ", "\u2581") if name in BYTE_FALLBACK else (b"", None)

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(st.text().filter(lambda text: mark is None or mark not in text))
    def check(text: str) -> None:
        assert written(token_bytes, encoded(tokenizer, text)).removeprefix(blank) == text.encode()

    for text in TEXTS:
        check.hypothesis.inner_test(text)  # type: ignore[attr-defined]
    check()
    if name in BYTE_FALLBACK:
        assert token_bytes[tokenizer.token_to_id("<0x0A>")] == b"\n"
        assert token_bytes[tokenizer.token_to_id("<0xF0>")] == b"\xf0"
        assert token_bytes[tokenizer.token_to_id("<unk>")] is None


@pytest.mark.shared_data
def test_no_two_byte_level_tokens_collapse_onto_one() -> None:
    # Decoding tokens one by one gives 254 of this tokenizer's tokens the same replacement character.
    texts = [text for text in read_token_bytes(tokenizer_file("gpt2")) if text is not None]
    assert len(set(texts)) == len(texts) == 50256
    assert {bytes([byte]) for byte in range(256)} <= set(texts)
    assert sum(not _is_utf8(text) for text in texts) > 300


@pytest.mark.shared_data
def test_unigram_tokens_have_blanks_for_their_marks() -> None:
    tokenizer, token_bytes = read(tokenizer_file("titles_unigram32k"))
    text = "The Origin of Species (1859)"
    assert written(token_bytes, encoded(tokenizer, text)) == b" " + text.encode()
    assert token_bytes[3] is None  # <unk>


@pytest.mark.shared_data
def test_wordpiece_tokens_are_glued() -> None:
    tokenizer, token_bytes = read(tokenizer_file("titles_wordpiece16k_uncased"))
    assert written(token_bytes, encoded(tokenizer, "unbelievably")) == b"unbelievably"
    assert all(b" " not in text for text in token_bytes if text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def made(vocabulary: Any, **parts: Any) -> str:
    model = {"type": "BPE", "vocab": vocabulary, "merges": [], "unk_token": None, **parts.pop("model", {})}
    return json.dumps({"model": model, "decoder": {"type": "ByteLevel"}, "added_tokens": [], **parts})


def test_added_tokens_write_their_text_and_special_ones_nothing() -> None:
    added = [{"id": 1, "content": "<end>", "special": True}, {"id": 3, "content": "é", "special": False}]
    # Id 2 is unused; a token with a character that no byte is written as stands for itself.
    found = read_token_bytes(made({"Ġa": 0, "日": 4}, added_tokens=added))
    assert found == [b" a", None, None, "é".encode(), "日".encode()]


def test_the_unknown_token_writes_nothing() -> None:
    assert read_token_bytes(made({"?": 0, "a": 1}, model={"unk_token": "?"})) == [None, b"a"]


@pytest.mark.parametrize(
    ("decoder", "token", "expected"),
    [
        ({"type": "Metaspace", "replacement": "▁"}, "▁a▁", b" a "),
        ({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, "▁a", b" a"),
        ({"type": "ByteLevel"}, "Ã", b"\xc3"),
        ({"type": "ByteFallback"}, "<0xe2>", b"\xe2"),
        ({"type": "ByteFallback"}, "<0x1>", b"<0x1>"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "##ing", b"ing"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "low</w>", b"low "),
        ({"type": "Strip", "content": "_", "start": 1, "stop": 1}, "__a__", b"_a_"),
        ({"type": "Strip", "content": "_", "start": 2, "stop": 2}, "_", b""),
    ],
)
def test_decoders_are_applied_to_one_token(decoder: dict[str, Any], token: str, expected: bytes) -> None:
    assert read_token_bytes(made({token: 0}, decoder=decoder)) == [expected]


def test_a_blank_is_stripped_from_texts_and_not_from_tokens() -> None:
    parts = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    assert read_token_bytes(made({"▁a": 0}, decoder={"type": "Sequence", "decoders": parts})) == [b" a"]


def test_without_a_decoder_the_splitter_says_how_tokens_are_written() -> None:
    assert read_token_bytes(made({"Ġa": 0}, decoder=None, pre_tokenizer={"type": "ByteLevel"})) == [b" a"]
    with pytest.raises(VocabularyError, match="no decoder"):
        read_token_bytes(made({"a": 0}, decoder=None, pre_tokenizer=None))


@pytest.mark.parametrize(
    ("serialised", "message"),
    [
        ("{", "not JSON"),
        ("[]", "no model"),
        ('{"model": {"type": "X"}}', "no vocabulary"),
        (made({"a": 0}, decoder={"type": "CTC"}), "'CTC' is not known"),
        (made({"a": 0}, decoder={"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}), "'Replace'"),
    ],
)
def test_what_cannot_be_told_is_refused(serialised: str, message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        read_token_bytes(serialised)
