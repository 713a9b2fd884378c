"""Files whose lines are documents: JSON Lines, and lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import xxhash

from retrieval.errors import SourceError
from retrieval.linking.documents.content import Content, Line
from retrieval.linking.documents.corpus import CorpusOptions
from retrieval.linking.documents.cutter import ShardCutter
from retrieval.linking.documents.document import BadDocument, Document
from retrieval.linking.documents.part_documents import part_document
from retrieval.linking.documents.parts import cut_text
from retrieval.linking.documents.record import default_id, record_document
from retrieval.linking.documents.shard import ShardFile
from retrieval.linking.documents.staleness import changed
from retrieval.sources.json_lines import parse_object
from retrieval.sources.opening import BOM, PARQUET_MAGIC
from retrieval.sources.rows import BadRow

_REPORT_EVERY = 1 << 20


def plan_lines(
    content: Content,
    source: str,
    is_json: bool,
    options: CorpusOptions,
    cutter: ShardCutter,
    report: Callable[[int], None],
) -> None:
    """Read a file once and cut it.

    Args:
        content: The file, at its front.
        source: How it is called.
        is_json: Whether its lines are JSON objects.
        options: How documents are read.
        cutter: Gets the lines.
        report: Told, now and then, the bytes of the file read so far.

    Raises:
        SourceError: the file cannot be read, or is a Parquet file.
    """
    if content.stream.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC):
        raise SourceError(f"{content.stream.name}: this is a Parquet file; expected lines of text")
    row, reported = 0, 0
    while True:
        offset = content.position
        line = content.line()
        if line is None:
            return
        row += 1
        _plan_line(line, source, row, offset, is_json, options, cutter)
        if content.position - reported >= _REPORT_EVERY:
            reported = content.position
            report(content.stream.raw.bytes_read)


def read_lines(
    content: Content, file: ShardFile, is_json: bool, options: CorpusOptions
) -> Iterator[Document | BadDocument]:
    """Yield the documents of a stretch of lines.

    Args:
        content: The file, at the stretch.
        file: The stretch.
        is_json: Whether its lines are JSON objects.
        options: How documents are read.

    Raises:
        SourceError: the file cannot be read, or is not what it was.
    """
    digest = xxhash.xxh3_64()
    for row in range(file.first_row, file.first_row + file.num_rows):
        line = content.line()
        if line is None:
            raise changed(file, f"it ends before line {row}")
        digest.update(line.raw)
        if row + 1 == file.first_row + file.num_rows and file.digest not in ("", digest.hexdigest()):
            raise changed(file, f"lines {file.first_row} to {row} are others")
        document = line_document(line, file.source, row, is_json, options)
        if document is None:
            continue
        if file.part is None or isinstance(document, BadDocument):
            yield document
        else:
            yield part_document(document, file.part)


def line_document(
    line: Line, source: str, row: int, is_json: bool, options: CorpusOptions
) -> Document | BadDocument | None:
    """Return the document of a line; None for a line of white space among JSON objects."""
    raw = line.raw.removesuffix(b"\n").removesuffix(b"\r")
    if row == 1:
        raw = raw.removeprefix(BOM)
    if line.num_bytes > len(line.raw):
        return BadDocument(
            source, row, f"the line has {line.num_bytes} bytes; {len(line.raw)} are the most that are read"
        )
    if not is_json:
        try:
            return Document(source, row, default_id(source, row), raw.decode())
        except UnicodeDecodeError as error:
            return BadDocument(source, row, f"not valid UTF-8 at byte {error.start + 1} of the line")
    if not raw.strip():
        return None
    value = parse_object(raw)
    if isinstance(value, BadRow):
        return BadDocument(source, row, f"{value.reason}: {value.detail}")
    return record_document(value, source, row, options)


def _plan_line(
    line: Line,
    source: str,
    row: int,
    offset: int,
    is_json: bool,
    options: CorpusOptions,
    cutter: ShardCutter,
) -> None:
    length = line.num_bytes
    if length > options.shard_chars:
        document = line_document(line, source, row, is_json, options)
        if isinstance(document, Document):
            length = len(document.text)
            if length > options.shard_chars:
                digest = xxhash.xxh3_64_hexdigest(line.raw)
                for begin, end in cut_text(document.text, options.shard_chars):
                    cutter.add_part(row, offset, (begin, end), end - begin, digest)
                return
        elif document is not None:
            length = 0  # nothing of it is kept
    if is_json and line.raw.isspace():
        cutter.skip_row(row, offset, line.raw)
    else:
        cutter.add_row(row, offset, length, line.raw)
