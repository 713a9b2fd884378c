"""Cuts documents, as they come in the order of the corpus, into shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import xxhash

from retrieval.linking.documents.corpus import CorpusOptions, Shard, ShardFile
from retrieval.linking.documents.input_files import InputFile

# Part of every shard's digest: raised when the same input is read differently.
_READING_VERSION = 1


class ShardCutter:
    """Fills shards up to the number of documents and the length that the options name.

    Args:
        options: How much a shard holds.

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
        """Say which file the following rows are from.

        Args:
            file: The file.
            num_bytes: Its size.
            digest: That of all its stretches; None: of the rows in them.
        """
        self._end_stretch()
        self._file, self._num_bytes, self._digest = file, num_bytes, digest

    def add_row(self, row: int, offset: int, length: int, raw: bytes) -> None:
        """Add a row that is one document.

        Args:
            row: Its number, from 1; one behind that of the row before.
            offset: Where it begins.
            length: About how long the document is.
            raw: What is digested.
        """
        self._make_room(length)
        self._count(length)
        self.num_documents += 1
        self._extend(row, offset, raw)

    def skip_row(self, row: int, offset: int, raw: bytes) -> None:
        """Add a row that is no document."""
        self._extend(row, offset, raw)

    def add_part(self, row: int, offset: int, part: tuple[int, int] | None, length: int, digest: str) -> None:
        """Add a part of a document, or with None a file that is one.

        Args:
            row: Row of the document.
            offset: As in `ShardFile`.
            part: As in `ShardFile`.
            length: About how long it is.
            digest: As in `ShardFile`.
        """
        self._make_room(length)
        self._count(length)
        self.num_documents += part is None or part[0] == 0
        self._end_stretch()
        path, source = self._file
        self._files.append(ShardFile(path, source, row, 1, offset, part, self._num_bytes, digest))

    def finish(self, digests: Mapping[str, str]) -> tuple[Shard, ...]:
        """Return the shards.

        Args:
            digests: Digest of every file, by its source.
        """
        self._close()
        return tuple(
            Shard(number, files, documents, _digest(self._options, files, digests))
            for number, (files, documents) in enumerate(self._closed)
        )

    def _make_room(self, length: int) -> None:
        options = self._options
        if self._documents and (
            self._documents >= options.shard_documents or self._length + length > options.shard_chars
        ):
            self._close()

    def _count(self, length: int) -> None:
        self._documents += 1
        self._length += length

    def _extend(self, row: int, offset: int, raw: bytes) -> None:
        if self._stretch is None:
            self._stretch = _Stretch(row, offset)
        self._stretch.num_rows += 1
        self._stretch.hash.update(raw)

    def _end_stretch(self) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            path, source = self._file
            digest = stretch.hash.hexdigest() if self._digest is None else self._digest
            self._files.append(
                ShardFile(
                    path,
                    source,
                    stretch.first_row,
                    stretch.num_rows,
                    stretch.byte_offset,
                    None,
                    self._num_bytes,
                    digest,
                )
            )

    def _close(self) -> None:
        self._end_stretch()
        if self._documents:  # else nothing but empty lines
            self._closed.append((tuple(self._files), self._documents))
        self._files = []
        self._documents = self._length = 0


class _Stretch:
    """Neighbouring rows of a file."""

    __slots__ = ("byte_offset", "first_row", "hash", "num_rows")

    def __init__(self, first_row: int, byte_offset: int) -> None:
        self.first_row = first_row
        self.byte_offset = byte_offset
        self.num_rows = 0
        self.hash = xxhash.xxh3_64()


def _digest(options: CorpusOptions, files: Iterable[ShardFile], digests: Mapping[str, str]) -> str:
    """Return the fingerprint of what a shard reads, wherever the files lie."""
    reading = [
        _READING_VERSION,
        options.input_format,
        options.id_field,
        options.text_field,
        options.mentions_field,
        options.span_unit,
    ]
    stretches = [[f.source, digests[f.source], f.first_row, f.num_rows, f.byte_offset, f.part] for f in files]
    text = json.dumps([reading, stretches], ensure_ascii=True, separators=(",", ":"))
    return str(xxhash.xxh3_128_hexdigest(text.encode()))
