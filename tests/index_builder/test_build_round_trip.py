"""Builds: the index holds exactly what the source says, and bad titles are refused by name."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from genret.index_builder import shard_maker
from genret.index_builder.build import build_index
from genret.index_builder.build_options import BuildOptions
from genret.index_builder.shard_maker import RowEncoder
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.layout import token_type
from genret.retrieval.index.reader import Index
from genret.retrieval.index.verification import verify
from genret.retrieval.sources.records import Record, Rejects
from genret.retrieval.text import Rendering, TextTokenizer
from tests.index_fixtures import END, build, character_tokenizer, version_files, write_titles

ABC = character_tokenizer("abc ABC")
LOWER = character_tokenizer("abc ", lower=True)
WIDE = character_tokenizer("abc ABC", first_id=70_000)
# The rows of the long ones lie around and past the columnar length.
WORDS = st.text("abcA", min_size=1, max_size=6) | st.sampled_from(
    ["a" * 63, "a" * 64, "a" * 70, "b" * 199 + "c", "b" * 200]
)


@st.composite
def catalogues(draw: st.DrawFn) -> list[tuple[str, str, tuple[str, ...], str]]:
    entries = draw(st.lists(st.tuples(WORDS, st.lists(WORDS, max_size=3), WORDS), min_size=1, max_size=25))
    return [
        (f"q{i}", t, tuple(dict.fromkeys(x for x in a if x != t)), k) for i, (t, a, k) in enumerate(entries)
    ]


@settings(max_examples=60)
@given(catalogues(), st.sampled_from([ABC, LOWER, WIDE]), st.randoms(use_true_random=False))
def test_index_equals_brute_force(
    entries: list[tuple[str, str, tuple[str, ...], str]], tokenizer: TextTokenizer, shuffler: random.Random
) -> None:
    lines = [f"{i}\t{t}\t{'|'.join(a)}\t{k}" for i, t, a, k in entries]
    expected: dict[tuple[int, ...], dict[str, str]] = defaultdict(dict)
    for entity_id, title, aliases, _ in entries:
        for form in (title, *aliases):
            row = tokenizer.encode_titles([form], Rendering())[0]
            assert row is not None
            expected[tuple(row)].setdefault(entity_id, form)
    with tempfile.TemporaryDirectory() as folder:
        header = "entity_id\ttitle\taliases\tkind"
        summary = build(Path(folder), [header, *lines], tokenizer)
        report = verify(summary.index)
        assert report.ok, report.problems
        with Index.open(summary.index) as index:
            assert index.num_entities == len(entries)
            rows = [index.row_token_ids(rank) for rank in range(index.num_rows)]
            assert rows == sorted(expected)
            assert index.max_row_tokens == max(map(len, rows))
            for rank, row in enumerate(rows):
                assert index.row_of(row) == rank
                numbers = index.entities_of(rank)
                assert numbers == sorted(numbers)
                forms = {index.entity(n).entity_id: index.surface(rank, n) for n in numbers}
                assert forms == expected[row]
                assert index.surface(rank) == forms[index.entity(numbers[0]).entity_id]
            for entity_id, title, aliases, kind in entries:
                entity = index.entity_by_id(entity_id)
                assert (entity.title, entity.aliases, entity.metadata) == (title, aliases, {"kind": kind})
            for row in rows:
                assert index.row_of(row[:-1]) == -1
                assert index.row_of((*row, index.end_token_id)) == -1
        data = version_files(summary)
        shuffler.shuffle(lines)
        shuffled = version_files(build(Path(folder), [header, *lines], tokenizer, "other.index"))
        del data["manifest.json"], shuffled["manifest.json"]  # they name the source's digest
        assert data == shuffled  # the order of the source leaves no trace


@settings(max_examples=20)
@given(st.lists(WORDS, min_size=1, max_size=30), st.integers(1, 7))
def test_batches_of_any_size_give_the_same_index(titles: list[str], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        whole = build(Path(folder), titles, ABC, "whole.index")
        patch.setattr(shard_maker, "_BATCH_RECORDS", size)
        pieces = build(Path(folder), titles, ABC, "pieces.index")
        assert version_files(whole) == version_files(pieces)


def test_vocabulary_above_65536_is_stored_in_four_bytes(tmp_path: Path) -> None:
    summary = build(tmp_path, ["abc", "b"], WIDE)
    assert WIDE.vocab_size > 65_536
    with Index.open(summary.index) as index:
        assert index.vocab_size == WIDE.vocab_size
        row = index.row_token_ids(0)
        assert min(row) >= 70_000
        assert row == tuple(WIDE.encode_titles(["abc"], Rendering())[0] or ())
        assert index.row_of([token - 65_536 for token in row]) == -1  # would be equal in two bytes
        assert index.row_of([-1] * len(row)) == -1
        assert index.row_of([2**40] * len(row)) == -1


@pytest.mark.parametrize(("vocab", "bits"), [(1, 8), (256, 8), (257, 16), (65_536, 16), (65_537, 32)])
def test_token_type_is_the_smallest(vocab: int, bits: int) -> None:
    assert token_type(vocab).bit_width == bits


def test_without_ids_the_id_is_the_title(tmp_path: Path) -> None:
    summary = build(tmp_path, ["a", "b", "a"], ABC)
    assert summary.manifest.history[-1].duplicates == 1
    assert not summary.manifest.stored_ids
    assert summary.manifest.file("postings.arrow") is None
    with Index.open(summary.index) as index:
        assert [index.entity(n).entity_id for n in range(2)] == ["a", "b"]
        assert index.entities_of(1) == [1]
        assert index.postings.of(1) == [(1, 0)]
        assert np.asarray(index.postings.offsets).tolist() == [0, 1, 2]


MERGING = TextTokenizer(
    Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, END: 3}, [("a", "b")])), END, "merging"
)
DEAF = TextTokenizer(Tokenizer(models.BPE({"a": 0, END: 1}, [])), END, "deaf")


@pytest.mark.parametrize(
    ("title", "tokenizer", "options", "reason"),
    [
        ("abca", ABC, {"max_title_tokens": 4}, "over-long title"),
        ("abca", ABC, {"rendering": Rendering(end_token="b")}, "title holds the end token"),
        ("b", MERGING, {"rendering": Rendering(context="a")}, "title merges with the prompt"),
        ("ß", DEAF, {}, "title with no tokens"),
    ],
)
def test_bad_titles_after_tokenising(
    tmp_path: Path, title: str, tokenizer: TextTokenizer, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(SourceError, match=f"line 2: {reason}") as caught:
        build(tmp_path, ["a", title], tokenizer, **options)
    assert "--max-bad-rows 1" in str(caught.value)
    summary = build(tmp_path, ["a", title], tokenizer, max_bad_rows=1, **options)
    assert summary.rejected == {reason: 1}
    assert summary.manifest.history[-1].rejected == 1


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no good row is left"):
        build(tmp_path, ["title\tkind", "a"], ABC, max_bad_rows=5)
    assert not (tmp_path / "it.index").exists()


def test_a_tokenizer_without_end_token_is_refused(tmp_path: Path) -> None:
    bare = TextTokenizer(Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")), None, "bare")
    with pytest.raises(InputError, match="names no end-of-sequence token"):
        build_index(write_titles(tmp_path / "t.tsv", ["a"]), bare, BuildOptions(out=tmp_path / "x.index"))


def test_more_entities_than_a_record_batch_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("genret.retrieval.index.entities", "genret.index_builder.entities"):
        monkeypatch.setattr(f"{module}.ENTITY_BATCH_ROWS", 4)
    titles = sorted({f"{x}{y}{z}" for x in "abc" for y in "abc" for z in "ab"})
    summary = build(tmp_path, ["title\taliases", *(f"{t}\t{t}A" for t in titles)], ABC)
    assert verify(summary.index).ok
    with Index.open(summary.index) as index:
        assert [index.entity(n).title for n in range(len(titles))] == titles
        assert [index.entity(n).aliases for n in range(len(titles))] == [(t + "A",) for t in titles]
        assert index.entities.numbers([titles[7], "nope", titles[0], titles[7]]).tolist() == [7, -1, 0, 7]
        assert index.entities.numbers([]).tolist() == []
        assert index.title_order is not None
        assert [titles[number] for number in index.title_order] == titles


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
    assert "rejected" not in repr(summary)  # nor is anything
    assert summary.manifest.counts.rows == len(titles)


def test_the_unknown_token_may_be_the_end_token() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, END: 1}, unk_token=END))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = RowEncoder(TextTokenizer(tokenizer, END, "words"), Rendering(), 8)
    rejects = Rejects("titles", 9)
    records = [Record(0, line, None, title, (), ()) for line, title in ((1, "a"), (2, "a b"))]
    kept, rows, _ = encoder.encode(records, rejects)
    assert (len(kept), rows) == (1, [[0, 1]])
    assert [row.told() for row in rejects.rows] == ["line 2: unknown token (cannot spell 'b'): 'a b'"]


def test_a_rendering_that_cannot_be_spelt_is_shown_whole() -> None:
    encoder = RowEncoder(wordpiece(), Rendering(suffix=" >"), 8)
    rejects = Rejects("titles", 9)
    encoder.encode([Record(0, 7, None, "ab", (), ())], rejects)
    assert [row.told() for row in rejects.rows] == ["line 7: unknown token (cannot spell 'ab >'): 'ab'"]


def test_a_tokenizer_without_an_unknown_token_has_none() -> None:
    assert DEAF.unknown_id is None
