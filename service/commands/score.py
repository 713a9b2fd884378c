"""`genret score`: probability of given titles (arguments or a file), by the model of a running server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from genret.retrieval.command_options import SHOWN, prompt_option
from genret.retrieval.errors import InputError
from genret.retrieval.score_types import ScoreRequest
from genret.service.commands import usage_error
from genret.service.commands.connection import Connection, connection_options, index_option, json_option


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
    "--best-first", is_flag=True, help="The likeliest title first, in place of the order given.", **SHOWN
)
@index_option("Index whose model scores.")
@prompt_option()
@json_option("SCORE", "title")
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
    from genret.service.commands import render_scores

    if bool(titles) == (titles_file is not None):
        raise click.UsageError(
            'what are the titles? genret score "author of hamlet" Hamlet Macbeth, or --titles FILE'
        )
    given = list(titles) if titles_file is None else read_titles(titles_file)
    try:
        request = ScoreRequest(query, tuple(given), prompt)
    except InputError as error:  # a wrong title must not wait for a server
        is_argument = error.field.startswith(("query", "titles"))
        raise (click.UsageError(str(error)) if is_argument else usage_error(error)) from error
    with connection.open() as client:
        reply = client.score(request.query, request.titles, prompt=prompt, index=index)
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


# Most that a server takes in one message; more lines than it scores are refused by their number.
_MAX_BYTES = 64 * 2**20
_STDIN = "-"


def read_titles(path: str) -> list[str]:
    """Read a file of titles, "-" for standard input; blank lines are skipped, blanks around a title dropped.

    Raises:
        ClickException: it cannot be read, is larger than any list of titles, or not UTF-8; names the line.
    """
    name = "standard input" if path == _STDIN else path
    try:
        if path == _STDIN:
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise click.ClickException(
            f"{name}: larger than {_MAX_BYTES // 2**20} MiB, which is no list of titles"
        )
    titles = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise click.ClickException(f"{name}, line {number}: not valid UTF-8") from None
        if text:
            titles.append(text)
    return titles
