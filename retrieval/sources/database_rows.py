"""Results of queries to databases, by ADBC: streamed into a Parquet file, which then is a source."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from genret.retrieval.durable import appearing
from genret.retrieval.errors import MissingExtraError, SourceError
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.remote_files import RemotePath, shown_address

_SQLITE = "sqlite"
_POSTGRES = "adbc_driver_postgresql"
_DRIVERS = {_SQLITE: "adbc_driver_sqlite", "postgresql": _POSTGRES, "postgres": _POSTGRES}
_FILE = "query.parquet"
_QUERY = re.compile(r"\s*\n\s*query(?: was)?: ", re.IGNORECASE)  # before the query, which the user knows


def is_database(address: object) -> bool:
    """Whether an address is that of a database."""
    return isinstance(address, str) and address.partition("://")[0] in _DRIVERS and "://" in address


def query_result(address: str, sql: str, folder: Path, progress: StepProgress) -> RemotePath:
    """Ask a database and return the file of the rows; no more than a batch of them is held.

    The address is `sqlite:///shop.db` (`sqlite:////data/shop.db` from the root) or
    `postgresql://user@host/database`, with or without a password. The file lies in `folder`.

    Raises:
        MissingExtraError: the driver is not installed.
        SourceError: the database cannot be asked, refuses the query, or has a column of a type that no file
            holds.
        OSError: the file cannot be written.
    """
    shown = shown_address(address)
    file = folder / _FILE
    folder.mkdir(parents=True, exist_ok=True)
    progress.phase(f"asking {shown}")
    with _asked(address, sql, shown) as batches, appearing(file) as staging:
        count = 0
        with pq.ParquetWriter(staging, _plain_schema(batches.schema, shown)) as writer:
            for batch in _read(batches, address, shown):
                writer.write_batch(_plain(batch))
                count += batch.num_rows
                progress.advance(count, f"{count:,} rows")
    return RemotePath.of(address, file)


@contextmanager
def _asked(address: str, sql: str, shown: str) -> Iterator[pa.RecordBatchReader]:
    """Yield the batches of a result. Nothing is changed in the database."""
    protocol = address.partition("://")[0]
    try:
        connect = import_module(f"{_DRIVERS[protocol]}.dbapi").connect
        errors = import_module("adbc_driver_manager").Error
    except ImportError:
        raise MissingExtraError(_DRIVERS[protocol], "sql") from None
    place = address
    if protocol == _SQLITE:
        path = unquote(urlsplit(address).path).removeprefix("/")
        if not os.path.isfile(path):
            raise SourceError(
                f"{shown}: no such file: {path}; an absolute path has four slashes, sqlite:////"
            )
        place = f"file:{quote(path)}?mode=ro"
    try:
        connection = connect(place)
        with closing(connection), closing(connection.cursor()) as cursor:
            if protocol != _SQLITE:
                cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(sql)
            batches = cursor.fetch_record_batch()
            if not batches.schema.names:
                raise SourceError(f"{shown}: the query has no columns; expected a SELECT")
            yield batches
    except errors as error:
        raise _failure(error, address, shown) from None


def _read(batches: pa.RecordBatchReader, address: str, shown: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise _failure(error, address, shown) from None


def _failure(error: Exception, address: str, shown: str) -> SourceError:
    text = " ".join(_QUERY.split(str(error))[0].split())
    if (password := urlsplit(address).password) is not None:
        text = text.replace(password, "…").replace(unquote(password), "…")
    hint = "; SQLite columns may mix types: CAST it in the query" if "Type mismatch" in text else ""
    return SourceError(f"{shown}: {text}{hint}")


def _plain_schema(schema: pa.Schema, shown: str) -> pa.Schema:
    """Return the schema of the file: extension types as they are stored."""
    fields = [pa.field(field.name, getattr(field.type, "storage_type", field.type)) for field in schema]
    for field in fields:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except pa.ArrowException:
            raise SourceError(
                f"{shown}: column {field.name!r} is of type {field.type}; expected text, numbers, bools or "
                "times; CAST it in the query, or leave it out"
            ) from None
    return pa.schema(fields)


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [getattr(column, "storage", column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
