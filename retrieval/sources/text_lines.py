"""Lines of a byte stream: LF or CRLF, the last with or without an end; a byte order mark is dropped."""

from __future__ import annotations

from collections.abc import Iterator

from retrieval.errors import SourceError
from retrieval.sources.opening import BOM, MAX_LINE_BYTES, ByteStream


def first_line(stream: ByteStream) -> bytes:
    """Return the first line without its end; nothing is consumed.

    Raises:
        SourceError: it is too long, or the file holds nothing but white space.
    """
    size = 1 << 12
    while True:
        head = stream.peek(size)
        is_whole = len(head) < size
        if b"\n" in head or is_whole or size > MAX_LINE_BYTES:
            break
        size <<= 2
    line, _, _ = head.removeprefix(BOM).partition(b"\n")
    if len(line) > MAX_LINE_BYTES:
        raise _too_long(stream, 1)
    if not line.strip() and not stream.peek(1 << 16).removeprefix(BOM).strip():
        raise SourceError(f"{stream.name}: the file is empty")
    return line.removesuffix(b"\r")


def line_blocks(stream: ByteStream, skip: int) -> Iterator[tuple[int, bytes]]:
    """Yield whole lines, many at a time.

    Args:
        stream: Read from its front.
        skip: So many lines are counted and not given.

    Returns:
        Pairs of the number of the block's first line, from 1, and the lines without the end of the last.

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
    """Return what is left of `count` lines behind the first `skip`; None when nothing is."""
    if skip <= 0:
        return lines
    if skip >= count:
        return None
    at = -1
    for _ in range(skip):
        at = lines.index(b"\n", at + 1)
    return lines[at + 1 :]


def _too_long(stream: ByteStream, line: int) -> SourceError:
    return SourceError(f"{stream.name}: line {line} is longer than {MAX_LINE_BYTES} bytes")
