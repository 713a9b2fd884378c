"""Defines the options of commands that ask queries, and reads the queries: arguments, or standard input.

Queries go in calls of bounded size, those of standard input as they arrive.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, BinaryIO

import click

from retrieval.command_options import SHOWN, adaptive_option, prompt_option, scoring_options
from retrieval.errors import InputError, SourceError
from retrieval.filters.restriction import read_ids
from retrieval.types import DEFAULT_NUM_SAMPLES, METHODS, RetrieveRequest
from service.commands import usage_error

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
    """The queries of a command line, and what is asked of each.

    Attributes:
        queries: Texts; "-" stands for the lines of standard input.
        as_json_lines: Whether answers are printed as JSON.
        options: Options of the requests.
    """

    queries: tuple[str, ...]
    as_json_lines: bool
    options: Mapping[str, Any]

    def request(self, query: str) -> RetrieveRequest:
        """Return the request for one query.

        Raises:
            InputError: an option is out of range.
        """
        return RetrieveRequest(query, **self.options)

    def batches(self, most: int = BATCH_ITEMS) -> Iterator[list[RetrieveRequest]]:
        """Yield the requests, at most `most` at once, those of standard input as soon as they are there."""
        for batch in batches(self.queries, most):
            yield [self.request(query) for query in batch]


_FIELDS = {field.name for field in fields(RetrieveRequest)}
_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("-k", "--k", "k", type=int, default=10, help="Candidates wanted, at most 1000.", **SHOWN),
    click.option(
        "--method",
        type=click.Choice(METHODS),
        default="auto",
        help="auto: what a decoder finds and the evidence proposes, by the index's ranking; beam: the k most "
        "probable titles; disc: samples and their shares; shortlist: what the evidence proposes, scored.",
        **SHOWN,
    ),
    click.option("--json", "json", is_flag=True, help="One JSON object per query.", **SHOWN),
    click.option(
        "--beam-size",
        type=int,
        help="beam: live prefixes per step, at most 1000; disc: prefixes per draw, at most 64.",
        show_default="beam: the larger of k and 10; disc: 1",
        show_envvar=True,
    ),
    click.option("--num-draws", type=int, default=4, help="disc: draws tried per sample.", **SHOWN),
    click.option(
        "--num-samples", type=int, default=DEFAULT_NUM_SAMPLES, help="disc: independent samples.", **SHOWN
    ),
    click.option("--temperature", type=float, default=1.0, help="disc: divides the logits.", **SHOWN),
    click.option(
        "--top-m",
        type=int,
        help="disc: only the M likeliest tokens of a step, which biases the shares.",
        show_default="all, exact",
        show_envvar=True,
    ),
    click.option(
        "--seed",
        type=int,
        help="disc: the same seed gives the same answer.",
        show_default="chosen and told",
        show_envvar=True,
    ),
    click.option(
        "--min-mass",
        type=float,
        help="disc: no match when the model's probability that its answer is in the catalogue is below this, "
        "in [0, 1].",
        show_default="no limit",
        show_envvar=True,
    ),
    adaptive_option,
    scoring_options,
    click.option(
        "--shortlist-size",
        type=int,
        help="auto, shortlist: entities that the evidence proposes, at most 2000.",
        show_default="auto: 24; shortlist: 100",
        show_envvar=True,
    ),
    click.option(
        "--decoder",
        type=click.Choice(["beam", "disc"]),
        help="auto: what decodes beside the shortlist; its options are the ones that count.",
        show_default="beam",
        show_envvar=True,
    ),
    click.option(
        "--vector-weight",
        type=float,
        help="auto, shortlist: order by log P + this * similarity, at most 1000.",
        show_default="shortlist: 0; auto: the order of the ranking",
        show_envvar=True,
    ),
    click.option(
        "--shortlist-query",
        help="auto, shortlist: text that the evidence is asked with.",
        show_default="the query",
        show_envvar=True,
    ),
    click.option(
        "--title-weight",
        type=float,
        help="How much more an entity counts for a name that is its title than for one that is its alias, "
        "where several share the name, in [1e-6, 1e6].",
        show_default="the checkpoint's",
        show_envvar=True,
    ),
    prompt_option(),
    click.option(
        "--filter",
        help="Only entities for which this is true: kind = 'film' and year >= 1990",
        show_default="all entities",
        show_envvar=True,
    ),
    click.option(
        "--allow-ids",
        type=click.Path(),
        help="File of entity ids, one per line: only these.",
        show_default="all entities",
        show_envvar=True,
    ),
    click.option(
        "--deny-ids",
        type=click.Path(),
        help="File of entity ids, one per line: none of these.",
        show_default="none",
        show_envvar=True,
    ),
    click.option(
        "--explain",
        is_flag=True,
        help="Show the tokens the model walked through as well; disc: and its draws. Excludes adaptive "
        "draws.",
        **SHOWN,
    ),
)


def question_options(example: str) -> Callable[[_F], _F]:
    """Add the options of a request to a command with an argument `queries`; it gets all as `question`.

    Args:
        example: What a call of the command with a query looks like.
    """

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def run(queries: tuple[str, ...], json: bool, **values: Any) -> None:
            options = {name: values.pop(name) for name in _FIELDS & values.keys()}
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

        with_options: _F = run
        for option in reversed(_OPTIONS):  # decorators apply from the last to the first
            with_options = option(with_options)
        return with_options

    return add
