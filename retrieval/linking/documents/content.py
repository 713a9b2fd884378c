"""Content of a file from any place on, decompressed on the way, and lines of it, however long.

A UTF-8 byte order mark at the front of a file says how the file is encoded; it is part of no document.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

from retrieval.sources.opening import ByteStream

MAX_LINE_BYTES = 1 << 28  # a line is parsed as a whole, which takes several times its size
_BLOCK_BYTES = 1 << 18


class Line(NamedTuple):
    """One line.

    Attributes:
        raw: Its bytes with the line's end; of one longer than `MAX_LINE_BYTES`, so many of them.
        num_bytes: How many there are.
    """

    raw: bytes
    num_bytes: int


class Content:
    """Reads a file forward. What it gives are bytes behind the decompression, and so are offsets.

    Args:
        path: A regular file.
        offset: Where reading begins.
        digests: Whether the bytes of the file, as they lie on disk, are digested.
        any_content: Whether content that is clearly of another format is given as well.

    Attributes:
        position: Where the next byte is from.

    Raises:
        SourceError: the file cannot be read.
    """

    def __init__(
        self, path: str, offset: int = 0, *, digests: bool = False, any_content: bool = False
    ) -> None:
        self.stream = ByteStream(path, digests=digests, may_be_empty=True, any_content=any_content)
        self.position = offset
        self._file = io.BufferedReader(_Blocks(self.stream.blocks_from(offset)), _BLOCK_BYTES)

    def read(self, size: int) -> bytes:
        """Return `size` bytes, fewer at the end.

        Raises:
            SourceError: the file cannot be read, or its compression is damaged.
        """
        block = self._file.read(size)
        self.position += len(block)
        return block

    def line(self) -> Line | None:
        """Return the next line; None at the end.

        Raises:
            SourceError: as `read`.
        """
        raw = self._file.readline(MAX_LINE_BYTES)
        if not raw:
            return None
        num_bytes, end = len(raw), raw
        while len(end) and num_bytes >= MAX_LINE_BYTES and not end.endswith(b"\n"):
            end = self._file.readline(_BLOCK_BYTES)
            num_bytes += len(end)
        self.position += num_bytes
        return Line(raw, num_bytes)

    def skip_to(self, offset: int) -> None:
        """Go forward to a place."""
        while self.position < offset and self.read(min(_BLOCK_BYTES, offset - self.position)):
            pass

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self.stream.close()


class _Blocks(io.RawIOBase):
    """Blocks of bytes as a raw file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size
