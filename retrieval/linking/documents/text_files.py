"""Cuts and reads text files: a document per line (JSON Lines or plain lines), or one document per file.

Of a long file that is one document, a part is read without the rest. A file that cannot be read, or is not
what it was when it was cut, is a `SourceError`.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Any, cast

import xxhash

from genret.retrieval.errors import SourceError
from genret.retrieval.linking.documents.corpus import CorpusOptions, ShardCutter, ShardFile
from genret.retrieval.linking.documents.document_records import default_id, record_document
from genret.retrieval.linking.documents.input_files import Content, Line, changed
from genret.retrieval.linking.documents.text_document import (
    CONTEXT_CHARS,
    BadDocument,
    Document,
    cut_stream,
)
from genret.retrieval.sources.records import BadRow
from genret.retrieval.sources.row_readers import parse_object
from genret.retrieval.sources.source_files import BOM, PARQUET_MAGIC

_REPORT_EVERY = 1 << 20


def plan_lines(
    content: Content,
    source: str,
    is_json: bool,
    options: CorpusOptions,
    cutter: ShardCutter,
    report: Callable[[int], None],
) -> None:
    """Read a file of lines once and cut it; `report` is told, now and then, the bytes read so far."""
    if content.stream.peek(len(PARQUET_MAGIC)).startswith(PARQUET_MAGIC):
        raise SourceError(f"{content.stream.name}: this is a Parquet file; expected lines of text")
    row, reported = 0, 0
    while True:
        offset = content.position
        line = content.line()
        if line is None:
            return
        row += 1
        length, document = line.num_bytes, None
        if length > options.shard_chars:
            document = line_document(line, source, row, is_json, options)
            length = len(document.text) if isinstance(document, Document) else 0  # nothing else is kept
        if is_json and line.raw.isspace():
            cutter.skip_row(row, offset, line.raw)
        elif not cutter.add_parts(row, offset, document, line.raw):
            cutter.add_row(row, offset, length, line.raw)
        if content.position - reported >= _REPORT_EVERY:
            reported = content.position
            report(content.stream.raw.bytes_read)


def read_lines(
    content: Content, file: ShardFile, is_json: bool, options: CorpusOptions
) -> Iterator[Document | BadDocument]:
    """Yield the documents of a stretch of lines; `content` is at the stretch."""
    digest = xxhash.xxh3_64()
    for row in range(file.first_row, file.first_row + file.num_rows):
        line = content.line()
        if line is None:
            raise changed(file, f"it ends before line {row}")
        digest.update(line.raw)
        if row + 1 == file.first_row + file.num_rows and file.digest not in ("", digest.hexdigest()):
            raise changed(file, f"lines {file.first_row} to {row} are others")
        document = line_document(line, file.source, row, is_json, options)
        if document is not None:
            yield document


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


_BLOCK_BYTES = 1 << 18
_MAX_CODE_POINT_BYTES = 4
_CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes in which no code point begins


class _BadUtf8Error(ValueError):
    """A text that is no UTF-8 at a byte of the content, from 0."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def plan_text(
    content: Content, options: CorpusOptions, cutter: ShardCutter, report: Callable[[int], None]
) -> None:
    """Read a file that is one document once and cut it; `report` is told, now and then, the bytes read."""
    whole = xxhash.xxh3_64()
    try:
        parts = list(_parts(content, whole, report, options.shard_chars))
    except _BadUtf8Error:
        cutter.add_part(1, 0, None, 0, whole.hexdigest())
        return
    if len(parts) == 1:
        cutter.add_part(1, 0, None, parts[0][2], whole.hexdigest())
        return
    for offset, begin, end, digest in parts:
        cutter.add_part(1, offset, (begin, end), end - begin, digest)


def read_text(content: Content, file: ShardFile, options: CorpusOptions) -> Document | BadDocument:
    """Return the document of a whole file that is no longer than a part."""
    digest = xxhash.xxh3_64()
    pieces: list[str] = []
    length = 0
    bad: str | None = None
    try:
        for piece in _decoded(content, digest):
            length += len(piece)
            if length <= options.shard_chars:  # a longer one is bad somewhere, or not what was planned
                pieces.append(piece)
    except _BadUtf8Error as error:
        bad = f"not valid UTF-8 at byte {error.position + 1}"
    if file.digest not in ("", digest.hexdigest()):
        raise changed(file, "its content is another")
    if bad is not None:
        return BadDocument(file.source, 1, bad)
    if length > options.shard_chars:
        raise changed(file, f"it has {length} characters")
    return Document(file.source, 1, default_id(file.source, 1), "".join(pieces))


def part_begin(file: ShardFile) -> int:
    """Return where reading begins for a part: the text before the part is some of it."""
    return max(0, file.byte_offset - _MAX_CODE_POINT_BYTES * CONTEXT_CHARS)


def read_text_part(content: Content, file: ShardFile, part: tuple[int, int]) -> Document:
    """Return a part [begin, end) of a long text, with the text around it; no more than that is held.

    `content` is at `part_begin`; nothing of it has been read.
    """
    begin, end = part
    length = end - begin
    front = _front(content)
    content.skip_to(front)
    at = content.position
    try:
        raw = content.read(file.byte_offset - at)
        left = (raw.lstrip(_CONTINUATIONS) if at > front else raw).decode()[-CONTEXT_CHARS:]
        wanted = length + CONTEXT_CHARS  # characters; as many bytes are read at once
        right = codecs.getreader("utf-8")(cast("Any", content)).read(wanted, wanted)
    except UnicodeDecodeError:
        raise changed(file, "it is no longer valid UTF-8") from None
    digest = xxhash.xxh3_64_hexdigest(right[:length].encode())
    if len(right) < length or file.digest not in ("", digest):
        raise changed(file, f"its text from byte {file.byte_offset + 1} on is another")
    doc_id, middle = default_id(file.source, 1), len(left)
    places = middle, middle + length, begin - middle, file.byte_offset - front - len(left.encode())
    return Document(file.source, 1, doc_id, left + right, None, *places)


def _parts(
    content: Content, digest: Any, report: Callable[[int], None], size: int
) -> Iterator[tuple[int, int, int, str]]:
    """Yield byte offset, begin, end and digest of the parts of a text."""
    offset, begin = _front(content), 0
    for part in cut_stream(_decoded(content, digest, report), size):
        raw = part.encode()
        yield offset, begin, begin + len(part), xxhash.xxh3_64_hexdigest(raw)
        offset += len(raw)
        begin += len(part)


def _decoded(
    content: Content, digest: Any, report: Callable[[int], None] = lambda num_bytes: None
) -> Iterator[str]:
    """Yield the text of a file from its front, piece by piece, and digest all of its bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done, is_first = 0, True
    while True:
        block = content.read(_BLOCK_BYTES)
        digest.update(block)
        pending, _ = decoder.getstate()
        try:
            piece = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            while block := content.read(_BLOCK_BYTES):
                digest.update(block)
            raise _BadUtf8Error(done - len(pending) + error.start) from None
        done += len(block)
        yield piece.removeprefix("\ufeff") if is_first else piece
        is_first = False
        if not block:
            return
        report(content.stream.raw.bytes_read)


def _front(content: Content) -> int:
    """Return how many bytes are in front of the text."""
    return len(BOM) if content.stream.peek(len(BOM)).startswith(BOM) else 0
