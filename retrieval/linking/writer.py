"""Writing linked mentions: Parquet or JSON lines, complete or not at all.

The output appears under its name only when every row is in it: it is written beside it, flushed to disk
and renamed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from retrieval.errors import InputError, SourceError

_CANDIDATE = pa.struct([("entity_id", pa.string()), ("title", pa.string()), ("logprob", pa.float64())])
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

    Args:
        path: Ends in .parquet or .jsonl.
        metadata: Kept in the Parquet schema: index digest, model, options.

    Raises:
        InputError: the name has another ending.
        SourceError: the folder is missing or cannot be written.
    """

    def __init__(self, path: str | Path, metadata: dict[str, str]) -> None:
        self.path = Path(path)
        if self.path.suffix not in (".parquet", ".jsonl"):
            raise InputError("out", f"must end in .parquet or .jsonl, got {self.path.name!r}")
        self._staging = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            self._sink: _Sink = (
                _ParquetSink(self._staging, metadata)
                if self.path.suffix == ".parquet"
                else _JsonLinesSink(self._staging)
            )
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be written: {error}") from error

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows; keys are the columns of `SCHEMA`."""
        self._sink.write(rows)

    def __enter__(self) -> LinkWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sink.close()
        if error is not None:
            self._staging.unlink(missing_ok=True)
            return
        with self._staging.open("rb") as written:
            os.fsync(written.fileno())
        self._staging.replace(self.path)
