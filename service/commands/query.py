"""`genret query`: candidates of a running server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from retrieval.options import SHOWN
from retrieval.types import RetrieveRequest
from service.commands.answer_printer import AnswerPrinter
from service.commands.connection import Connection, call_error, connection_options
from service.commands.query_input import most_items
from service.commands.question_options import Question, question_options

if TYPE_CHECKING:
    from service.client import RetrievalClient
    from service.client.reply import Reply
    from service.errors import CallError


@click.command("query")
@click.argument("queries", nargs=-1)
@question_options('genret query "author of hamlet"')
@click.option(
    "--index", default="", help="Index to search.", show_default="the server's first", show_envvar=True
)
@click.option(
    "--stream",
    is_flag=True,
    help="Ask over one stream and print every answer as soon as it is there, in any order, with bounded "
    "memory however many queries come; --timeout does not limit it.",
    **SHOWN,
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
    printer = AnswerPrinter(question)
    most = most_items(question.options.get("allow_ids", ()), question.options.get("deny_ids", ()))
    with connection.open() as client:
        if stream:
            requests = (request for batch in question.batches() for request in batch)
            _stream(client, requests, index, printer)
        else:
            for batch in question.batches(most):
                for request, reply in zip(batch, _ask(client, batch, index), strict=True):
                    printer.show(request.query, reply)
    if printer.num_failed:
        raise click.exceptions.Exit(1)


def _ask(client: RetrievalClient, requests: Sequence[RetrieveRequest], index: str) -> list[Reply | CallError]:
    from service.errors import CallError

    try:
        if len(requests) == 1:
            return [client.retrieve(requests[0], index)]
        return client.retrieve_batch(requests, index)
    except CallError as error:
        raise call_error(error) from error


def _stream(
    client: RetrievalClient, requests: Iterable[RetrieveRequest], index: str, printer: AnswerPrinter
) -> None:
    from service.errors import CallError

    try:
        for request, reply in client.retrieve_stream(requests, index):
            printer.show(request.query, reply)
    except CallError as error:
        raise call_error(error) from error
