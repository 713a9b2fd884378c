"""Titles and aliases that a lossy tokenizer cannot spell are bad rows; byte tokenizers spell everything."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from index_builder.shard_maker import RowEncoder
from retrieval.errors import SourceError
from retrieval.index.reader import Index
from retrieval.sources import Record
from retrieval.sources.rejects import Rejects
from retrieval.text import Rendering, TextTokenizer
from tests.index_fixtures import END, build

UNKNOWN = "<unk>"


def wordpiece(*more: str) -> TextTokenizer:
    pieces = [END, UNKNOWN, "a", "b", "c", "##a", "##b", *more]
    model = models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([END, UNKNOWN])
    return TextTokenizer(tokenizer, END, "wordpiece")


def unigram(byte_fallback: bool) -> TextTokenizer:
    pieces = [(UNKNOWN, 0.0), (END, 0.0), ("▁", -2.0), *((letter, -3.0) for letter in "abc")]
    if byte_fallback:
        pieces += [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens([END, UNKNOWN])
    return TextTokenizer(tokenizer, END, "unigram")


def byte_fallback_bpe() -> TextTokenizer:
    pieces = [UNKNOWN, END, "a", "b", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, [], unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens([UNKNOWN, END])
    return TextTokenizer(tokenizer, END, "byte fallback")


def byte_level_bpe() -> TextTokenizer:
    pieces = [UNKNOWN, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token=UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([UNKNOWN, END])
    return TextTokenizer(tokenizer, END, "bytes")


def test_unspellable_titles_and_aliases_are_bad_rows_with_their_lines(tmp_path: Path) -> None:
    lines = ["title\taliases", "ab\tba", "a ż\t", "b\taa|x ż", "bc\t", "ż\t"]
    with pytest.raises(SourceError, match="4 × unknown token") as caught:
        build(tmp_path, lines, wordpiece())
    for said in (
        "line 3: unknown token (cannot spell 'ż'): 'a ż'",
        "line 4: unknown token (cannot spell 'x', 'ż'): 'x ż'",
        "line 5: unknown token (cannot spell 'bc'): 'bc'",  # there is an inner piece for b, and none for c
        "line 6: unknown token (cannot spell 'ż'): 'ż'",
    ):
        assert said in str(caught.value)
    summary = build(tmp_path, lines, wordpiece(), max_bad_rows=4)
    assert summary.rejected == {"unknown token": 4}
    with Index.open(summary.index) as index:
        assert {index.surface(rank) for rank in range(index.num_rows)} == {"ab", "ba"}


def test_a_unigram_tokenizer_is_lossy_without_its_bytes(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"line 2: unknown token \(cannot spell 'ż'\)"):
        build(tmp_path, ["ab", "ażc"], unigram(byte_fallback=False))
    assert build(tmp_path, ["ab", "ażc"], unigram(byte_fallback=True)).rejected == {}


@pytest.mark.parametrize("tokenizer", [byte_fallback_bpe(), byte_level_bpe()], ids=lambda t: str(t.source))
def test_byte_tokenizers_spell_everything(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    assert tokenizer.unknown_id == tokenizer.token_id(UNKNOWN) == 0
    titles = ["ab", "żółć", "鰭", "\U0001f600", UNKNOWN, f"a {UNKNOWN} b", END]
    summary = build(tmp_path, titles, tokenizer)
    assert summary.rejected == {}
    assert summary.manifest.counts.rows == len(titles)


def test_the_unknown_token_may_be_the_end_token() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, END: 1}, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = RowEncoder(TextTokenizer(tokenizer, END, "words"), Rendering(), 8)
    rejects = Rejects("titles", 9)
    records = [Record(0, line, None, title, (), ()) for line, title in ((1, "a"), (2, "a b"))]
    kept, rows, _ = encoder.encode(records, rejects)
    assert (len(kept), rows) == (1, [[0, 1]])
    assert [str(row) for row in rejects.rows] == ["line 2: unknown token (cannot spell 'b'): 'a b'"]


def test_a_rendering_that_cannot_be_spelt_is_shown_whole() -> None:
    encoder = RowEncoder(wordpiece(), Rendering(suffix=" >"), 8)
    rejects = Rejects("titles", 9)
    encoder.encode([Record(0, 7, None, "ab", (), ())], rejects)
    assert [str(row) for row in rejects.rows] == ["line 7: unknown token (cannot spell 'ab >'): 'ab'"]


def test_a_tokenizer_without_an_unknown_token_has_none() -> None:
    tokenizer = TextTokenizer(Tokenizer(models.BPE({"a": 0, END: 1}, [])), END, "deaf")
    assert tokenizer.unknown_id is None
