"""`genret answer`: JSON answers of a running server, and what a schema's keywords will do."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.answers.answer_types import AnswerRequest
from genret.retrieval.command_options import GroupedCommand, described_option, grouped, request_flags
from genret.retrieval.errors import InputError
from genret.service.commands import usage_error
from genret.service.commands.connection import Connection, connection_options, index_option, json_option, told
from genret.service.commands.query import batches
from genret.service.commands.render import FOLDED, below, shared, show, table
from genret.service.configuration.server_config import read_schema
from genret.service.errors import CallError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from genret.retrieval.answers.answer_types import AnswerEntity
    from genret.retrieval.answers.schema_explanation import SchemaExplanation
    from genret.service.client import RetrievalClient
    from genret.service.client.reply import AnswerReply

_GRAMMAR = (
    *("whitespace", "property_order", "formats", "extra_properties"),
    *("forced_spans", "end_repetition", "prompt"),
)


@click.command("answer", cls=GroupedCommand)
@click.argument("queries", nargs=-1)
@described_option(
    "--schema schema_file",
    "File with the JSON Schema of the answer.",
    click.Path(path_type=Path),
    show_default="--schema-name",
)
@described_option("--schema-name", "A schema the server knows by name, instead.", show_default="--schema")
@described_option(
    "--explain-schema",
    "Say keyword by keyword what is enforced and what is refused, and ask no server.",
    is_flag=True,
)
@grouped("Request", *request_flags(AnswerRequest, last=_GRAMMAR))
@index_option('Index that "titles" means in the schema.')
@json_option("query: the answer, its entities, figures")
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
    if sys.stdout.isatty():
        show(_as_table(explanation))
    else:
        click.echo(explanation.lines())
    if explanation.refusal:
        raise click.ClickException(f"{file}: {explanation.refusal}")


def _as_table(explanation: SchemaExplanation) -> RenderableType:
    from rich.text import Text

    report = explanation.report
    styles = {"enforced": "green", "refused": "red", "annotation": "dim", "vacuous here": "dim"}
    rows = [(where, keyword, Text(how, styles[how]), note) for where, keyword, how, note in report.table()]
    columns = [(name, FOLDED) for name in ("Where", "Keyword", "How", "Note")]
    return table(columns, rows, title=Text(f"read as {report.dialect}"))


def _ask(
    client: RetrievalClient, request: AnswerRequest, index: str, file: Path | None
) -> AnswerReply | CallError:
    """Return the answer or the error; an error about the schema names its file."""
    try:
        return client.answer(request, index)
    except CallError as error:
        problem = dict(error.field_violations).get("schema_json")
        if file is None or problem is None:
            return error
        return CallError(error.code, f"{file}: {problem}", error.retry_after_s)


def _print(query: str, reply: AnswerReply | CallError, as_json_lines: bool, *, alone: bool) -> bool:
    """Print an answer or an error, and return whether it was an answer. A lone error ends the command."""
    if as_json_lines:
        click.echo(json.dumps({"query": query, **_document(reply)}, ensure_ascii=False))
    if isinstance(reply, CallError):
        if alone and not as_json_lines:
            raise click.ClickException(told(reply))
        click.echo(f"Error: {query!r}: {told(reply)}", err=True)
        return False
    if not as_json_lines:
        show(as_panel(reply)) if sys.stdout.isatty() else click.echo(_as_line(reply))
    return True


def _as_line(reply: AnswerReply) -> str:
    """Return the document on one line; text that is on one line already is not touched."""
    text = reply.result.text
    # Line breaks of JSON stand between its parts only, never inside a string.
    return " ".join(line.strip() for line in text.split("\n")) if "\n" in text else text


def as_panel(reply: AnswerReply) -> RenderableType:
    """Return the document, indented, with its entities and what it took below it."""
    from rich.json import JSON
    from rich.text import Text

    result = reply.result
    parts: list[RenderableType] = [JSON(result.text, ensure_ascii=False)]
    if result.entities:
        columns = [(name, FOLDED) for name in ("Where", "Title", "Entity", "Index")]
        rows = []
        for found in result.entities:
            ids = shared(tuple(entity.entity_id for entity in found.entities), found.shares)
            rows.append((found.pointer or "/", found.title, ids, found.index))
        parts.append(table(columns, rows, title=Text("Entities")))
    return below(*parts, caption=_caption(reply))


def _caption(reply: AnswerReply) -> str:
    result = reply.result
    parts = [f"log P {result.logprob:.2f}", f"{result.num_tokens} tokens in {result.num_forwards} forwards"]
    if result.num_forced:
        parts.append(f"{result.num_forced} tokens forced")
    if result.num_drafted:
        parts.append(f"{result.num_accepted} of {result.num_drafted} drafted tokens kept")
    if result.mass is not None:
        error = "" if result.mass_stderr is None else f" ± {result.mass_stderr:.2g}"
        parts.append(f"valid without the schema with probability {result.mass:.2g}{error}")
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    parts.append(f"{reply.total_ms:.0f} ms, {reply.queue_ms:.0f} of them waiting")
    if result.compile_ms >= 1:
        parts.append(f"{result.compile_ms:.0f} ms for the schema")
    return "; ".join(parts)


_TOKENS = ("forced", "drafted", "accepted", "forwards")


def _document(reply: AnswerReply | CallError) -> dict[str, Any]:
    if isinstance(reply, CallError):
        return {"error": {"code": reply.code, "message": str(reply), "retry_after_s": reply.retry_after_s}}
    result = reply.result
    return {
        "answer": result.value,
        "text": result.text,
        "entities": [_entity(found) for found in result.entities],
        "method": result.method,
        "logprob": result.logprob,
        "tokens": {
            "total": result.num_tokens,
            **{name: getattr(result, f"num_{name}") for name in _TOKENS},
        },
        **{name: getattr(result, name) for name in ("mass", "mass_stderr", "seed", "schema_digest")},
        "timings_ms": {
            "queue": reply.queue_ms,
            "compile": result.compile_ms,
            "prefill": result.timings.prefill_ms,
            "decode": result.timings.decode_ms,
            "total": reply.total_ms,
        },
        "index": asdict(reply.index),
    }


def _entity(found: AnswerEntity) -> dict[str, Any]:
    return {
        "pointer": found.pointer,
        "index": found.index,
        "title": found.title,
        "entities": [
            {"entity_id": entity.entity_id, "title": entity.title, "metadata": dict(entity.metadata)}
            for entity in found.entities
        ],
        "shares": list(found.shares),
    }
