"""Options of commands that ask queries, and reading of the queries, from arguments or standard input."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO

import click

from genret.retrieval.command_options import SHOWN, request_flags, together
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.filters.restriction import read_ids
from genret.retrieval.request_options import options_of
from genret.retrieval.types import DEFAULT_NUM_SAMPLES, RetrieveRequest
from genret.service.commands import usage_error

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


_F = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Question:
    """The queries of a command line ("-" stands for the lines of standard input) and their options."""

    queries: tuple[str, ...]
    as_json_lines: bool
    options: Mapping[str, Any]

    def request(self, query: str) -> RetrieveRequest:
        """Return the request for one query; an option out of range is an `InputError`."""
        return RetrieveRequest(query, **self.options)

    def batches(self, most: int = BATCH_ITEMS) -> Iterator[list[RetrieveRequest]]:
        """Yield the requests, at most `most` at once, those of standard input as soon as they are there."""
        for batch in batches(self.queries, most):
            yield [self.request(query) for query in batch]


_FLAGS = request_flags(
    RetrieveRequest,
    last=("prompt", "filter", "allow_ids", "deny_ids", "explain"),
    num_samples=DEFAULT_NUM_SAMPLES,
)
_FLAGS.insert(2, click.option("--json", "json", is_flag=True, help="One JSON object per query.", **SHOWN))


def question_options(example: str) -> Callable[[_F], _F]:
    """Add the options of a request to a command with an argument `queries`; it gets all as `question`.

    Args:
        example: A call of the command with a query.
    """

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def run(queries: tuple[str, ...], json: bool, **values: Any) -> None:
            options = {name: values.pop(name) for name in options_of(RetrieveRequest)}
            if not queries:
                raise click.UsageError(f"what is the query? {example}")
            try:
                for name in ("allow_ids", "deny_ids"):
                    file = options.pop(name)
                    if file is not None:
                        options[name] = read_ids(file)
                question = Question(queries, json, options)
                # A wrong option must not wait for a server or a model, nor for the first line of stdin.
                question.request("probe")
            except SourceError as error:
                raise click.ClickException(str(error)) from error
            except InputError as error:
                raise usage_error(error) from error
            if any(text != "-" and not text.strip() for text in queries):
                raise click.UsageError("query: must not be empty")
            command(question=question, **values)

        with_options: _F = together(*_FLAGS)(run)
        return with_options

    return add
