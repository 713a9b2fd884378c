"""Reads one Arrow file of an index: memory-mapped, sized, digested and structurally checked."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.retrieval.errors import IndexChecksumError, IndexFormatError
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.index.small_files import digest_bytes, kind_of


def open_mapped(folder: Path, entry: FileEntry, verify_digest: bool) -> pa.Buffer:
    """Map a file and compare it with its manifest entry: the mapping that is checked is the one that is read.

    Raises:
        IndexChecksumError: the file is missing, or its size or digest differs.
    """
    path = folder / entry.name
    try:
        found = path.stat()
    except OSError as error:
        raise IndexChecksumError(entry.name, f"cannot be read ({error.strerror}) in {folder}") from error
    size = found.st_size
    if not stat.S_ISREG(found.st_mode):  # mapping a pipe would wait for a writer
        raise IndexChecksumError(entry.name, f"expected a file, got a {kind_of(found)}, in {folder}")
    if size != entry.bytes:
        raise IndexChecksumError(
            entry.name, f"the manifest says {entry.bytes} bytes, got {size}, in {folder}"
        )
    try:
        with pa.memory_map(str(path), "r") as mapped:
            data = mapped.read_buffer(size)
    except (pa.ArrowException, OSError) as error:
        raise IndexChecksumError(entry.name, f"cannot be mapped in {folder}: {error}") from error
    if verify_digest:
        digest = digest_bytes(data)
        if digest != entry.xxh3_128:
            raise IndexChecksumError(
                entry.name, f"the manifest says digest {entry.xxh3_128}, got {digest}, in {folder}"
            )
    return data


def read_schema(data: pa.Buffer, name: str) -> pa.Schema:
    """Return the schema of a mapped file; IndexFormatError if it is no Arrow file."""
    try:
        schema = pa.ipc.open_file(pa.BufferReader(data)).schema
        str(schema)  # decodes all names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IndexFormatError(f"{name}: not a readable Arrow file: {error}") from error
    return schema


def read_table(data: pa.Buffer, name: str, schemas: Sequence[pa.Schema], num_rows: int) -> pa.Table:
    """Return the zero-copy table of a mapped file called `name`.

    Raises:
        IndexFormatError: it is no Arrow file, or has none of the schemas, or not `num_rows` rows.
    """
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        table.validate()
        found = str(table.schema)  # decodes all names: damaged ones are found here, not at their first use
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IndexFormatError(f"{name}: not a readable Arrow file: {error}") from error
    if not any(table.schema.equals(schema, check_metadata=False) for schema in schemas):
        raise IndexFormatError(f"{name}: expected the columns {_brief(str(schemas[0]))}, got {_brief(found)}")
    if table.num_rows != num_rows:
        raise IndexFormatError(f"{name}: expected {num_rows} rows, got {table.num_rows}")
    for field in table.schema:
        if not field.nullable and table.column(field.name).null_count:
            raise IndexFormatError(f"{name}: column {field.name!r} has nulls")
    return table


def single_chunk(table: pa.Table, name: str, column: str) -> pa.Array:
    """Return a column as one contiguous piece; IndexFormatError if it is stored in several."""
    chunked = table.column(column)
    if chunked.num_chunks != 1:
        raise IndexFormatError(f"{name}: expected one record batch, got {chunked.num_chunks}")
    return chunked.chunk(0)


def as_numpy(array: pa.Array) -> npt.NDArray[np.signedinteger]:
    """Return a zero-copy, read-only NumPy view of an integer array; ArrowInvalid if there are nulls."""
    if array.null_count:
        raise pa.ArrowInvalid(f"expected integers, got {array.null_count} nulls among them")
    # `to_numpy` and, the other way round, `pyarrow.array` import pandas where it is installed: 0.2 s.
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if data is None:  # of an empty array
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def as_arrow(numbers: npt.NDArray[np.signedinteger]) -> pa.Array:
    """Return a zero-copy Arrow array of contiguous integers. Shape: (n,)."""
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)]
    )


def _brief(schema: str) -> str:
    text = ", ".join(schema.splitlines())
    return text if len(text) <= 200 else text[:200] + " …"
