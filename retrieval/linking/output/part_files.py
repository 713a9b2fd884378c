"""Writes rows, one per mention, to part files, and merges parts to one file, in order and in bounded memory.

A part holds the rows of one shard as Parquet or JSON Lines; the same rows make the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from genret.retrieval.durable import writing
from genret.retrieval.errors import SourceError
from genret.retrieval.index.small_files import digest_file

CANDIDATE = pa.struct(
    [(name, pa.string()) for name in ("entity_id", "title")]
    + [(name, pa.float64()) for name in ("logprob", "score", "probability")]
)
SCHEMA = pa.schema(
    [
        ("source", pa.string()),  # input file
        ("row", pa.int64()),  # line or row of it, from 1
        ("doc_id", pa.string()),
        ("mention_id", pa.string()),  # the input's own, or null
        ("start", pa.int64()),  # code points of the document, [start, end)
        ("end", pa.int64()),
        ("start_byte", pa.int64()),  # the same in bytes of its UTF-8 text
        ("end_byte", pa.int64()),
        ("mention", pa.string()),
        ("entity_id", pa.string()),  # null: NIL
        ("title", pa.string()),
        ("surface", pa.string()),  # the surface form that was written
        ("logprob", pa.float64()),
        ("score", pa.float64()),
        ("probability", pa.float64()),
        # null, or no_match, abstained, min_logprob, min_probability, no_name, error
        ("nil_reason", pa.string()),
        ("candidates", pa.list_(CANDIDATE)),
        ("certified", pa.bool_()),
        ("mass", pa.float64()),
        ("mention_source", pa.string()),  # given, found or generated
        ("method", pa.string()),  # auto, beam, disc, shortlist, or name: no model was needed
        ("error", pa.string()),
        ("index_digest", pa.string()),
    ]
)


# Rows and candidates of a row group: bounds the memory, and cuts groups by what the rows are alone.
_GROUP_WEIGHT = 1 << 16
_METADATA_PREFIX = "genret."

Row = dict[str, Any]
_T = TypeVar("_T")


class ParquetSink:
    """Writes rows to a Parquet file, one row group per call; metadata go into the schema."""

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
    """Writes rows as lines of JSON in UTF-8, with the fields in the order of the schema."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="\n")

    def write(self, rows: Sequence[Row]) -> None:
        """Write lines."""
        for row in rows:
            ordered = {name: row[name] for name in SCHEMA.names}
            self._file.write(json.dumps(ordered, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Write what is buffered, and close the file."""
        self._file.close()


def write_part(
    path: Path,
    output_format: str,
    metadata: Mapping[str, str],
    batches: Iterable[Sequence[Row]],
    shown: Path | None = None,
) -> int:
    """Write rows in bounded memory, and return how many there were; a full disk is a `SourceError`.

    How the rows are batched does not show in the file. It is there even when this fails; `shown` is its name
    in errors, where it is written under another one.
    """
    num_rows, shown = 0, shown or path
    with writing(shown):
        sink = ParquetSink(path, metadata) if output_format == "parquet" else JsonLinesSink(path)
    try:
        rows = chain.from_iterable(batches)
        for group in _gathered(rows, lambda row: 1 + len(row["candidates"]), _GROUP_WEIGHT):
            with writing(shown):
                sink.write(group)
            num_rows += len(group)
    except BaseException:
        with suppress(OSError):  # the full disk that ended the writing; that error is on its way already
            sink.close()
        raise
    with writing(shown):
        sink.close()
    return num_rows


def _gathered(items: Iterable[_T], weight_of: Callable[[_T], int], enough: int) -> Iterator[list[_T]]:
    """Yield the items in lists, each as long as it takes to weigh enough."""
    held: list[_T] = []
    weight = 0
    for item in items:
        held.append(item)
        weight += weight_of(item)
        if weight >= enough:
            yield held
            held, weight = [], 0
    if held:
        yield held


_GROUP_BYTES = 32 << 20  # of Arrow data: many small parts make a file of few row groups
_READ_ROWS = 1 << 13


def check_parts(digests: Mapping[Path, str]) -> None:
    """Raise `SourceError` for a part, maybe of an earlier session, whose XXH3-128 is not the one given."""
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
    """Write the rows of part files of one format, in their order, to one file; see `write_part`."""
    if output_format == "parquet":
        with writing(shown or path), closing(ParquetSink(path, metadata)) as sink:
            batches = (batch.replace_schema_metadata(None) for part in parts for batch in _batches(part))
            for some in _gathered(batches, lambda batch: int(batch.nbytes), _GROUP_BYTES):
                sink.write_table(pa.Table.from_batches(some))
        return
    with writing(shown or path), path.open("wb") as merged:
        for part in parts:
            with _reading(part), part.open("rb") as file:
                while chunk := file.read(1 << 20):
                    with writing(shown or path):
                        merged.write(chunk)


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
