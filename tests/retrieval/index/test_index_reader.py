from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from decoding.trie.title_trie import TitleTrie
from decoding.trie.trie_kernels import TrieTables
from index_builder.build import BuildSummary
from retrieval.errors import IndexDirectoryError
from retrieval.index.reader import Index
from tests.fakes import roots
from tests.index_fixtures import build, character_tokenizer

TOKENIZER = character_tokenizer("abcdefgh ")
LINES = ["title\taliases\tkind", "abc\tcab|bad\tx", "c\ta\t", "bcd\t\tz"]


@pytest.fixture
def summary(tmp_path: Path) -> BuildSummary:
    return build(tmp_path, LINES, TOKENIZER)


def test_attributes(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        assert index.path == summary.index / "versions" / summary.version
        assert index.version == index.digest == summary.version
        assert index.tokenizer_fingerprint == TOKENIZER.fingerprint
        assert index.end_token_id == TOKENIZER.token_id("</s>")
        assert (index.num_rows, index.num_entities, index.max_row_tokens) == (6, 3, 4)
        assert index.metadata_columns == ("kind",)
        assert index.metadata_column("kind").to_pylist() == ["x", "z", None]
        assert index.metadata_column("entity_id").to_pylist() == ["abc", "bcd", "c"]
        assert index.manifest == summary.manifest


def test_metadata_is_typed_and_repeated_strings_are_dictionaries(tmp_path: Path) -> None:
    lines = ["title\tkind\tname\tyear\tweight\tliving"]
    lines += [f"{t}\tx\t{t}{t}\t{n}\t{n / 4}\ttrue" for n, t in enumerate("abcd")]
    typed = build(tmp_path, [*lines, "e\t\t\t\t\t"], TOKENIZER)
    with Index.open(typed.index) as index:
        kinds = {"kind": "string", "name": "string", "year": "int", "weight": "float", "living": "bool"}
        assert index.metadata_types == kinds
        entity = index.entity_by_id("c")
        assert entity is not None
        assert dict(entity.metadata) == {"kind": "x", "name": "cc", "year": 2, "weight": 0.5, "living": True}
        empty = index.entity_by_id("e")
        assert empty is not None
        assert set(empty.metadata.values()) == {None}
        assert index.entities.stored_column("kind").type == pa.dictionary(pa.uint8(), pa.string())
        assert index.entities.stored_column("name").type == pa.string()
        assert index.entities.column("kind").type == pa.string()
        assert index.metadata_column("kind").to_pylist() == ["x", "x", "x", "x", None]


def test_a_version_directory_opens_too(summary: BuildSummary) -> None:
    with Index.open(str(summary.index / "versions" / summary.version)) as index:
        assert index.num_rows == 6


def test_trie_is_zero_copy_read_only_and_serves_the_decoder(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        arrays = index.trie_arrays()
        for array in arrays[:4]:
            assert not array.flags.owndata
            assert not array.flags.writeable
        tables = TrieTables.of(arrays, torch.device("cpu"))  # what every backend walks
        tensors = (tables.token, tables.child_begin, tables.row_begin, tables.tail_begin)
        for tensor, array in zip(tensors, arrays[:4], strict=True):
            assert tensor.data_ptr() == array.ctypes.data
        trie = TitleTrie(arrays, TOKENIZER.vocab_size)
        for rank in range(index.num_rows):
            states = roots(trie)
            for token in index.row_token_ids(rank):
                states = trie.advance(states, states.new_tensor([token]))
            assert trie.is_final(states).all()
            assert trie.row(states).tolist() == [rank]


def test_numbers_out_of_range_are_value_errors(summary: BuildSummary) -> None:
    with Index.open(summary.index) as index:
        for call in (index.row_token_ids, index.entities_of, index.surface):
            for rank in (-1, index.num_rows):
                with pytest.raises(ValueError, match="rank: expected 0 <= rank < 6"):
                    call(rank)
        for number in (-1, 3):
            with pytest.raises(ValueError, match="entity number"):
                index.entity(number)
        with pytest.raises(ValueError, match="does not name entity 1"):
            index.surface(0, 1)
        with pytest.raises(ValueError, match=r"expected one of .*'kind'"):
            index.metadata_column("sort")
        assert index.entity_by_id("nobody") is None
        assert index.row_of([]) == -1


def test_closing(summary: BuildSummary) -> None:
    index = Index.open(summary.index)
    arrays = index.trie_arrays()
    before = np.array(arrays.token)
    index.close()
    index.close()
    for use in (
        index.trie_arrays,
        lambda: index.entity(0),
        lambda: index.entities_of(0),
        lambda: index.row_of([]),
    ):
        with pytest.raises(IndexDirectoryError, match="was closed"):
            use()
    shutil.rmtree(summary.index)
    assert np.array_equal(arrays.token, before)  # what was handed out outlives the reader and the files


def test_an_open_reader_survives_later_publications(tmp_path: Path) -> None:
    first = build(tmp_path, ["a", "b"], TOKENIZER, keep_versions=0)
    with Index.open(first.index) as index:
        for titles in (["c"], ["d", "e"], ["f"]):
            build(tmp_path, titles, TOKENIZER, keep_versions=0)
        assert not index.path.exists()
        assert [index.surface(rank) for rank in range(2)] == ["a", "b"]
        assert [index.entity(n).title for n in range(2)] == ["a", "b"]
    with Index.open(first.index) as index:
        assert [index.surface(rank) for rank in range(index.num_rows)] == ["f"]
