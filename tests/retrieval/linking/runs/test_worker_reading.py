"""A worker reads its input files forward, once, however many shards they are cut into."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.linking.documents import corpus_reading as reading
from retrieval.linking.documents.input_files import Content
from retrieval.linking.documents.parquet_files import ParquetRows
from tests.index_fixtures import build, character_tokenizer
from tests.linking_fakes import run_words

TEXTS = [f"w{i} again" for i in range(20)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("index"), ["title", "Paris"], character_tokenizer("Paris")).index


def write_gzip(folder: Path) -> Path:
    file = folder / "docs.jsonl.gz"
    file.write_bytes(gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()))
    return file


def write_parquet(folder: Path) -> Path:
    file = folder / "docs.parquet"
    pq.write_table(pa.table({"text": TEXTS}), file)
    return file


@pytest.mark.parametrize(
    ("write", "opener"), [(write_gzip, Content), (write_parquet, ParquetRows)], ids=["gzip", "parquet"]
)
def test_the_next_shard_goes_on_in_the_open_file(
    write: Any, opener: type, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    closed: list[Any] = []

    class Counted(opener):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            opened.append(self)

        def close(self) -> None:
            super().close()
            closed.append(self)

    monkeypatch.setattr(reading, opener.__name__, Counted)
    summary = run_words(write(tmp_path), tmp_path / "out", index, shard_documents=3)
    assert summary.num_shards == 7
    assert summary.counts.num_rows == 2 * len(TEXTS)
    assert len(opened) == 2  # to look at the file before the run, and for all of its shards
    assert closed == opened
