"""A million small documents and files by the thousand: memory does not grow with what is read."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval.linking.documents.corpus import CorpusOptions, plan_corpus
from retrieval.linking.documents.corpus_reading import CorpusReader
from tests.own_process import TracedMemory, alone

MIB = 1 << 20


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"id": %d, "text": "The Nile, %d"}\n' % (at, at) for at in range(first, first + count))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz"])
def test_a_million_lines(tmp_path: Path, name: str) -> None:
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb") as file:
        for first in range(0, 1_000_000, 10_000):
            file.write(lines(first, 10_000))
    assert alone(peak_of_a_million_lines, CorpusOptions((str(tmp_path / name),))) < 8 * MIB


def peak_of_a_million_lines(options: CorpusOptions) -> int:
    with TracedMemory() as memory, closing(CorpusReader(options)) as reader:
        plan = plan_corpus(options)
        assert plan.num_documents == 1_000_000
        assert len(plan.shards) == 1000
        for shard in (*plan.shards[:3], *plan.shards[-3:]):
            ids = [document.doc_id for document in reader.read(shard)]  # type: ignore[union-attr]
            assert ids == [str(shard.number * 1000 + at) for at in range(1000)]
    return memory.peak


def test_a_large_row_group_is_read_in_batches(tmp_path: Path) -> None:
    file = tmp_path / "c.parquet"
    pq.write_table(
        pa.table({"text": [f"{at:05} " * 1000 for at in range(20_000)]}), file, row_group_size=20_000
    )  # 120 MB of text in one row group
    assert alone(peak_of_arrow_in_a_large_row_group, CorpusOptions((str(file),))) < 40 * MIB


def peak_of_arrow_in_a_large_row_group(options: CorpusOptions) -> int:
    before = pa.total_allocated_bytes()
    highest = []
    plan = plan_corpus(options, lambda num_bytes: highest.append(pa.total_allocated_bytes()))
    assert plan.num_documents == 20_000
    with closing(CorpusReader(options)) as reader:
        for shard in (plan.shards[0], plan.shards[-1], plan.shards[1]):
            documents = list(reader.read(shard))
            assert [document.row for document in documents] == list(
                range(shard.files[0].first_row, shard.files[0].first_row + shard.num_documents)
            )
            assert all(d.text == f"{d.row - 1:05} " * 1000 for d in documents)  # type: ignore[union-attr]
    return max(highest) - before


def test_many_small_files(tmp_path: Path) -> None:
    for at in range(3000):
        (tmp_path / f"{at:04}.txt").write_bytes(b"The Nile")
    # What a plan says about a file: path, name, digest and stretch; no more than two thousand bytes of it.
    assert alone(peak_of_many_small_files, CorpusOptions((str(tmp_path),))) < 3000 * 2000 + 2 * MIB


def peak_of_many_small_files(options: CorpusOptions) -> int:
    with TracedMemory() as memory:
        plan = plan_corpus(options)
    assert [shard.num_documents for shard in plan.shards] == [1000] * 3
    return memory.peak
