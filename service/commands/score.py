"""`genret score`: probability of given titles (arguments or a file), by the model of a running server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from genret.retrieval.arguments import small_lines
from genret.retrieval.command_options import GroupedCommand, described_option, prompt_option
from genret.retrieval.errors import InputError
from genret.retrieval.score_types import ScoreRequest
from genret.service.commands import usage_error
from genret.service.commands.connection import Connection, connection_options, index_option, json_option
from genret.service.commands.render import FOLDED, RIGHT, WHITESPACE, below, shared, show, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from genret.service.client.reply import ScoreReply


@click.command("score", cls=GroupedCommand)
@click.argument("query")
@click.argument("titles", nargs=-1)
@described_option(
    "--titles titles_file",
    "File of titles, one per line; - for standard input.",
    click.Path(allow_dash=True),
    envvar="GENRET_SCORE_TITLES_FILE",
    show_default="the arguments",
)
@described_option("--best-first", "The likeliest title first, in place of the order given.", is_flag=True)
@index_option("Index whose model scores.")
@prompt_option()
@json_option("title")
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
        reply = in_order(reply)
    if sys.stdout.isatty() and not as_json_lines:
        show(as_table(reply))
        return
    for line in (as_json if as_json_lines else as_lines)(reply):
        click.echo(line)


# Most that a server takes in one message; more lines than it scores are refused by their number.
_MAX_BYTES = 64 * 2**20


def read_titles(path: str) -> list[str]:
    """Read a file of titles, "-" for standard input; blank lines are skipped, blanks around a title dropped.

    Raises:
        SourceError: it cannot be read, is larger than any list of titles, or not UTF-8; names the line.
    """
    source, name = (sys.stdin.buffer, "standard input") if path == "-" else (path, path)
    return [line for line in small_lines(source, name, _MAX_BYTES) if line]


def in_order(reply: ScoreReply) -> ScoreReply:
    """Return the scores by falling probability; those that have none last, equal ones in the order given."""
    ordered = sorted(reply.result.scores, key=lambda s: (s.logprob is None, -(s.logprob or 0.0)))
    return replace(reply, result=replace(reply.result, scores=tuple(ordered)))


def as_lines(reply: ScoreReply) -> Iterator[str]:
    """Yield a line per title: title, logprob and probability (or nothing), tokens, ids, their shares."""
    for score in reply.result.scores:
        figures = ("", "") if score.logprob is None else (f"{score.logprob:.6f}", f"{score.probability:.6f}")
        shares = ",".join(f"{share:.6f}" for share in score.entity_shares)
        cells = (score.title, *figures, str(score.num_tokens), ",".join(score.entity_ids), shares)
        yield "\t".join(cell.translate(WHITESPACE) for cell in cells)


def as_json(reply: ScoreReply) -> Iterator[str]:
    """Yield one line of JSON per title."""
    for score in reply.result.scores:
        told = asdict(score if score.logprob is not None else replace(score, probability=None))
        yield json.dumps({"query": reply.result.query, **told}, ensure_ascii=False)


def as_table(reply: ScoreReply) -> RenderableType:
    """Return a rich table of the titles, with what it took below it."""
    from rich.text import Text

    result = reply.result
    numbers = [(name, RIGHT) for name in ("log P", "Among these", "Tokens")]
    rows = []
    for score in result.scores:
        is_scored = score.logprob is not None
        figures = (f"{score.logprob:.2f}", f"{score.probability:.1%}") if is_scored else ("too long", "")
        ids = shared(score.entity_ids, score.entity_shares) or "none"
        rows.append((score.title, *figures, str(score.num_tokens), ids))
    took = f"{reply.total_ms:.0f} ms, {reply.queue_ms:.0f} of them waiting"
    caption = f"{result.num_nodes:,} tokens computed behind the prompt; {took}; index {reply.index.name}"
    columns = [("Title", FOLDED), *numbers, ("Entity", FOLDED)]
    return below(table(columns, rows, title=Text(result.query, style="bold")), caption=caption)
