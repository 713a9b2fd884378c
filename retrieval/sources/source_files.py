"""Reads the bytes of a file or of standard input: decompressed, in blocks or lines, with size and digest.

gzip and Zstandard are recognised by their first bytes; other binary formats are refused by name. Lines end in
LF or CRLF; a byte order mark is dropped.
"""

from __future__ import annotations

import gzip
import os
import stat
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast

import pyarrow as pa
import xxhash

from genret.retrieval.errors import SourceError
from genret.retrieval.index import small_files
from genret.retrieval.index.manifest import FileEntry

STDIN = "-"
BOM = b"\xef\xbb\xbf"
MAX_LINE_BYTES = 1 << 24
PARQUET_MAGIC = b"PAR1"
_BLOCK_BYTES = 1 << 18
# Most bytes that are searched for a stretch's whole records; where stretches begin, as sizes and bytes from
# the end of a file.
_MOST_STRETCH_BYTES, _MARGIN, _MARGIN_BYTES = 1 << 20, 4, 1 << 12
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_REFUSED = {
    b"PK\x03\x04": "a zip archive, as an Excel workbook is (save it as CSV UTF-8)",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\x00": "an xz file",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"ARROW1": "an Arrow IPC file",
    b"SQLite format 3\x00": "an SQLite database",
    b"%PDF-": "a PDF file",
}


Cut: TypeAlias = Callable[[bytes, int], bytes]


def as_utf8(encoding: str) -> str:
    """Return how a user converts a file in another encoding, for messages."""
    return f"save it as UTF-8 (Excel: CSV UTF-8), or: iconv -f {encoding} -t UTF-8 FILE > NEW"


class CountedFile:
    """A raw file that counts, and digests if asked to, the bytes that are read."""

    def __init__(self, file: BinaryIO, name: str, digests: bool) -> None:
        self._file = file
        self._name = name
        self._digest = xxhash.xxh3_128() if digests else None
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        try:
            block = self._file.read(size)
        except OSError as error:
            raise SourceError(f"{self._name}: cannot be read: {error.strerror}") from error
        self.bytes_read += len(block)
        if self._digest is not None:
            self._digest.update(block)
        return block

    @property
    def hexdigest(self) -> str:
        """xxh3_128 of the bytes read; "" if they are not digested."""
        return "" if self._digest is None else str(self._digest.hexdigest())


class ByteStream:
    """Decompressed content of a file, or of standard input for "-", once from front to back.

    With `digests` it is digested as it is read, even if it could be read again; with `any_content` content of
    another known format is let through.

    Raises:
        SourceError: it is missing, a directory, unreadable, empty or of an unsupported format.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        digests: bool = False,
        may_be_empty: bool = False,
        any_content: bool = False,
    ) -> None:
        self.is_read_once = is_read_once(path)
        self.name = display_name(path)
        self._may_be_empty = may_be_empty
        self._any_content = any_content
        self._file = _open(path, self.name)
        self.raw = CountedFile(self._file, self.name, digests=digests or self.is_read_once)
        self.is_compressed = False  # known after the first `peek`
        self.kept_share = 1.0  # of the content, once `blocks` has ended
        self._peeked: deque[bytes] = deque()
        self._blocks = self._decompressed()

    def peek(self, size: int) -> bytes:
        """Return `size` or more bytes from the front, fewer if there are no more; nothing is consumed."""
        have = sum(map(len, self._peeked))
        while have < size:
            block = next(self._blocks, None)
            if block is None:
                break
            self._peeked.append(block)
            have += len(block)
        return b"".join(self._peeked)

    def blocks(self) -> Iterator[bytes]:
        """Yield the content in blocks that are not empty.

        Raises:
            SourceError: it cannot be read, or its compression is damaged or cut off.
        """
        if self._peeked:
            # In one piece: a first block may be shorter than a byte order mark.
            peeked = b"".join(self._peeked)
            self._peeked.clear()
            yield peeked
        yield from self._blocks

    @property
    def num_bytes(self) -> int:
        """Bytes of the regular file on disk."""
        return os.fstat(self._file.fileno()).st_size

    def keep_stretches(self, places: Sequence[float], size: int, cut: Cut) -> None:
        """Let `blocks` yield some stretches of a regular file in place of all of it.

        What is compressed is unpacked as a whole, and at most one stretch of each block of it is kept.
        Stretches begin at `places`, ascending shares of the file, and have about `size` bytes of content.
        `cut` returns, of content that begins and ends anywhere, the whole records that begin in so many of
        its first bytes. So none is likelier to be among them because it is long.
        """
        self.peek(1)
        peeked = chain([b"".join(self._peeked)], self._blocks)
        self._peeked = deque()
        latest = self.num_bytes - max(_MARGIN * size, _MARGIN_BYTES)  # few records end behind it
        starts = [max(min(round(place * self.num_bytes), latest), 0) for place in places]
        self._blocks = self._stretches(starts, size, cut, peeked)

    def _stretches(
        self, starts: Sequence[int], size: int, cut: Cut, blocks: Iterator[bytes]
    ) -> Iterator[bytes]:
        kept = total = end = 0
        for start in starts:
            if not self.is_compressed:
                if start < end:
                    continue
                self._file.seek(start)
                blocks = self._plain(self.raw.read(_BLOCK_BYTES))
            held, records, tried = b"", b"", size
            for block in blocks:
                total += len(block)
                if self.is_compressed and self.raw.bytes_read < start:
                    continue
                held += block
                while not records and tried <= len(held):
                    records, tried = cut(held, tried), 2 * tried
                if records or len(held) > _MOST_STRETCH_BYTES:
                    break
            kept, end = kept + len(records), start + tried // 2
            yield records
        total = total + sum(map(len, blocks)) if self.is_compressed else self.num_bytes
        self.kept_share = kept / max(total, 1)

    def blocks_from(self, offset: int) -> Iterator[bytes]:
        """Yield the content from an offset on; in an uncompressed regular file only that is read.

        Raises:
            SourceError: as `blocks`.
        """
        self.peek(1)
        if offset and not self.is_compressed and not self.is_read_once:
            self._peeked.clear()
            self._file.seek(offset)
            yield from self._plain(self.raw.read(_BLOCK_BYTES))
            return
        for block in self.blocks():
            if offset < len(block):
                yield block[offset:]
            offset = max(0, offset - len(block))

    def spool(self) -> BinaryIO:
        """Return the content as an unnamed temporary file, for formats that are not read front to back."""
        file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        try:
            for block in self.blocks():
                file.write(block)
            file.seek(0)
        except OSError as error:
            file.close()
            raise SourceError(f"{self.name}: cannot be unpacked: {error.strerror}") from error
        except BaseException:
            file.close()
            raise
        return cast("BinaryIO", file)

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def _decompressed(self) -> Iterator[bytes]:
        first = self.raw.read(_BLOCK_BYTES)
        compression, blocks = "", self._plain(first)
        if first.startswith(_GZIP):
            compression = "gzip"
            packed = cast("BinaryIO", _Replayed(first, self.raw))
            blocks = self._unpacked(gzip.GzipFile(fileobj=packed), compression)
        elif first.startswith(_ZSTD):
            compression = "Zstandard"
            replayed = pa.PythonFile(_Replayed(first, self.raw), mode="r")
            blocks = self._unpacked(pa.CompressedInputStream(replayed, "zstd"), compression)
        self.is_compressed = bool(compression)
        block = next(blocks, b"")
        if not block:
            if self._may_be_empty:
                return
            raise SourceError(f"{self.name}: the file is empty")
        if not self._any_content:
            self._refuse_other(block, compression)
        yield block
        yield from blocks

    def _refuse_other(self, first: bytes, compression: str) -> None:
        refused = {**_REFUSED, _GZIP: "a gzip file", _ZSTD: "a Zstandard file"} if compression else _REFUSED
        for magic, kind in refused.items():
            if first.startswith(magic):
                inside = f" inside {compression}" if compression else ""
                advice = f"; {as_utf8(kind)}" * (kind == "UTF-16")
                if kind == "an SQLite database":
                    advice = f"; titles are read from one as sqlite:///{self.name} with --sql"
                raise SourceError(
                    f"{self.name}: this is {kind}{inside}; expected UTF-8 text, JSON lines or Parquet, plain "
                    f"or compressed with gzip or Zstandard{advice}"
                )

    def _plain(self, first: bytes) -> Iterator[bytes]:
        block = first
        while block:
            yield block
            block = self.raw.read(_BLOCK_BYTES)

    def _unpacked(self, stream: Any, compression: str) -> Iterator[bytes]:
        """Yield the content of one or several compressed streams in a row."""
        unpacked = 0
        try:
            with stream:
                while data := stream.read(_BLOCK_BYTES):
                    unpacked += len(data)
                    yield data
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            raise SourceError(
                f"{self.name}: the {compression} stream is damaged or cut off near byte "
                f"{self.raw.bytes_read} of the file, after {unpacked} bytes of content: {error}"
            ) from error


class _Replayed:
    """A file whose first block has been read already, in the form that unpackers want."""

    def __init__(self, first: bytes, raw: CountedFile) -> None:
        self._first = first
        self._raw = raw
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        if self._first:
            taken, self._first = self._first[:size], self._first[size:]
            return taken
        return self._raw.read(size if size >= 0 else _BLOCK_BYTES)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def is_read_once(path: object) -> bool:
    """Whether a path is standard input, a pipe, a device or no path: rows in memory; all are read once."""
    if not isinstance(path, str | Path) or str(path) == STDIN:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:  # whoever opens it says what is wrong
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def display_name(path: object) -> str:
    """Return the name of a file in messages."""
    return "standard input" if str(path) == STDIN else getattr(path, "name_shown", "") or str(path)


def files_named(names: Sequence[str]) -> str:
    """Return how some files are named together."""
    more = len(names) - 1
    return names[0] if not more else f"{names[0]} and {more} more file{'s' if more > 1 else ''}"


def recorded_name(path: str | Path) -> str:
    """Return the name of a file in the manifest."""
    return getattr(path, "name_shown", "") or Path(path).name


def _open(path: str | Path, name: str) -> BinaryIO:
    if str(path) == STDIN:
        return sys.stdin.buffer
    with _as_source_errors(name):
        return Path(path).open("rb")


@contextmanager
def _as_source_errors(name: object) -> Iterator[None]:
    """Raise a `SourceError` in place of an error of the file system."""
    try:
        yield
    except FileNotFoundError:
        raise SourceError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise SourceError(f"{name}: this is a directory; expected a titles file") from None
    except OSError as error:
        raise SourceError(f"{name}: cannot be read: {error.strerror}") from error


def first_line(stream: ByteStream) -> bytes:
    """Return the first line without its end; nothing is consumed.

    Raises:
        SourceError: it is too long, or the file holds nothing but white space.
    """
    size = 1 << 12
    while b"\n" not in (head := stream.peek(size)) and size <= len(head) and size <= MAX_LINE_BYTES:
        size <<= 2
    line, _, _ = head.removeprefix(BOM).partition(b"\n")
    if len(line) > MAX_LINE_BYTES:
        raise _too_long(stream, 1)
    if not line.strip() and not stream.peek(1 << 16).removeprefix(BOM).strip():
        raise SourceError(f"{stream.name}: the file is empty")
    return line.removesuffix(b"\r")


def line_blocks(stream: ByteStream, skip: int) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, many at a time: the number of the first, from 1, and the lines without the last end.

    The first `skip` lines are counted and not yielded.

    Raises:
        SourceError: the stream is damaged, or a line is too long.
    """
    line, at_front = 1, True
    parts: list[bytes] = []
    held = 0
    for block in stream.blocks():
        if at_front:
            block, at_front = block.removeprefix(BOM), False
        end = block.rfind(b"\n")
        if end < 0:
            parts.append(block)
            held += len(block)
            if held > MAX_LINE_BYTES:
                raise _too_long(stream, line)
            continue
        whole = b"".join((*parts, block[:end]))
        parts, held = [block[end + 1 :]], len(block) - end - 1
        count = whole.count(b"\n") + 1
        kept = _behind(whole, skip - line + 1, count)
        if kept is not None:
            yield max(line, skip + 1), kept
        line += count
    rest = b"".join(parts)
    if rest and line > skip:
        yield line, rest


def _behind(lines: bytes, skip: int, count: int) -> bytes | None:
    """Return the rest of `count` lines behind the first `skip`, or None."""
    if skip <= 0:
        return lines
    if skip >= count:
        return None
    return lines.split(b"\n", skip)[skip]


def _too_long(stream: ByteStream, line: int) -> SourceError:
    return SourceError(f"{stream.name}: line {line} is longer than {MAX_LINE_BYTES} bytes")


class FileState(NamedTuple):
    """Size and time of the last change of a file, which show that it has been written to."""

    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: object) -> FileState | None:
        """Return the state of a file; None if it can be read only once.

        Raises:
            SourceError: it cannot be read.
        """
        if is_read_once(path):
            return None
        with _as_source_errors(path):
            status = os.stat(str(path))
        return cls(status.st_size, status.st_mtime_ns)

    def check(self, path: str | Path) -> None:
        """Raise a `SourceError` if the file has changed since."""
        if FileState.of(path) != self:
            raise SourceError(f"{display_name(path)}: the file changed while it was read")


def digest_file(path: str | Path) -> FileEntry:
    """Return size and xxh3_128 of one regular file.

    Raises:
        SourceError: it cannot be read, or can be read only once.
    """
    if is_read_once(path):
        raise SourceError(f"{display_name(path)}: what is read only once has no digest beforehand")
    with _as_source_errors(display_name(path)):
        return FileEntry(recorded_name(path), Path(path).stat().st_size, small_files.digest_file(Path(path)))
