"""A worker process whose coordinator is gone ends without a word, however the pipe says so."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genret.retrieval.linking.documents import corpus_reading as reading
from genret.retrieval.linking.documents.corpus import CorpusOptions
from genret.retrieval.linking.documents.input_files import Content
from genret.retrieval.linking.documents.parquet_files import ParquetRows
from genret.retrieval.linking.link_options import LinkJob, LinkOptions, WorkerOptions
from genret.retrieval.linking.runners.runner import work
from tests.linking_fakes import run_words

JOB = LinkJob(CorpusOptions(("docs",)), LinkOptions(), WorkerOptions("index", num_threads=None), "out")


class IdleWorker:
    """Has nothing open."""

    closed = 0

    def __init__(self, job: LinkJob) -> None:
        assert job is JOB

    def close(self) -> None:
        IdleWorker.closed += 1


class BrokenPipe:
    """Fails as a pipe does whose other end is closed."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.sent: list[Any] = []

    def recv(self) -> Any:
        raise self._error

    def send(self, message: Any) -> None:
        if self.sent:
            raise BrokenPipeError(32, "Broken pipe")
        self.sent.append(message)


@pytest.mark.parametrize("error", [EOFError, BrokenPipeError, ConnectionResetError], ids=lambda e: e.__name__)
def test_a_worker_without_a_coordinator_ends(error: type[Exception]) -> None:
    pipe, closed = BrokenPipe(error()), IdleWorker.closed
    work(cast("Any", pipe), JOB, cast("Any", IdleWorker))
    assert len(pipe.sent) == 1  # that everything is open
    assert IdleWorker.closed == closed + 1


TEXTS = [f"w{i} again" for i in range(20)]


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
