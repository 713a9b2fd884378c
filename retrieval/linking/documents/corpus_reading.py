"""Reads a corpus: once to digest its files and cut it into shards, then shard by shard (`CorpusReader`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.documents.corpus import (
    CorpusOptions,
    CorpusPlan,
    InputFile,
    Shard,
    ShardCutter,
    ShardFile,
)
from genret.retrieval.linking.documents.input_files import (
    Content,
    check_size,
    file_format,
    list_files,
)
from genret.retrieval.linking.documents.parquet_files import ParquetRows, plan_parquet, read_parquet
from genret.retrieval.linking.documents.text_document import BadDocument, Document, part_document
from genret.retrieval.linking.documents.text_files import (
    part_begin,
    plan_lines,
    plan_text,
    read_lines,
    read_text,
    read_text_part,
)
from genret.retrieval.sources.source_files import FileState, digest_file


class CorpusReader:
    """Reads shards, one at a time, by one thread.

    The file read last stays open: where the next shard goes on in a compressed file, or in a row group of a
    Parquet file, the content before it is not read again.
    """

    def __init__(self, options: CorpusOptions) -> None:
        self._options = options
        self._path = ""  # of the file that is open
        self._content: Content | None = None
        self._rows: ParquetRows | None = None

    def read(self, shard: Shard) -> Iterator[Document | BadDocument]:
        """Yield the documents of a shard, in order, in bounded memory.

        A file that cannot be read any more, or is not what it was when it was planned, is a SourceError.
        """
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
        if input_format == "text":
            begin = 0 if file.part is None else part_begin(file)
            with closing(Content(file.path, begin, any_content=True)) as content:
                if file.part is None:
                    yield read_text(content, file, self._options)
                else:
                    yield read_text_part(content, file, file.part)
            return
        if input_format == "parquet":
            documents = read_parquet(self._rows_of(file), file, self._options)
        else:
            documents = read_lines(self._lines_of(file), file, input_format == "jsonl", self._options)
        for document in documents:
            if file.part is not None and isinstance(document, Document):
                document = part_document(document, file.part)
            yield document

    def _rows_of(self, file: ShardFile) -> ParquetRows:
        """Return the open file, before the stretch."""
        rows = self._rows
        if rows is None or self._path != file.path or rows.next_row > file.first_row:
            self.close()
            rows = self._rows = ParquetRows(file.path, self._options)
            self._path = file.path
        return rows

    def _lines_of(self, file: ShardFile) -> Content:
        """Return the open file, at the stretch."""
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


_BLOCK_BYTES = 1 << 18


def plan_corpus(options: CorpusOptions, report: Callable[[int], None] = lambda num_bytes: None) -> CorpusPlan:
    """Read the input files once, in bounded memory, and cut them into shards; `report` gets the bytes read.

    Parquet files are read for the digest, then for the columns. A file that is missing, unreadable or of no
    known format, and a corpus without a document, are a SourceError; an input that cannot be one is an
    InputError.
    """
    cutter = ShardCutter(options)
    digests: dict[str, str] = {}
    num_bytes = 0
    for file in list_files(options):
        state = FileState.of(file.path)
        if state is None:
            raise SourceError(f"{file.path}: a pipe or device cannot be read again; expected a regular file")

        def reported(read: int, done: int = num_bytes) -> None:
            report(done + read)

        digests[file.source] = _plan_file(file, state.bytes, options, cutter, reported)
        state.check(file.path)
        num_bytes += state.bytes
        report(num_bytes)
    shards = cutter.finish(digests)
    if not shards:
        files = "1 file" if len(digests) == 1 else f"{len(digests)} files"
        raise SourceError(f"{', '.join(options.inputs)}: no document in {files}")
    return CorpusPlan(shards, cutter.num_documents, num_bytes, digests)


def _plan_file(
    file: InputFile,
    num_bytes: int,
    options: CorpusOptions,
    cutter: ShardCutter,
    report: Callable[[int], None],
) -> str:
    """Cut one file and return its digest."""
    input_format = file_format(file.path, options)
    if input_format == "parquet":
        digest = digest_file(file.path).xxh3_128
        with closing(ParquetRows(file.path, options)) as rows:
            cutter.begin_file(file, num_bytes, rows.footer_digest)
            plan_parquet(rows, num_bytes, file.source, options, cutter, report)
        return digest
    is_text = input_format == "text"
    with closing(Content(file.path, digests=True, any_content=is_text)) as content:
        cutter.begin_file(file, num_bytes)
        if is_text:
            plan_text(content, options, cutter, report)
        else:
            plan_lines(content, file.source, input_format == "jsonl", options, cutter, report)
        while content.stream.raw.read(_BLOCK_BYTES):  # what is behind compressed content
            pass
        return str(content.stream.raw.hexdigest)
