"""Writing the data files of one version. Bytes depend on the data alone: no times, no names of places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from decoding.trie_arrays import TrieArrays
from index_builder.durable import written
from retrieval.index.digests import digest_file
from retrieval.index.layout import TRIE_FILE, token_type, trie_schema
from retrieval.index.manifest import FileEntry


class VersionFiles:
    """Files written into a staging directory, synced, with their sizes and digests.

    Args:
        folder: The staging directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: list[FileEntry] = []

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """Entries of the files written so far, by name."""
        return tuple(sorted(self._entries, key=lambda entry: entry.name))

    def write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Write an Arrow file.

        Raises:
            OSError: it cannot be written; `filename` is set.
        """
        with self.open(name, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    @contextmanager
    def open(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatchWriter]:
        """Yield a writer of record batches; the file counts once the block has ended.

        Raises:
            OSError: it cannot be written; `filename` is set.
        """
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        with written(path) as file, pa.ipc.new_file(file, schema) as writer:
            yield writer
        self._entries.append(FileEntry(name, path.stat().st_size, digest_file(path)))

    def write_trie(self, trie: TrieArrays, vocab_size: int) -> None:
        """Write the transitions."""
        schema = trie_schema(token_type(vocab_size))
        arrays = (trie.token, trie.child_begin, trie.row_begin, trie.tail_begin)
        columns = [
            pa.LargeListArray.from_arrays(
                pa.array([0, len(array)], type=pa.int64()),
                pa.array(array, type=field.type.value_type),
                type=field.type,
            )
            for array, field in zip(arrays, schema, strict=True)
        ]
        self.write(TRIE_FILE, schema, [pa.record_batch(columns, schema=schema)])
