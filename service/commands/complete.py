"""`genret complete`: entities that typed prefixes may go on to, of an index opened here."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import GroupedCommand, grouped, model_options, request_flags
from genret.retrieval.complete_types import CompleteRequest, CompleteResult
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.index.reader import Index
from genret.service.commands import usage_error
from genret.service.commands.connection import json_option
from genret.service.commands.query import batches, read_lists
from genret.service.commands.render import FOLDED, RIGHT, WHITESPACE, show, table

if TYPE_CHECKING:
    from genret.retrieval.retriever import Retriever

# Entities whose names take more than a second to read.
_MANY = 200_000


@click.command("complete", cls=GroupedCommand)
@click.argument("index", type=click.Path())
@click.argument("prefixes", nargs=-1)
@grouped(
    "Request",
    *request_flags(CompleteRequest),
    json_option("prefix"),
)
@model_options
def complete_command(
    index: str,
    prefixes: tuple[str, ...],
    as_json_lines: bool,
    model: str | None,
    device: str,
    dtype: str,
    threads: int,
    **options: Any,
) -> None:
    """Complete what was typed so far with the entities of the index in the directory INDEX.

    The last word may go on, typing errors are forgiven, and an empty prefix gives the entities of the
    greatest weight. - reads prefixes from standard input, one per line. Only --order model loads a model.

    On a terminal the answer is a table. In a pipe it is one line per entity: prefix, rank, entity id, title,
    the name that matched, typing errors, weight and, with --order model, log-probability, between tabs.
    """
    if not prefixes:
        raise click.UsageError('what was typed? genret complete INDEX "new yo"')
    try:
        read_lists(options)
        for prefix in prefixes:  # a wrong one must not wait for an index
            CompleteRequest(prefix, **options)
    except SourceError as error:
        raise click.ClickException(str(error)) from error
    except InputError as error:
        raise (click.UsageError(str(error)) if error.field == "prefix" else usage_error(error)) from error
    write = as_json if as_json_lines else _as_table if sys.stdout.isatty() else as_lines
    if options["order"] == "model":
        from genret.retrieval.retriever import Retriever  # with torch

        opened: Index | Retriever = Retriever.open(
            index, model, device=device, dtype=dtype, num_threads=threads
        )
    else:
        opened = Index.open(index)
        del options["order"], options["prompt"]
    with opened:
        count = (opened if isinstance(opened, Index) else opened.index).num_entities
        if count >= _MANY:
            click.echo(f"reading the names of {count:,} entities; a server does it once", err=True)
        for batch in batches(prefixes):
            for prefix in batch:
                result = opened.complete(prefix, **options)
                if result.completions or as_json_lines:
                    write(result)
                else:
                    click.echo(f"no match: {prefix!r}", err=True)


def as_json(result: CompleteResult) -> None:
    """Print one line of JSON."""
    click.echo(json.dumps(result.to_dict(), ensure_ascii=False))


def as_lines(result: CompleteResult) -> None:
    """Print a line per entity."""
    for rank, one in enumerate(result.completions, start=1):
        logprob = "" if one.logprob is None else f"{one.logprob:.6f}"
        figures = (str(one.errors), f"{one.weight:g}", logprob)
        cells = (result.prefix, str(rank), one.entity_id, one.title, one.form, *figures)
        click.echo("\t".join(cell.translate(WHITESPACE) for cell in cells))


def _as_table(result: CompleteResult) -> None:
    from rich.text import Text

    columns = [("#", RIGHT), ("Name", FOLDED), ("Title", FOLDED), ("Entity", FOLDED), ("Errors", RIGHT)]
    has_logprobs = any(one.logprob is not None for one in result.completions)
    columns.append(("log P" if has_logprobs else "Weight", RIGHT))
    rows = []
    for rank, one in enumerate(result.completions, start=1):
        form = Text(one.form)
        for span in one.spans:
            form.stylize("bold", span.begin, span.end)
        figure = (
            f"{one.weight:g}" if not has_logprobs else "" if one.logprob is None else f"{one.logprob:.2f}"
        )
        title = "" if one.title == one.form else one.title
        rows.append((str(rank), form, title, one.entity_id, str(one.errors or ""), figure))
    show(table(columns, rows, title=Text(result.prefix, style="bold")))
