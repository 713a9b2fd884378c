"""Rows arriving in rank order, parted by length on disk, then written as one file per length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index_builder.durable import naming
from index_builder.runs import IntArray
from index_builder.version_files import VersionFiles
from retrieval.index.layout import MAX_COLUMNAR_LENGTH, rows_file, rows_schema, token_type
from retrieval.index.manifest import Bucket


class RowBucketWriter:
    """Spills rows per length; costs memory for one block of rows, and later for one length at a time.

    On disk it takes what the rows files will take, and each spill is removed when its file is written.

    Args:
        work: An empty directory for the spills.
        vocab_size: Every token is below this.
    """

    def __init__(self, work: Path, vocab_size: int) -> None:
        self._work = work
        self._type = token_type(vocab_size)
        self._rows: dict[int, int] = {}
        self.num_rows = 0
        self.num_tokens = 0
        self.max_token_id = 0

    def add(self, tokens: IntArray, offsets: IntArray) -> None:
        """Append rows; they follow those of the last call in rank.

        Args:
            tokens: Shape: (any,), of the vocabulary's type.
            offsets: Row i is tokens[offsets[i] : offsets[i + 1]]. Shape: (n + 1,), int64.
        """
        lengths = np.diff(offsets)
        by_length = np.argsort(lengths, kind="stable")
        present, begins = np.unique(lengths[by_length], return_index=True)
        ends = [*begins[1:].tolist(), len(lengths)]
        for length, begin, end in zip(present.tolist(), begins.tolist(), ends, strict=True):
            places = by_length[begin:end]
            matrix = tokens[offsets[places][:, None] + np.arange(length)]
            _append(self._work / f"{length}.tokens", matrix)
            _append(self._work / f"{length}.ranks", (places + self.num_rows).astype(np.int32))
            self._rows[length] = self._rows.get(length, 0) + end - begin
        self.num_rows += len(lengths)
        self.num_tokens += len(tokens)
        self.max_token_id = max(self.max_token_id, int(tokens.max(initial=0)))

    def write(self, files: VersionFiles) -> tuple[Bucket, ...]:
        """Write one file per length.

        Returns:
            The buckets, by length.
        """
        buckets = [Bucket(length, self._rows[length]) for length in sorted(self._rows)]
        for bucket in buckets:
            schema = rows_schema(bucket.length, self._type)
            batch = pa.record_batch(self._columns(bucket, schema), schema=schema)
            files.write(rows_file(bucket.length), schema, [batch])
        return tuple(buckets)

    def _columns(self, bucket: Bucket, schema: pa.Schema) -> list[pa.Array]:
        flat = _take(self._work / f"{bucket.length}.tokens", self._type.to_pandas_dtype())
        columns: list[pa.Array]
        if bucket.length <= MAX_COLUMNAR_LENGTH:
            matrix = np.ascontiguousarray(flat.reshape(-1, bucket.length).T)
            columns = [pa.array(column) for column in matrix]
        else:
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(flat), type=schema.field("tokens").type)]
        ranks = _take(self._work / f"{bucket.length}.ranks", np.int32)
        return [*columns, pa.array(ranks)]


def _append(path: Path, array: npt.NDArray[Any]) -> None:
    with naming(path), path.open("ab") as file:
        file.write(np.ascontiguousarray(array).data)


def _take(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.fromfile(path, dtype=dtype)
    path.unlink()
    return array
