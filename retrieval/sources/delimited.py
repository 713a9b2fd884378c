"""Rows of a TSV file with a header, or of a file of lines. No quoting: quotes are part of a title."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retrieval.normalize import find_control, is_normalized_block
from retrieval.rejects import Reason
from retrieval.sources.opening import ByteStream
from retrieval.sources.rows import BadRow, RowChunk
from retrieval.sources.text_lines import line_blocks

_LARGE_BLOCK = 1024  # lines; more of them at once, taken apart, leave the processor's cache
_SMALL_BLOCK = 256  # lines; one odd line costs its neighbours the fast path


class DelimitedReader:
    """Reads tab-separated rows; see `RowReader`.

    Args:
        stream: Nothing of it has been consumed.
        names: Names of the columns.
        header_lines: 1 when the first line holds these names.
    """

    def __init__(self, stream: ByteStream, names: tuple[str, ...], header_lines: int) -> None:
        self.names = names
        self.header_lines = header_lines
        self._stream = stream

    @property
    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk that have been consumed."""
        return self._stream.raw.bytes_read

    @property
    def digest(self) -> str:
        """xxh3_128 of what was read, of a stream that can be read only once."""
        return self._stream.raw.hexdigest

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Nothing to do: rows are split whole."""

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines."""
        for first, block in line_blocks(self._stream, max(skip, self.header_lines)):
            try:
                text = block.decode()
            except UnicodeDecodeError:
                yield RowChunk(first, [_odd_row(raw) for raw in block.split(b"\n")])
                continue
            if "\r" in text:
                text = text.replace("\r\n", "\n").removesuffix("\r")
            yield from _chunks(first, text)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _chunks(first: int, text: str) -> Iterator[RowChunk]:
    lines = text.split("\n")
    if is_normalized_block(text):
        for begin in range(0, len(lines), _LARGE_BLOCK):
            yield RowChunk(first + begin, lines=lines[begin : begin + _LARGE_BLOCK])
        return
    for begin in range(0, len(lines), _SMALL_BLOCK):
        some = lines[begin : begin + _SMALL_BLOCK]
        if is_normalized_block("\n".join(some)):
            yield RowChunk(first + begin, lines=some)
        else:
            yield RowChunk(first + begin, [_row(line) for line in some])


def _row(line: str) -> list[str] | BadRow:
    control = find_control(line)
    if control is not None:
        return BadRow(Reason.CONTROL_CHARACTER, control, line)
    return line.split("\t")


def _odd_row(raw: bytes) -> list[str] | BadRow:
    """Split one line of a block that holds bytes that are no UTF-8."""
    try:
        return _row(raw.removesuffix(b"\r").decode())
    except UnicodeDecodeError as error:
        return BadRow(Reason.BAD_UTF8, f"byte {error.start + 1}", raw)
