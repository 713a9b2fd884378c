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
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linking_fakes import begun, rows_of, run_words

WORDS = st.text(st.sampled_from("aé🦁\u0301\u00a0\u2003 \r\n\tX?"), max_size=30)
LISTS = st.lists(WORDS, min_size=1, max_size=25)


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
    columns = ("doc_id", "start", "end", "mention", "nil_reason")
    return [tuple(row[name] for name in columns) for row in rows_of(out)]


def expected(texts: list[str]) -> list[tuple[str, str]]:
    return [(f"d{i}", word) for i, text in enumerate(texts) for word in text.split()]


@settings(max_examples=40)
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


@pytest.mark.parametrize(("kind", "workers"), [("gzip", 2), ("parquet", 3), ("folder", 2)])
def test_several_workers_write_what_one_does(kind: str, workers: int, tmp_path: Path, index: Path) -> None:
    texts = [f"w{i} again\u2003é🦁 ?n" for i in range(40)]
    docs = store(tmp_path, kind, texts)
    run_words(docs, tmp_path / "one", index, shard_documents=3)
    summary = run_words(docs, tmp_path / "more", index, workers=workers, shard_documents=3)
    assert len({pid for _, pid in begun(tmp_path / "more")}) <= workers
    assert summary.counts.num_documents == len(texts)
    assert rows(tmp_path / "more") == rows(tmp_path / "one")
    assert [(row[0], row[3]) for row in rows(tmp_path / "more")] == expected(texts)
    parts = [sorted((tmp_path / out).glob("part-*")) for out in ("one", "more")]
    assert [part.read_bytes() for part in parts[0]] == [part.read_bytes() for part in parts[1]]
