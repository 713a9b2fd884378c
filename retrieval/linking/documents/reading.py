"""`CorpusReader`: reads the shards of a corpus, best in their order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import TracebackType

from retrieval.linking.documents.content import Content
from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.documents.files import file_format
from retrieval.linking.documents.line_files import read_lines
from retrieval.linking.documents.parquet_files import ParquetRows, read_parquet
from retrieval.linking.documents.shard import Shard, ShardFile
from retrieval.linking.documents.staleness import check_size
from retrieval.linking.documents.text_files import part_begin, read_text, read_text_part


class CorpusReader:
    """Reads shards, one at a time, by one thread.

    The file read last stays open: where the next shard goes on in a compressed file, or in a row group of a
    Parquet file, what lies before it is not read again.

    Args:
        options: How documents are read.
    """

    def __init__(self, options: CorpusOptions) -> None:
        self._options = options
        self._path = ""  # of the file that is open
        self._content: Content | None = None
        self._rows: ParquetRows | None = None

    def __enter__(self) -> CorpusReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, shard: Shard) -> Iterator[Document | BadDocument]:
        """Yield the documents of a shard; see `read_shard`."""
        for file in shard.files:
            check_size(file)
            yield from self._read(file, file_format(file.path, self._options))

    def close(self) -> None:
        """Close the file that is open. Idempotent."""
        for file in (self._content, self._rows):
            if file is not None:
                file.close()
        self._content = self._rows = None

    def _read(self, file: ShardFile, input_format: str) -> Iterator[Document | BadDocument]:
        if input_format == "parquet":
            yield from read_parquet(self._rows_of(file), file, self._options)
        elif input_format != "text":
            content = self._lines_of(file)
            yield from read_lines(content, file, input_format == "jsonl", self._options)
        elif file.part is None:
            with closing(Content(file.path, any_content=True)) as content:
                yield read_text(content, file, self._options)
        else:
            with closing(Content(file.path, part_begin(file), any_content=True)) as content:
                yield read_text_part(content, file, file.part)

    def _rows_of(self, file: ShardFile) -> ParquetRows:
        """Return the file at or before the stretch."""
        rows = self._rows
        if rows is None or self._path != file.path or rows.next_row > file.first_row:
            self.close()
            rows = self._rows = ParquetRows(file.path, self._options)
            self._path = file.path
        return rows

    def _lines_of(self, file: ShardFile) -> Content:
        """Return the file at the stretch."""
        content = self._content
        if content is not None and self._path == file.path:
            ahead = file.byte_offset - content.position
            if ahead == 0 or (ahead > 0 and content.stream.is_compressed):
                content.skip_to(file.byte_offset)
                return content
        self.close()
        content = self._content = Content(file.path, file.byte_offset)
        self._path = file.path
        return content
