"""Parts joined to one file, in order and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from retrieval.durable import writing
from retrieval.errors import SourceError
from retrieval.index.digests import digest_file
from retrieval.linking.output.part_file import ParquetSink

_GROUP_BYTES = 32 << 20  # of Arrow data: many small parts make a file of few row groups
_READ_ROWS = 1 << 13


def check_parts(digests: Mapping[Path, str]) -> None:
    """See that parts, some maybe of an earlier session, are what was written.

    Args:
        digests: XXH3-128 of every part file.

    Raises:
        SourceError: one cannot be read, or is not.
    """
    for part, digest in digests.items():
        with _reading(part):
            found = digest_file(part)
        if found != digest:
            raise SourceError(
                f"{part}: has been changed since it was written: its digest was {digest}, is now {found}; "
                "delete it, and the same command makes it again"
            )


def merge_parts(
    path: Path,
    output_format: str,
    metadata: Mapping[str, str],
    parts: Sequence[Path],
    shown: Path | None = None,
) -> None:
    """Write the rows of all parts to one file.

    Args:
        path: The file to write; it is there even when this fails.
        output_format: "parquet" or "jsonl".
        metadata: Kept in the schema of a Parquet file.
        parts: Part files of that format, in order.
        shown: What errors call the file, where it is written under another name; None: `path`.

    Raises:
        SourceError: a part cannot be read, or the file cannot be written.
    """
    if output_format == "parquet":
        with writing(shown or path):
            _merge_parquet(path, metadata, parts)
        return
    with writing(shown or path), path.open("wb") as merged:
        for part in parts:
            with _reading(part), part.open("rb") as file:
                while chunk := file.read(1 << 20):
                    with writing(shown or path):
                        merged.write(chunk)


def _merge_parquet(path: Path, metadata: Mapping[str, str], parts: Sequence[Path]) -> None:
    sink = ParquetSink(path, metadata)
    try:
        for table in _tables(parts):
            sink.write_table(table)
    finally:
        sink.close()


def _tables(parts: Sequence[Path]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    num_bytes = 0
    for part in parts:
        for batch in _batches(part):
            waiting.append(batch.replace_schema_metadata(None))
            num_bytes += batch.nbytes
            if num_bytes >= _GROUP_BYTES:
                yield pa.Table.from_batches(waiting)
                waiting, num_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _batches(part: Path) -> Iterator[pa.RecordBatch]:
    with _reading(part):
        file = pq.ParquetFile(part, page_checksum_verification=True)
    with file:
        batches = file.iter_batches(batch_size=_READ_ROWS)
        while True:
            with _reading(part):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


@contextmanager
def _reading(part: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"{part}: cannot be read: {error}; delete it, and the same command makes it again"
        ) from error
