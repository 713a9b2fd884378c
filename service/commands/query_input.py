"""Queries of the command line in calls of bounded size, those of standard input as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import BinaryIO

import click

BATCH_ITEMS = 64
BATCH_ID_BYTES = 2 * 2**20  # half of what a server accepts in one message
_STDIN_BYTES = 1 << 16


def most_items(*lists: Sequence[str]) -> int:
    """Return how many queries fit into a call when each carries these lists of ids."""
    size = sum(len(entity_id.encode()) + 4 for ids in lists for entity_id in ids)  # tag and length
    return max(1, min(BATCH_ITEMS, BATCH_ID_BYTES // max(size, 1)))


def batches(queries: Iterable[str], most: int = BATCH_ITEMS) -> Iterator[list[str]]:
    """Yield the queries in calls of bounded size, those of stdin as soon as they are there."""
    for is_stdin, group in groupby(queries, key="-".__eq__):
        for arrived in arrivals(sys.stdin.buffer) if is_stdin else [list(group)]:
            for start in range(0, len(arrived), most):
                yield arrived[start : start + most]


def arrivals(stream: BinaryIO) -> Iterator[list[str]]:
    """Yield the queries of every piece of input as it comes; reading waits for one byte, not for more.

    Raises:
        ClickException: a line is not UTF-8; those before it were yielded.
    """
    number, rest = 0, b""
    while piece := _read_some(stream):
        *lines, rest = (rest + piece).split(b"\n")
        yield from _decoded(lines, number)
        number += len(lines)
    yield from _decoded([rest], number)


def _read_some(stream: BinaryIO) -> bytes:
    # Past the buffer, where there is one: whoever is stopped while another thread waits here for input could
    # not take the buffer's lock when it ends, and Python would abort.
    raw = getattr(stream, "raw", None)
    if raw is not None:
        piece: bytes | None = raw.read(_STDIN_BYTES)
        return piece or b""
    # Not part of BinaryIO, but of what click's test runner puts behind stdin.
    read_some: Callable[[int], bytes] = stream.read1  # type: ignore[attr-defined]
    return read_some(_STDIN_BYTES)


def _decoded(lines: Iterable[bytes], number: int) -> Iterator[list[str]]:
    """Yield the texts of the lines after line `number`, without the blank ones."""
    texts: list[str] = []
    for place, line in enumerate(lines, start=number + 1):
        try:
            text = line.decode("utf-8-sig" if place == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            yield texts
            raise click.ClickException(f"standard input, line {place}: not valid UTF-8") from None
        if text:
            texts.append(text)
    yield texts
