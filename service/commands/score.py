"""`genret score`: how likely a running server's model is to write given titles for a query."""

from __future__ import annotations

import sys

import click

from retrieval.errors import InputError
from retrieval.options import SHOWN, prompt_option
from retrieval.score_types import ScoreRequest
from service.commands.connection import Connection, call_error, connection_options
from service.commands.titles_file import read_titles
from service.commands.usage import usage_error


@click.command("score")
@click.argument("query")
@click.argument("titles", nargs=-1)
@click.option(
    "--titles",
    "titles_file",
    type=click.Path(allow_dash=True),
    help="File of titles, one per line; - for standard input.",
    show_default="the arguments",
    show_envvar=True,
)
@click.option(
    "--best-first",
    is_flag=True,
    help="The likeliest title first, in place of the order given.",
    **SHOWN,
)
@click.option(
    "--index",
    default="",
    help="Index whose model scores.",
    show_default="the server's first",
    show_envvar=True,
)
@prompt_option()
@click.option(
    "--json",
    "as_json_lines",
    is_flag=True,
    envvar="GENRET_SCORE_JSON",
    help="One JSON object per title.",
    **SHOWN,
)
@connection_options(timeout_s=60.0)
def score_command(
    query: str,
    titles: tuple[str, ...],
    titles_file: str | None,
    best_first: bool,
    index: str,
    prompt: str | None,
    as_json_lines: bool,
    connection: Connection,
) -> None:
    """Score up to 10,000 TITLES for a QUERY, exactly and in one pass: to rank what another engine found.

    On a terminal the answer is a table. In a pipe it is one line per title: title, log-probability,
    probability among the titles given, tokens, the ids of the catalogue's entities of that name and their
    shares of it, between tabs; a title that is too long for the model has no probability.
    """
    from service.commands import render_scores
    from service.errors import CallError

    if bool(titles) == (titles_file is not None):
        raise click.UsageError(
            'what are the titles? genret score "author of hamlet" Hamlet Macbeth, or --titles FILE'
        )
    given = list(titles) if titles_file is None else read_titles(titles_file)
    try:
        request = ScoreRequest(query, tuple(given), prompt)
    except InputError as error:  # a wrong title must not wait for a server
        raise _told(error) from error
    with connection.open() as client:
        try:
            reply = client.score(request.query, request.titles, prompt=prompt, index=index)
        except CallError as error:
            raise call_error(error) from error
    if best_first:
        reply = render_scores.best_first(reply)
    if as_json_lines:
        for line in render_scores.as_json(reply):
            click.echo(line)
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(render_scores.as_table(reply))
    else:
        for line in render_scores.as_lines(reply):
            click.echo(line)


def _told(error: InputError) -> click.UsageError:
    """Return an error under the name that its field has on the command line."""
    is_argument = error.field.startswith(("query", "titles"))
    return click.UsageError(str(error)) if is_argument else usage_error(error)
