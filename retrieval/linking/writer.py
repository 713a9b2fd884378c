"""Writing linked mentions: Parquet or JSON lines, complete or not at all.

The output appears under its name only when every row is in it: it is written beside it, flushed to disk
and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from retrieval.errors import InputError, SourceError

_CANDIDATE = pa.struct(
    [("entity_id", pa.string()), ("title", pa.string()), ("logprob", pa.float64()), ("score", pa.float64())]
)
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("mention", pa.string()),
        ("entity_id", pa.string()),
        ("title", pa.string()),
        ("surface", pa.string()),
        ("logprob", pa.float64()),
        ("probability", pa.float64()),
        ("candidates", pa.list_(_CANDIDATE)),
        ("error", pa.string()),
        ("mass", pa.float64()),
        ("abstained", pa.bool_()),
        ("score", pa.float64()),
        ("certified", pa.bool_()),
    ]
)


class _Sink(Protocol):
    def write(self, rows: Sequence[dict[str, Any]]) -> None: ...

    def close(self) -> None: ...


class _ParquetSink:
    def __init__(self, path: Path, metadata: dict[str, str]) -> None:
        self._schema = SCHEMA.with_metadata({f"genret.{key}": value for key, value in metadata.items()})
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._writer.write_table(pa.Table.from_pylist(list(rows), schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _JsonLinesSink:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def close(self) -> None:
        self._file.close()


class LinkWriter:
    """Writes rows of `SCHEMA`; the file appears when the block ends without an error.

    Until then the rows are in a hidden `.partial` file beside it, which only a killed process leaves behind.

    Args:
        path: Ends in .parquet or .jsonl.
        metadata: Kept in the Parquet schema: index digest, model, options.

    Raises:
        InputError: the name has another ending, or is that of a directory.
        SourceError: the folder is missing or cannot be written.
    """

    def __init__(self, path: str | Path, metadata: dict[str, str]) -> None:
        check_output(path)
        self.path = Path(path)
        self._staging = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        with self._writing():
            self._sink: _Sink = (
                _ParquetSink(self._staging, metadata)
                if self.path.suffix == ".parquet"
                else _JsonLinesSink(self._staging)
            )

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows; keys are the columns of `SCHEMA`.

        Raises:
            SourceError: the disk is full, or fails.
        """
        with self._writing():
            self._sink.write(rows)

    def __enter__(self) -> LinkWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._writing():
                self._sink.close()
                if error is None:
                    _flush(self._staging)
                    self._staging.replace(self.path)
                    _flush(self.path.parent)
        finally:
            self._staging.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)  # Arrow's own have the text alone
            raise SourceError(f"{self.path}: cannot be written: {reason}") from error


def check_output(path: str | Path) -> None:
    """Refuse a path that no output can be written to, before any work is done.

    Raises:
        InputError: the name has another ending than .parquet or .jsonl, or is that of a directory.
        SourceError: the folder is missing.
    """
    file = Path(path)
    if file.suffix not in (".parquet", ".jsonl"):
        raise InputError("out", f"must end in .parquet or .jsonl, got {file.name!r}")
    if file.is_dir():
        raise InputError("out", f"{file} is a directory")
    if not file.parent.is_dir():
        raise SourceError(f"{file}: cannot be written: there is no folder {file.parent}")


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
