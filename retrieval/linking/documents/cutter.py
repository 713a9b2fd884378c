"""Cuts documents, as they come in the order of the corpus, into shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import xxhash

from genret.retrieval.linking.documents.corpus import CorpusOptions, Shard, ShardFile
from genret.retrieval.linking.documents.input_files import InputFile
from genret.retrieval.linking.documents.text_document import Document, cut_text

# Part of every shard's digest: raised when the same input is read differently.
_READING_VERSION = 1


class ShardCutter:
    """Fills shards up to the number of documents and the length that the options name.

    Attributes:
        num_documents: Documents so far; a long one counts once.
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
        """Add a row that is one document.

        Args:
            row: Its number, from 1; one behind that of the row before.
            offset: Offset of its first byte.
            length: About how long the document is.
            raw: Bytes to digest.
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
    """Neighbouring rows of a file."""

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
