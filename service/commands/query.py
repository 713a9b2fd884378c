"""`genret query` and `genret ask`: candidates of a running server, or of an index opened here."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from genret.retrieval.arguments import options_of, read_ids
from genret.retrieval.command_options import (
    GroupedCommand,
    encoder_option,
    grouped,
    model_options,
    request_flags,
    shown_option,
)
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.interruption import surely_interrupted
from genret.retrieval.types import DEFAULT_NUM_SAMPLES, RetrieveRequest
from genret.service.client.reply import IndexRef, Reply
from genret.service.commands import render, usage_error
from genret.service.commands.connection import Connection, connection_options, index_option, told
from genret.service.errors import CallError

if TYPE_CHECKING:
    from genret.decoding.errors import DecodingError
    from genret.retrieval.errors import GenretError
    from genret.retrieval.ranking.evidence_search import EvidenceSearch
    from genret.retrieval.retriever import Retriever
    from genret.retrieval.types import RetrievalResult
    from genret.service.client import RetrievalClient


_F = Callable[..., None]
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
        yield from decoded(lines, number)
        number += len(lines)
    yield from decoded([rest], number)


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


def decoded(lines: Iterable[bytes], number: int) -> Iterator[list[str]]:
    """Yield the texts of the lines after line `number`, without blank ones; ClickException: not UTF-8."""
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


def read_lists(options: dict[str, Any]) -> None:
    """Put the ids of the files of --allow-ids and --deny-ids in their places; raises SourceError."""
    for name in ("allow_ids", "deny_ids"):
        file = options.pop(name)
        if file is not None:
            options[name] = read_ids(file)


class Question(NamedTuple):
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
_FLAGS.insert(2, shown_option("--json", "json", is_flag=True, help="One JSON object per query."))


def question_options(example: str) -> Callable[[_F], _F]:
    """Add the options of a request to a command with an argument `queries`; it gets all as `question`."""

    def add(command: _F) -> _F:
        @functools.wraps(command)
        def run(queries: tuple[str, ...], json: bool, **values: Any) -> None:
            options = {name: values.pop(name) for name in options_of(RetrieveRequest)}
            if not queries:
                raise click.UsageError(f"what is the query? {example}")
            try:
                read_lists(options)
                question = Question(queries, json, options)
                # A wrong option must not wait for a server or a model, nor for the first line of stdin.
                probe = question.request("probe")
                if probe.seed is not None and probe.decoding != "disc":
                    click.echo("--seed has no effect: only disc draws, as --method or --decoder", err=True)
            except SourceError as error:
                raise click.ClickException(str(error)) from error
            except InputError as error:
                raise usage_error(error) from error
            if any(text != "-" and not text.strip() for text in queries):
                raise click.UsageError("query: must not be empty")
            command(question=question, **values)

        with_options: _F = grouped("Request", *_FLAGS)(run)
        return with_options

    return add


@click.command("query", cls=GroupedCommand)
@click.argument("queries", nargs=-1)
@question_options('genret query "author of hamlet"')
@index_option("Index to search.")
@shown_option(
    "--stream",
    is_flag=True,
    help="Ask over one stream and print every answer as soon as it is there, in any order, with bounded "
    "memory however many queries come; --timeout does not limit it.",
)
@connection_options(timeout_s=60.0)
def query_command(question: Question, index: str, stream: bool, connection: Connection) -> None:
    """Ask a running server. Several QUERIES go in one call.

    - reads queries from standard input, one per line, in UTF-8; blank lines are skipped. What has arrived
    is answered at once, without waiting for the end of the input.

    On a terminal the answer is a table. In a pipe it is one line per candidate: query, rank, entity id,
    title, surface form, log-probability, probability (disc: share of the samples; shortlist: among what was
    scored), what they are ordered by, and with auto what each kind of evidence adds to that, between tabs; an
    explanation goes to standard error.
    """
    first, *more = question.queries
    if more and Path(first).is_dir():
        click.echo(f"{first!r} is asked as a query; --index names an index of the server", err=True)
    printer = AnswerPrinter(question)
    most = most_items(question.options.get("allow_ids", ()), question.options.get("deny_ids", ()))
    with connection.open() as client:
        if stream:
            requests = (request for batch in question.batches() for request in batch)
            for request, reply in client.retrieve_stream(requests, index):
                printer.show(request.query, reply)
        else:
            for batch in question.batches(most):
                replies = _ask(client, batch, index)
                for request, reply in zip(batch, replies, strict=True):
                    printer.show(request.query, reply)
    if printer.num_failed:
        raise click.exceptions.Exit(1)


def _ask(client: RetrievalClient, requests: Sequence[RetrieveRequest], index: str) -> list[Reply | CallError]:
    if len(requests) == 1:
        return [client.retrieve(requests[0], index)]
    return client.retrieve_batch(requests, index)


@click.command("ask", cls=GroupedCommand)
@click.argument("index", type=click.Path())
@click.argument("queries", nargs=-1)
@question_options('genret ask INDEX "author of hamlet"')
@shown_option("--no-model", is_flag=True, help="Answer from the index's evidence alone, in milliseconds.")
@model_options
@encoder_option
def ask_command(
    question: Question,
    index: str,
    no_model: bool,
    threads: int,
    encoder: str | None,
    **hardware: Any,
) -> None:
    """Ask the index in the directory INDEX without a server: a first look at what it answers.

    Options, tables, lines and JSON are those of `genret query`. With --no-model nothing is loaded but the
    index: candidates, their probabilities and shares come from its evidence, and there is no log P.
    """
    printer, name = AnswerPrinter(question), Path(index).resolve().name
    with surely_interrupted():
        if no_model:
            from genret.retrieval.ranking.evidence_search import EvidenceSearch

            try:
                EvidenceSearch.check(question.request("probe"))
            except InputError as error:
                raise usage_error(
                    InputError(error.field, f"{error.message}; --no-model was given")
                ) from error
            with EvidenceSearch.open(index, encoder) as search:
                _show(search, name, question, printer, 1)
        else:
            from genret.retrieval.index.versions import version_dir

            version_dir(Path(index))  # a wrong path is told before torch is imported
            from genret.retrieval.loaded_model import DEFAULT_BATCH_SIZE
            from genret.retrieval.retriever import Retriever

            prompt = question.options["prompt"]
            with Retriever.open(
                index, num_threads=threads, prompt=prompt, encoder=encoder, **hardware
            ) as retriever:
                if question.options["method"] == "auto" and (advice := retriever.weighing_advice(index)):
                    click.echo(advice, err=True)
                _show(retriever, name, question, printer, DEFAULT_BATCH_SIZE)
    if printer.num_failed:
        raise click.exceptions.Exit(1)


def _show(
    opened: Retriever | EvidenceSearch, name: str, question: Question, printer: AnswerPrinter, most: int
) -> None:
    index = IndexRef(name, opened.index.version, opened.index.digest)
    for batch in question.batches(most):
        for request, answer in zip(batch, opened.retrieve_batch(batch), strict=True):
            printer.show(request.query, _reply(answer, index))


def _reply(answer: RetrievalResult | GenretError | DecodingError, index: IndexRef) -> Reply | CallError:
    if isinstance(answer, Exception):
        from genret.service.status import failure_of

        return CallError(failure_of(answer, "").code.name, str(answer))
    return Reply(answer, 0.0, answer.timings.total_ms, index)


class AnswerPrinter:
    """Writes answers to stdout and remarks on them to stderr; `num_failed` counts errors."""

    def __init__(self, question: Question) -> None:
        self._as_json_lines = question.as_json_lines
        self._min_mass: float | None = question.options["min_mass"]
        self._on_terminal = sys.stdout.isatty()
        self.num_failed = 0

    def show(self, query: str, reply: Reply | CallError) -> None:
        """Print the answer to one query, or its error."""
        if isinstance(reply, CallError):
            self.num_failed += 1
            click.echo(f"Error: {query!r}: {told(reply)}", err=True)
        if self._as_json_lines:
            click.echo(render.as_json(query, reply))
        if self._as_json_lines or isinstance(reply, CallError):
            return
        if self._on_terminal:
            render.show(render.as_table(query, reply, self._min_mass))
        elif reply.result.no_match:
            why = render.abstention(reply, self._min_mass)
            click.echo(f"no match: {query!r}{why and ': '}{why}", err=True)
        else:
            for line in render.as_lines(query, reply):
                click.echo(line)
            if missing := ", ".join(reply.result.missing_evidence):
                click.echo(f"{query!r}: without the index's {missing}, which cannot be used", err=True)
        if reply.result.explanation is not None:  # beside lines it goes to stderr: they stay as they are
            render.show(render.as_tree(reply.result.explanation), on_stderr=not self._on_terminal)
