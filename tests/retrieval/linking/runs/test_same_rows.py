"""The rows of a corpus are the same, however it is stored, cut into shards and shared among workers."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.index_fixtures import build, character_tokenizer
from tests.linking_fakes import run_words

WORDS = st.text(st.sampled_from("aé🦁\u0301\u00a0\u2003 \r\n\tX?"), max_size=30)
LISTS = st.lists(WORDS, min_size=1, max_size=25)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("index"), ["title", "Paris"], character_tokenizer("Paris")).index


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


def store(folder: Path, kind: str, texts: list[str]) -> Path:
    """Write documents; a folder's files hold some of them each."""
    fields = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    lines = [
        (json.dumps(record, ensure_ascii=bool(i % 2)) + "\n").encode() for i, record in enumerate(fields)
    ]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(fields), folder / "d.parquet", row_group_size=4)
        return folder / "d.parquet"
    if kind == "folder":
        (folder / "d").mkdir()
        middle = len(lines) // 2
        (folder / "d" / "a.jsonl").write_bytes(b"".join(lines[:middle]))
        (folder / "d" / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[middle:])))
        return folder / "d"
    packed: dict[str, Callable[[bytes], bytes]] = {"jsonl": bytes, "gzip": gzip.compress, "zstd": zstd}
    (folder / "d.jsonl").write_bytes(packed[kind](b"".join(lines)))
    return folder / "d.jsonl"


def rows(out: Path) -> list[tuple[Any, ...]]:
    if out.is_dir():
        found = [row for part in sorted(out.glob("part-*")) for row in pq.read_table(part).to_pylist()]
    else:
        found = [json.loads(line) for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    return [(row["doc_id"], row["start"], row["end"], row["mention"], row["nil_reason"]) for row in found]


def expected(texts: list[str]) -> list[tuple[str, str]]:
    return [(f"d{i}", word) for i, text in enumerate(texts) for word in text.split()]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    texts=LISTS,
    kind=st.sampled_from(["jsonl", "gzip", "zstd", "parquet", "folder"]),
    shard_documents=st.integers(1, 30),
    out=st.sampled_from(["out", "out.jsonl"]),
)
def test_storage_and_shards_change_no_row(
    index: Path, texts: list[str], kind: str, shard_documents: int, out: str
) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        (folder / "plain").mkdir()
        run_words(store(folder / "plain", "jsonl", texts), folder / "whole", index, shard_documents=1000)
        summary = run_words(store(folder, kind, texts), folder / out, index, shard_documents=shard_documents)
        found = rows(folder / out)
        assert found == rows(folder / "whole")
        assert [(row[0], row[3]) for row in found] == expected(texts)
        counts = summary.counts
        assert (counts.num_documents, counts.num_rows) == (len(texts), len(found))
        assert counts.num_linked + counts.num_nil == counts.num_mentions == len(found)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["gzip", "parquet", "folder"])
def test_two_workers_write_what_one_does(kind: str, tmp_path: Path, index: Path) -> None:
    texts = [f"w{i} again\u2003é🦁 ?n" for i in range(40)]
    docs = store(tmp_path, kind, texts)
    run_words(docs, tmp_path / "one", index, shard_documents=3)
    run_words(docs, tmp_path / "two", index, workers=2, shard_documents=3)
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    assert [(row[0], row[3]) for row in rows(tmp_path / "two")] == expected(texts)
    parts = [sorted((tmp_path / out).glob("part-*")) for out in ("one", "two")]
    assert [part.read_bytes() for part in parts[0]] == [part.read_bytes() for part in parts[1]]
