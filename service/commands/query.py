"""`genret query` and `genret ask`: candidates of a running server, or of an index opened here.

Both print answers alike: a table on the terminal, lines in a pipe, JSON Lines with `--json`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import SHOWN, encoder_option, model_options
from genret.retrieval.errors import InputError
from genret.retrieval.interruption import surely_interrupted
from genret.retrieval.types import RetrieveRequest
from genret.service.client.reply import IndexRef, Reply
from genret.service.commands import usage_error
from genret.service.commands.connection import Connection, connection_options, hint, index_option
from genret.service.commands.query_options import Question, most_items, question_options
from genret.service.errors import CallError

if TYPE_CHECKING:
    from genret.decoding.errors import DecodingError
    from genret.retrieval.errors import GenretError
    from genret.retrieval.ranking.evidence_search import EvidenceSearch
    from genret.retrieval.retriever import Retriever
    from genret.retrieval.types import RetrievalResult
    from genret.service.client import RetrievalClient


@click.command("query")
@click.argument("queries", nargs=-1)
@question_options('genret query "author of hamlet"')
@index_option("Index to search.")
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


@click.command("ask")
@click.argument("index", type=click.Path())
@click.argument("queries", nargs=-1)
@question_options('genret ask INDEX "author of hamlet"')
@click.option(
    "--no-model", is_flag=True, help="Answer from the index's evidence alone, in milliseconds.", **SHOWN
)
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
            from genret.retrieval.loaded_model import DEFAULT_BATCH_SIZE
            from genret.retrieval.retriever import Retriever

            prompt = question.options["prompt"]
            with Retriever.open(
                index, num_threads=threads, prompt=prompt, encoder=encoder, **hardware
            ) as retriever:
                _hint(index, retriever, question)
                _show(retriever, name, question, printer, DEFAULT_BATCH_SIZE)
    if printer.num_failed:
        raise click.exceptions.Exit(1)


def _hint(index: str, retriever: Retriever, question: Question) -> None:
    """Name the command that weighs a model on this index, where nobody has done so."""
    ranker = retriever.ranker
    if question.options["method"] == "auto" and ranker.can_propose and not ranker.is_weighed:
        command = f"genret tune {index} --model {retriever.tokenizer.name}"
        click.echo(f"the model was never weighed on this index, and counts little: {command}", err=True)


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
        from genret.service.commands import render

        if isinstance(reply, CallError):
            self.num_failed += 1
            click.echo(f"Error: {query!r}: {reply}{hint(reply)}", err=True)
        if self._as_json_lines:
            click.echo(render.as_json(query, reply))
        elif isinstance(reply, CallError):
            return
        elif self._on_terminal:
            from rich.console import Console

            Console().print(render.as_table(query, reply, self._min_mass))
            self._explain(reply, on_stderr=False)
            return
        elif reply.result.no_match:
            why = render.abstention(reply, self._min_mass)
            click.echo(f"no match: {query!r}{why and ': '}{why}", err=True)
        else:
            for line in render.as_lines(query, reply):
                click.echo(line)
        self._explain(reply, on_stderr=True)

    def _explain(self, reply: Reply | CallError, on_stderr: bool) -> None:
        """Show the explanation, where it was asked for; lines and JSON stay as they are."""
        if self._as_json_lines or isinstance(reply, CallError) or reply.result.explanation is None:
            return
        from rich.console import Console

        from genret.service.commands.render import as_tree

        Console(stderr=on_stderr).print(as_tree(reply.result.explanation))
