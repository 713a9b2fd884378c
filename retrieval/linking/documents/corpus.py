"""Describes a corpus: the input files, how documents are read from them, and how they are cut into shards.

A shard is the part of a corpus that is linked, written and recorded as one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import xxhash

from genret.retrieval.arguments import check_least, check_words
from genret.retrieval.errors import InputError
from genret.retrieval.linking.documents.text_document import MIN_PART_CHARS, Document, cut_text

SPAN_UNITS = ("codepoint", "byte", "utf16")
INPUT_FORMATS = ("auto", "jsonl", "parquet", "text", "lines")


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """How documents are read; can be sent to other processes.

    All but Parquet files may be compressed with gzip or Zstandard, whatever their names say. Text is kept as
    it is, line ends included; a UTF-8 byte order mark at the front of a file is no part of it, and offsets
    count from behind it.
    """

    inputs: tuple[str, ...]  # files and folders
    # One of `INPUT_FORMATS`: "text" takes a file as one document, "lines" a line; "auto": by name or content.
    input_format: str = "auto"
    id_field: str = "id"  # field or column with a document's id
    text_field: str = "text"  # field or column with its text
    mentions_field: str = "mentions"  # that with its marked spans: objects with start, end and optionally id
    span_unit: str = "codepoint"  # unit of spans, one of `SPAN_UNITS`
    shard_documents: int = 1000  # most documents of a shard
    shard_chars: int = 1_000_000  # most characters of a shard; a longer document is linked in parts

    def __post_init__(self) -> None:
        check_words(self, input_format=INPUT_FORMATS, span_unit=SPAN_UNITS)
        check_least(self, shard_documents=1, shard_chars=MIN_PART_CHARS)
        fields = [self.id_field, self.text_field, self.mentions_field]
        for name in ("id_field", "text_field", "mentions_field"):
            if not getattr(self, name):
                raise InputError(name, "must not be empty")
            if fields.count(getattr(self, name)) > 1:
                raise InputError(name, f"{getattr(self, name)!r} is named for two of id, text and mentions")


@dataclass(frozen=True, slots=True)
class CorpusPlan:
    """The shards of a corpus."""

    shards: tuple[Shard, ...]  # in order; together they hold every document exactly once
    num_documents: int  # documents, bad lines counted (they are found on reading)
    num_bytes: int  # size of the input files
    digests: dict[str, str]  # digest of every input file's bytes, by its source


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A stretch of one input file."""

    path: str
    source: str  # name of the file in the output and in messages
    first_row: int = 1  # number of the first line or row read, from 1
    num_rows: int = 1  # number of lines or rows
    # Begin of the first of them in the content behind the decompression; of a part of a text file, begin of
    # the part; 0 for Parquet.
    byte_offset: int = 0
    # Code points [begin, end) whose mentions are linked, of a document too long for one shard; None: all.
    part: tuple[int, int] | None = None
    # Size of the file as it lies on disk, which must be the same on reading; -1: not known.
    num_bytes: int = -1
    # xxh3_64 of the bytes of the stretch, which must be the same on reading: of the lines with their ends, of
    # a text file's content or the part of it, of a Parquet file's footer; "": not known.
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """A stretch of the corpus that one worker links at a time."""

    number: int  # from 0, in the order of the corpus
    files: tuple[ShardFile, ...]  # stretches of input files, in order
    num_documents: int  # documents in it; a part of one counts as one
    digest: str  # digest of what it reads: digests of the input files and the stretches of them

    @property
    def stretch(self) -> str:
        """The place of its documents, in words."""
        first = self.files[0]
        more = f" and {len(self.files) - 1} more files" if len(self.files) > 1 else ""
        return f"{first.source} from row {first.first_row}{more}"


class InputFile(NamedTuple):
    """One file of a corpus, and its name in the output and in messages."""

    path: str
    source: str


# Part of every shard's digest: raised when the same input is read differently.
_READING_VERSION = 1


class ShardCutter:
    """Fills shards up to the number of documents and the length that the options name.

    `num_documents` are those so far; a long one counts once.
    """

    def __init__(self, options: CorpusOptions) -> None:
        self._options = options
        self._closed: list[tuple[tuple[ShardFile, ...], int]] = []
        self._files: list[ShardFile] = []
        self._documents = 0
        self._length = 0
        self._stretch: _Stretch | None = None
        self.num_documents = 0
        self.begin_file(InputFile("", ""), 0)

    def begin_file(self, file: InputFile, num_bytes: int, digest: str | None = None) -> None:
        """Begin a file of `num_bytes`; all its stretches have `digest`; None: they are digested here."""
        self._end_stretch()
        self._file, self._num_bytes, self._digest = file, num_bytes, digest

    def add_row(self, row: int, offset: int, length: int, raw: bytes) -> None:
        """Add a row (from 1, one behind the row before) that is one document of about this length.

        `offset` is that of its first byte; `raw` are the bytes to digest.
        """
        self._count(length)
        self.num_documents += 1
        self.skip_row(row, offset, raw)

    def skip_row(self, row: int, offset: int, raw: bytes) -> None:
        """Add a row that is no document."""
        if self._stretch is None:
            self._stretch = _Stretch(row, offset)
        self._stretch.num_rows += 1
        self._stretch.hash.update(raw)

    def add_parts(self, row: int, offset: int, document: object, raw: bytes) -> bool:
        """Add the parts of a document that is longer than a shard; anything else is not added: False."""
        most = self._options.shard_chars
        if not isinstance(document, Document) or len(document.text) <= most:
            return False
        digest = self._digest or xxhash.xxh3_64_hexdigest(raw)
        for begin, end in cut_text(document.text, most):
            self.add_part(row, offset, (begin, end), end - begin, digest)
        return True

    def add_part(self, row: int, offset: int, part: tuple[int, int] | None, length: int, digest: str) -> None:
        """Add a part of a document, or with None a file that is one; arguments as in `ShardFile`."""
        self._count(length)
        self.num_documents += part is None or part[0] == 0
        self._end_stretch()
        self._files.append(ShardFile(*self._file, row, 1, offset, part, self._num_bytes, digest))

    def finish(self, digests: Mapping[str, str]) -> tuple[Shard, ...]:
        """Return the shards; `digests` are those of every file, by its source."""
        self._close()
        return tuple(
            Shard(number, files, documents, _digest(self._options, files, digests))
            for number, (files, documents) in enumerate(self._closed)
        )

    def _count(self, length: int) -> None:
        """Count a document, in the next shard where this one has no room for it."""
        options = self._options
        if self._documents and (
            self._documents >= options.shard_documents or self._length + length > options.shard_chars
        ):
            self._close()
        self._documents += 1
        self._length += length

    def _end_stretch(self) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            digest = stretch.hash.hexdigest() if self._digest is None else self._digest
            rows = stretch.first_row, stretch.num_rows, stretch.byte_offset
            self._files.append(ShardFile(*self._file, *rows, None, self._num_bytes, digest))

    def _close(self) -> None:
        self._end_stretch()
        if self._documents:  # else nothing but empty lines
            self._closed.append((tuple(self._files), self._documents))
        self._files = []
        self._documents = self._length = 0


@dataclass(slots=True)
class _Stretch:
    first_row: int
    byte_offset: int
    num_rows: int = 0
    hash: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)


def _digest(options: CorpusOptions, files: Iterable[ShardFile], digests: Mapping[str, str]) -> str:
    """Return the digest of what a shard reads, wherever the files lie."""
    fields = [options.id_field, options.text_field, options.mentions_field]
    reading = [_READING_VERSION, options.input_format, *fields, options.span_unit]
    stretches = [[f.source, digests[f.source], f.first_row, f.num_rows, f.byte_offset, f.part] for f in files]
    text = json.dumps([reading, stretches], ensure_ascii=True, separators=(",", ":"))
    return str(xxhash.xxh3_128_hexdigest(text.encode()))
