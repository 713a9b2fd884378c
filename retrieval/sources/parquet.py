"""Rows of a Parquet file; compressed as a whole or through a pipe, it goes to a temporary file first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from retrieval.errors import SourceError
from retrieval.normalize import normalize
from retrieval.sources.columns import LEAVE_OUT
from retrieval.sources.opening import PARQUET_MAGIC, ByteStream
from retrieval.sources.rows import Cell, RowChunk

_BATCH_ROWS = 1 << 12


class ParquetReader:
    """Reads rows by row group; see `RowReader`. A "line" is a row, counted from 1.

    Args:
        path: The file, for random access.
        stream: The same, nothing of it consumed; closed here if it is not needed.

    Raises:
        SourceError: it is no intact Parquet file.
    """

    header_lines = 0

    def __init__(self, path: str | Path, stream: ByteStream) -> None:
        self._stream = stream
        self.name = stream.name
        self._spooled: BinaryIO | None = None
        if stream.is_read_once or stream.is_compressed:
            self._spooled = stream.spool()
        try:
            self._file = pq.ParquetFile(self._spooled or str(path), page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            self._close_spooled()
            raise SourceError(f"{self.name}: damaged or cut off Parquet file: {_one_line(error)}") from error
        self._num_bytes = stream.raw.bytes_read if self._spooled is not None else Path(path).stat().st_size
        self._schema = self._file.schema_arrow
        self.names = tuple(map(normalize, self._schema.names))
        self._used: tuple[int, ...] = tuple(range(len(self.names)))
        self._rows_read = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that have been consumed: as many of all as rows have been read of all."""
        num_rows = self._file.metadata.num_rows
        return self._num_bytes if not num_rows else self._num_bytes * self._rows_read // num_rows

    @property
    def digest(self) -> str:
        """xxh3_128 of what was read, of a stream that can be read only once."""
        return self._stream.raw.hexdigest

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Say which columns are read.

        Raises:
            SourceError: one of them is nested in a way no cell can be.
        """
        self._used = tuple(used)
        for place in self._used:
            kind = self._schema.field(place).type
            if pa.types.is_nested(kind) and not (place in lists and _is_list(kind)):
                hint = "name it as the aliases with --aliases-column, or " if _is_list(kind) else ""
                raise SourceError(
                    f"{self.name}: column {self.names[place]!r} is of type {kind}; expected text, numbers, "
                    f"bools or times; {hint}{LEAVE_OUT}"
                )

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip`; row groups before them are not read."""
        begin = 0
        self._rows_read = skip
        for group in range(self._file.num_row_groups):
            num_rows = self._file.metadata.row_group(group).num_rows
            if begin + num_rows > skip:
                yield from self._group(group, begin, max(0, skip - begin))
            begin += num_rows

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._close_spooled()
        self._stream.close()

    def _group(self, group: int, begin: int, skip: int) -> Iterator[RowChunk]:
        names = [self._schema.field(place).name for place in self._used]
        row = begin
        try:
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                end = row + batch.num_rows
                behind = max(0, begin + skip - row)
                if behind < batch.num_rows:
                    kept = batch.slice(behind)
                    rows = self._rows(kept)
                    self._rows_read = end
                    yield RowChunk(row + behind + 1, rows, is_text=False)
                row = end
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"{self.name}: damaged or cut off in row group {group}, near row {row + 1}: "
                f"{_one_line(error)}"
            ) from error

    def _rows(self, batch: pa.RecordBatch) -> list[Sequence[Cell]]:
        columns: list[list[Cell]] = [[None] * batch.num_rows for _ in self.names]
        for place in self._used:
            columns[place] = _cells(batch.column(self._schema.field(place).name))
        return list(zip(*columns, strict=True))

    def _close_spooled(self) -> None:
        if self._spooled is not None:
            self._spooled.close()


def is_parquet(stream: ByteStream) -> bool:
    """Whether a stream begins as a Parquet file does."""
    return stream.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC)


def _cells(column: pa.Array) -> list[Cell]:
    """Return Python values: str, bytes, int, float, bool, list or None; times and decimals as text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if isinstance(kind, pa.UuidType):
        return [None if cell is None else str(cell) for cell in column.to_pylist()]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        column = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        # Arrow does not look into strings when it reads them; as bytes they make their own rows bad.
        text = pa.large_list(pa.large_binary()) if _is_list(kind) else pa.large_binary()
        return list(column.cast(text).to_pylist())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
