"""Part files: the rows of one shard as Parquet or JSON lines, streamed, the same bytes for the same rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from retrieval.durable import writing
from retrieval.linking.rows import SCHEMA

# Rows and candidates of a row group: bounds the memory, and cuts groups by what the rows are alone.
_GROUP_WEIGHT = 1 << 16
_METADATA_PREFIX = "genret."

Row = dict[str, Any]


class _Sink(Protocol):
    def write(self, rows: Sequence[Row]) -> None: ...

    def close(self) -> None: ...


class ParquetSink:
    """Writes rows to a Parquet file, one row group per call.

    Args:
        path: The file.
        metadata: Kept in the schema, each name with "genret." in front.
    """

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self._schema = SCHEMA.with_metadata(
            {_METADATA_PREFIX + name: text for name, text in metadata.items()}
        )
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", write_page_checksum=True)

    def write(self, rows: Sequence[Row]) -> None:
        """Write a row group."""
        self.write_table(pa.Table.from_pylist(list(rows), schema=self._schema))

    def write_table(self, table: pa.Table) -> None:
        """Write a row group that is a table already."""
        self._writer.write_table(table.cast(self._schema), row_group_size=max(table.num_rows, 1))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


class JsonLinesSink:
    """Writes rows as lines of JSON in UTF-8, with the fields in the order of the schema.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def write(self, rows: Sequence[Row]) -> None:
        """Write lines."""
        for row in rows:
            ordered = {name: row[name] for name in SCHEMA.names}
            self._file.write(json.dumps(ordered, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()


def write_part(
    path: Path,
    output_format: str,
    metadata: Mapping[str, str],
    batches: Iterable[Sequence[Row]],
    shown: Path | None = None,
) -> int:
    """Write rows in bounded memory.

    Args:
        path: The file; it is there even when this fails.
        output_format: "parquet" or "jsonl".
        metadata: Kept in the schema of a Parquet file.
        batches: Rows of `SCHEMA`; how they are batched does not show in the file.
        shown: What errors call the file, where it is written under another name; None: `path`.

    Returns:
        How many rows were written.

    Raises:
        SourceError: the disk is full, or fails.
        Exception: whatever `batches` raises.
    """
    num_rows, shown = 0, shown or path
    with writing(shown):
        sink: _Sink = ParquetSink(path, metadata) if output_format == "parquet" else JsonLinesSink(path)
    closed = False
    try:
        for group in _groups(batches):
            with writing(shown):
                sink.write(group)
            num_rows += len(group)
        with writing(shown):
            closed = True
            sink.close()
    finally:
        if not closed:
            _close_after_failure(sink)
    return num_rows


def _close_after_failure(sink: _Sink) -> None:
    with suppress(OSError):  # the full disk that ended the writing; that error is on its way already
        sink.close()


def _groups(batches: Iterable[Sequence[Row]]) -> Iterator[list[Row]]:
    group: list[Row] = []
    weight = 0
    for batch in batches:
        for row in batch:
            group.append(row)
            weight += 1 + len(row["candidates"])
            if weight >= _GROUP_WEIGHT:
                yield group
                group, weight = [], 0
    if group:
        yield group
