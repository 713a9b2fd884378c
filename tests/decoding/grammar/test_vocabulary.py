"""Vocabularies: bytes of tokens from files of tokenizers, the trie, masks, and what can be written at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from genret.decoding.grammar.errors import VocabularyError
from genret.decoding.grammar.token_trie import FlatTrie
from genret.decoding.grammar.vocabulary import Vocabulary, find_writable, read_token_bytes
from tests.leaf_oracle import BYTES, node_at, real_vocabulary, tokens_below
from tests.shared_titles import shared_file

ASCII: list[bytes | None] = [bytes([byte]) for byte in range(128)]

token_texts = st.lists(
    st.one_of(st.none(), st.binary(max_size=6), st.text("ab\x00ÿ", max_size=5).map(str.encode)), min_size=1
)


@settings(max_examples=200, deadline=None)
@given(token_texts)
def test_the_trie_holds_every_token_at_its_bytes(texts: list[bytes | None]) -> None:
    trie = FlatTrie(texts)
    prefixes = sorted({text[:end] for text in texts if text for end in range(1, len(text) + 1)} | {b""})
    assert len(trie.byte) == len(prefixes)
    for position, prefix in enumerate(prefixes):
        assert trie.depth[position] == len(prefix)
        assert trie.byte[position] == (prefix[-1] if prefix else 0)
        assert trie.end[position] == position + sum(other.startswith(prefix) for other in prefixes)
        here = trie.tokens[trie.token_begin[position] : trie.token_begin[position + 1]].tolist()
        assert here == [token for token, text in enumerate(texts) if text and text == prefix]
    begin, child = trie.children
    for position, prefix in enumerate(prefixes):
        children = child[begin[position] : begin[position + 1]].tolist()
        assert children == [
            other
            for other, text in enumerate(prefixes)
            if len(text) == len(prefix) + 1 and text.startswith(prefix)
        ]
    assert trie.max_depth == max(map(len, prefixes))


@settings(max_examples=100, deadline=None)
@given(token_texts, st.data())
def test_places_can_be_laid_over_each_other(texts: list[bytes | None], data: st.DataObject) -> None:
    vocabulary = Vocabulary([None, *BYTES, *texts], 0, 257 + len(texts))
    trie = vocabulary.trie
    positions = data.draw(st.lists(st.integers(0, len(trie.byte) - 1), min_size=1, max_size=5))
    expected = set()
    for position in positions:
        token = int(trie.tokens[trie.token_begin[trie.end[position]] - 1])
        prefix = vocabulary.written(token)[: trie.depth[position]]
        node = node_at(vocabulary, prefix)
        assert node is not None
        assert node.positions == (position,)
        expected |= tokens_below(node)
    rest = vocabulary.rest(positions)
    assert rest.tokens == ()
    assert tokens_below(rest) == expected
    assert rest is vocabulary.rest(reversed(positions))
    assert list(rest.children) == sorted(rest.children)


def test_tokens_that_write_nothing_are_never_allowed() -> None:
    vocabulary = Vocabulary([*BYTES, b"", None, b"ab", b"ab", b"end"], 260, 300)
    assert {token for _, token in tokens_below(vocabulary.root)} == {*range(256), 258, 259}
    assert vocabulary.bytes_of(256) is None
    assert vocabulary.bytes_of(260) is None
    assert vocabulary.bytes_of(299) is None
    assert node_at(vocabulary, b"ab").tokens == (258, 259)  # type: ignore[union-attr]
    assert node_at(vocabulary, b"en") is None


def test_masks_are_packed_in_words() -> None:
    vocabulary = Vocabulary(BYTES, 0, 256 + 33)
    assert vocabulary.num_words == 10
    mask = vocabulary.packed([0, 31, 32, 288])
    assert mask.dtype == np.uint32
    assert mask.tolist() == [1 | 1 << 31, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    assert vocabulary.nothing.tolist() == [0] * 10


def test_the_fingerprint_tells_vocabularies_apart() -> None:
    def fingerprint(texts: list[bytes | None], end: int = 256, size: int = 300) -> str:
        return Vocabulary([*BYTES, None, *texts], end, size).fingerprint

    assert fingerprint([b"ab"]) == fingerprint([b"ab", None])
    others = {fingerprint([b"ab"]), fingerprint([b"a", b"b"]), fingerprint([b"ab"], end=299)}
    assert len(others | {fingerprint([b"ab"], size=299), fingerprint([None, b"ab"])}) == 5


def test_a_token_begins_characters_that_others_may_complete() -> None:
    vocabulary = Vocabulary([*BYTES, "aé日".encode(), "日".encode()[1:] + b"ab\xf0\x9f"], 0, 300)
    assert vocabulary.longest_token_characters == 3
    assert vocabulary.longest_token == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([b"a"], 3, 3), "end token 3: expected one of 3"),
        (([b"a"], -1, 3), "end token -1"),
        (([b"a", b"b", b"c"], 0, 2), "3 tokens do not fit 2"),
        (([b"", None], 0, 2), "no token"),
    ],
)
def test_a_vocabulary_that_fits_no_model_is_refused(
    arguments: tuple[list[bytes | None], int, int], message: str
) -> None:
    with pytest.raises(VocabularyError, match=message):
        Vocabulary(*arguments)


def test_more_tokens_than_logits_are_fine_if_they_write_nothing() -> None:
    assert Vocabulary([b"a", b"b", None, None], 1, 2).vocab_size == 2


def test_a_vocabulary_of_all_bytes_writes_everything() -> None:
    writable = find_writable(BYTES)
    assert writable.is_everything
    assert Vocabulary(BYTES, 1, 256).writable_texts is None
    # Bytes that UTF-8 has not are not needed, and neither are control characters, which JSON escapes.
    needed = [text for byte, text in enumerate(BYTES) if byte not in (0, 10, 0xC0, 0xC1, 0xF5, 0xFF)]
    assert find_writable(needed).is_everything


def test_a_vocabulary_of_bytes_may_lack_some() -> None:
    texts = [text for byte, text in enumerate(BYTES) if byte not in (ord("!"), 0xF4)]
    vocabulary = Vocabulary([*texts, b"a!", "ab\U00100000".encode(), b"b\xe6", b"cd"], 0, 300)
    assert vocabulary.writable.is_of_bytes
    assert node_at(vocabulary, b"a!") is None
    assert node_at(vocabulary, b"ab") is None
    assert node_at(vocabulary, b"b\xe6") is not None
    writable = vocabulary.writable_texts
    assert writable is not None
    assert writable.accepts("日本".encode())
    assert not writable.accepts(b"a!")
    vocabulary.require("日本".encode())
    with pytest.raises(VocabularyError, match=r"cannot write '!' \(hex 21\)"):
        vocabulary.require(b"ab!")


def test_a_vocabulary_of_characters_writes_texts_of_them() -> None:
    characters = [*'{}[]":,ab', "é", "日", "\U0001f600"]
    texts: list[bytes | None] = [character.encode() for character in characters]
    vocabulary = Vocabulary(
        [None, *texts, "aé日".encode(), b"abc", b"\xe6\x97", "日\xe9".encode()[:-1]], 0, 40
    )
    assert not vocabulary.writable.is_of_bytes
    assert node_at(vocabulary, "aé日".encode()) is not None
    assert node_at(vocabulary, b"abc") is None  # there is no c to go on with elsewhere
    writable = vocabulary.writable_texts
    assert writable is not None
    for text in ("", "a日é", "\U0001f600{"):
        assert writable.accepts(text.encode())
    for text in ("c", "è", "a\n"):
        assert not writable.accepts(text.encode())
    with pytest.raises(VocabularyError, match=r"cannot write 'è' \(hex c3 a8\)"):
        vocabulary.require("aè".encode())


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "is_everything"),
    [("gpt2", True), ("o200k_base", True), ("mistral_v3_sp32k", True), ("titles_unigram32k", False)],
)
def test_real_vocabularies(name: str, is_everything: bool) -> None:
    vocabulary = real_vocabulary(name, padded=47)
    assert vocabulary.writable.is_everything == is_everything


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
