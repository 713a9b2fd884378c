"""A file that is no longer what was planned is refused by name; a moved one is not."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.errors import SourceError
from retrieval.linking.documents.corpus import CorpusOptions, Shard, plan_corpus
from tests.corpus_shards import read_shard

LINES = "".join(json.dumps({"text": f"line {number}"}) + "\n" for number in range(10, 30)).encode()


def swap(content: bytes) -> bytes:
    return content.replace(b"line 15", b"line 51")


def read(options: CorpusOptions, shard: Shard) -> int:
    return len(list(read_shard(options, shard)))


@pytest.mark.parametrize(
    ("name", "content", "other", "shard_chars"),
    [
        ("c.jsonl", LINES, swap, 10**6),
        ("c.jsonl", LINES, lambda content: content + b"{}\n", 10**6),
        ("c.jsonl", LINES, lambda content: content[:-20], 10**6),
        ("c.jsonl", LINES, lambda content: content[:-9] + content[-8:] + b" ", 10**6),
        ("c.txt", LINES, swap, 10**6),
        ("c.txt", LINES, lambda content: content[:-1] + b"\xff", 10**6),
        ("c.txt", LINES, lambda content: content + b"more", 10**6),
        ("c.txt", LINES, swap, 100),
        ("c.txt", LINES, lambda content: content.replace(b"line 15", b"line \xff\xff"), 100),
        ("c.jsonl", json.dumps({"text": LINES.decode()}).encode(), swap, 100),
    ],
    ids=[
        "a line",
        "a line more",
        "a line less",
        "moved",
        "text",
        "bad text",
        "more text",
        "a part",
        "a bad part",
        "a part of a line",
    ],
)
def test_changed_content(
    tmp_path: Path, name: str, content: bytes, other: Callable[[bytes], bytes], shard_chars: int
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    options = CorpusOptions((str(file),), shard_chars=shard_chars)
    shards = plan_corpus(options).shards
    file.write_bytes(other(content))
    messages = []
    for shard in shards:
        try:
            read(options, shard)
        except SourceError as error:
            messages.append(str(error))
    assert messages
    for message in messages:
        assert message.startswith(f"{file}: the file has changed since the run was planned (")
        assert message.endswith("put it back as it was, or begin the run anew with another output folder")
    file.write_bytes(content)
    assert sum(read(options, shard) for shard in shards) == sum(shard.num_documents for shard in shards)


def test_compressed_lines(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl.gz"
    file.write_bytes(gzip.compress(LINES, compresslevel=0, mtime=0))
    options = CorpusOptions((str(file),))
    (shard,) = plan_corpus(options).shards
    file.write_bytes(gzip.compress(swap(LINES), compresslevel=0, mtime=0))
    assert file.stat().st_size == shard.files[0].num_bytes
    with pytest.raises(SourceError, match=r"the file has changed .*lines 1 to 20 are others"):
        read(options, shard)


def test_tables(tmp_path: Path) -> None:
    file = tmp_path / "c.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), file)
    options = CorpusOptions((str(file),))
    (shard,) = plan_corpus(options).shards
    pq.write_table(pa.table({"text": ["a", "c"]}), file)
    assert file.stat().st_size == shard.files[0].num_bytes
    with pytest.raises(SourceError, match=r"the file has changed .*its footer is another"):
        read(options, shard)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(LINES)
    options = CorpusOptions((str(file),))
    (shard,) = plan_corpus(options).shards
    file.unlink()
    with pytest.raises(SourceError, match=r"c\.jsonl: no such file"):
        read(options, shard)


def test_time_and_place_of_a_file_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a" / "c.jsonl"
    file.parent.mkdir()
    file.write_bytes(LINES)
    monkeypatch.chdir(file.parent)
    options = CorpusOptions((".",))
    (shard,) = plan_corpus(options).shards
    os.utime(file, (1, 1))
    assert read(options, shard) == 20
    file.parent.rename(tmp_path / "b")
    moved = CorpusOptions((str(tmp_path / "b"),))
    (again,) = plan_corpus(moved).shards
    assert again.digest == shard.digest
    assert read(moved, replace(shard, files=again.files)) == 20


def test_a_file_that_is_written_to_while_it_is_planned(tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    file.write_bytes(LINES * 20_000)

    def grow(num_bytes: int) -> None:
        with file.open("ab") as stream:
            stream.write(b"{}\n")

    with pytest.raises(SourceError, match=r"c\.jsonl: the file changed while it was read"):
        plan_corpus(CorpusOptions((str(file),)), grow)
