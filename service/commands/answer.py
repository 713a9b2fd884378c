"""`genret answer`: JSON answers of a running server, and what a schema's keywords will do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.command_options import SHOWN, request_flags, together
from genret.retrieval.errors import InputError
from genret.service.commands import usage_error
from genret.service.commands.connection import (
    Connection,
    call_error,
    connection_options,
    index_option,
    json_option,
)
from genret.service.commands.query_options import batches
from genret.service.configuration.server_config import read_schema

if TYPE_CHECKING:
    from genret.service.client import RetrievalClient
    from genret.service.client.reply import AnswerReply
    from genret.service.errors import CallError

# How a server begins what it says about a schema that was sent to it.
_ABOUT_SCHEMA = "schema_json: "


_GRAMMAR = ("whitespace", "property_order", "formats", "extra_properties", "forced_spans", "prompt")


@click.command("answer")
@click.argument("queries", nargs=-1)
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(path_type=Path),
    envvar="GENRET_ANSWER_SCHEMA",
    help="File with the JSON Schema of the answer.",
    show_default="--schema-name",
    show_envvar=True,
)
@click.option(
    "--schema-name",
    help="A schema the server knows by name, instead.",
    show_default="--schema",
    show_envvar=True,
)
@click.option(
    "--explain-schema",
    is_flag=True,
    help="Say keyword by keyword what is enforced and what is refused, and ask no server.",
    **SHOWN,
)
@together(*request_flags(AnswerRequest, last=_GRAMMAR))
@index_option('Index that "titles" means in the schema.')
@json_option("ANSWER", "query: the answer, its entities, figures")
@connection_options(timeout_s=60.0)
def answer_command(
    queries: tuple[str, ...],
    schema_file: Path | None,
    schema_name: str | None,
    explain_schema: bool,
    index: str,
    as_json_lines: bool,
    connection: Connection,
    **options: Any,
) -> None:
    """Ask a running server for JSON that is valid under a schema.

    Strings of the schema with "x-genret-index": "titles" are titles of the index's catalogue, and come back
    with their entities.

    - among the QUERIES reads them from standard input, one per line.

    On a terminal every answer is shown with its entities. In a pipe it is one line of JSON.
    """
    if (schema_file is None) == (schema_name is None):
        raise click.UsageError("name a schema: --schema FILE, or --schema-name NAME of one the server knows")
    schema = None if schema_file is None else read_schema(schema_file)

    def make(query: str) -> AnswerRequest:
        return AnswerRequest(query, schema=schema, schema_name=schema_name, **options)

    try:
        probe = make("probe")
    except InputError as error:
        raise usage_error(error) from error
    if explain_schema:
        _explain(probe, schema_file)
        return
    if not queries:
        raise click.UsageError('what is the query? genret answer --schema FILE "author of hamlet"')
    if any(text != "-" and not text.strip() for text in queries):
        raise click.UsageError("query: must not be empty")
    failed = 0
    with connection.open() as client:
        for batch in batches(queries, 1):
            for text in batch:
                reply = _ask(client, make(text), index, schema_file)
                failed += not _print(text, reply, as_json_lines, alone=queries == (text,))
    if failed:
        raise click.exceptions.Exit(1)


def _explain(request: AnswerRequest, file: Path | None) -> None:
    """Print what every keyword of a schema does; ends with status 1 where one is refused."""
    from genret.retrieval.answers.schema_explanation import explain

    if request.schema is None:
        raise click.UsageError(
            "--explain-schema needs --schema FILE: the server's schemas are known by name only"
        )
    try:
        explanation = explain(str(request.schema), request.options)
    except InputError as error:
        raise click.ClickException(f"{file}: {error.message}") from error
    click.echo(explanation.table() if sys.stdout.isatty() else explanation.lines())
    if explanation.refusal:
        raise click.ClickException(f"{file}: {explanation.refusal}")


def _ask(
    client: RetrievalClient, request: AnswerRequest, index: str, file: Path | None
) -> AnswerReply | CallError:
    """Return the answer or the error; an error about the schema names its file."""
    from genret.service.errors import CallError

    try:
        return client.answer(request, index)
    except CallError as error:
        message = str(error)
        if file is None or not message.startswith(_ABOUT_SCHEMA):
            return error
        return CallError(error.code, f"{file}: {message.removeprefix(_ABOUT_SCHEMA)}", error.retry_after_s)


def _print(query: str, reply: AnswerReply | CallError, as_json_lines: bool, *, alone: bool) -> bool:
    """Print an answer or an error, and return whether it was an answer. A lone error ends the command."""
    from genret.service.commands import render_answers
    from genret.service.errors import CallError

    if isinstance(reply, CallError):
        if alone and not as_json_lines:
            raise call_error(reply)
        click.echo(f"Error: {query!r}: {call_error(reply).message}", err=True)
        if as_json_lines:
            click.echo(render_answers.as_json(query, reply))
        return False
    if as_json_lines:
        click.echo(render_answers.as_json(query, reply))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(render_answers.as_panel(reply))
    else:
        click.echo(render_answers.as_line(reply))
    return True
