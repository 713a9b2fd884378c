"""`genret ask`: candidates of an index, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.errors import InputError
from retrieval.interruption import surely_interrupted
from retrieval.options import SHOWN, encoder_option, model_options
from service.client.reply import IndexRef, Reply
from service.commands.answer_printer import AnswerPrinter
from service.commands.question_options import Question, question_options
from service.commands.usage import usage_error
from service.errors import CallError

if TYPE_CHECKING:
    from decoding.errors import DecodingError
    from retrieval.errors import GenretError
    from retrieval.ranking.search import EvidenceSearch
    from retrieval.retriever import Retriever
    from retrieval.types import RetrievalResult


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
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    encoder: str | None,
) -> None:
    """Ask the index in the directory INDEX without a server: a first look at what it answers.

    Options, tables, lines and JSON are those of `genret query`. With --no-model nothing is loaded but the
    index: candidates, their probabilities and shares come from its evidence, and there is no log P.
    """
    printer, name = AnswerPrinter(question), Path(index).resolve().name
    with surely_interrupted():
        if no_model:
            from retrieval.ranking.search import EvidenceSearch

            try:
                EvidenceSearch.check(question.request("probe"))
            except InputError as error:
                raise usage_error(
                    InputError(error.field, f"{error.message}; --no-model was given")
                ) from error
            with EvidenceSearch.open(index, encoder) as search:
                _show(search, name, question, printer, 1)
        else:
            from retrieval.limits import DEFAULT_BATCH_SIZE
            from retrieval.retriever import Retriever

            with Retriever.open(
                index,
                model,
                device=device,
                dtype=dtype,
                num_threads=threads,
                prompt=question.options["prompt"],
                encoder=encoder,
            ) as retriever:
                _hint(index, model or retriever.tokenizer.source, retriever, question)
                _show(retriever, name, question, printer, DEFAULT_BATCH_SIZE)
    if printer.num_failed:
        raise click.exceptions.Exit(1)


def _hint(index: str, model: str, retriever: Retriever, question: Question) -> None:
    """Tell people what makes more of a model that nobody has weighed on this index."""
    ranker = retriever.ranker
    if question.options["method"] == "auto" and ranker.can_propose and not ranker.is_weighed:
        command = f"genret tune {index} --model {model}"
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
        from service.status import failure_of

        return CallError(failure_of(answer, "").code.name, str(answer))
    return Reply(answer, 0.0, answer.timings.total_ms, index)
