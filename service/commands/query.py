"""`genret query`: candidates of a running server."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from retrieval.errors import InputError, SourceError
from retrieval.filters.id_file import read_ids
from retrieval.options import SHOWN, adaptive_option
from retrieval.request_checks import DEFAULT_NUM_SAMPLES, METHODS
from retrieval.scoring_options import scoring_options
from retrieval.types import RetrieveRequest
from service.commands.connection import Connection, call_error, connection_options, hint
from service.commands.query_input import batches, most_items
from service.commands.shortlist_options import shortlist_options
from service.commands.usage import usage_error

if TYPE_CHECKING:
    from service.client import RetrievalClient
    from service.client.reply import Reply
    from service.errors import CallError


@click.command("query")
@click.argument("queries", nargs=-1)
@click.option("-k", "--k", "k", type=int, default=10, help="Candidates wanted, at most 1000.", **SHOWN)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="auto",
    help="auto: a decoder, and a shortlist that is scored where the index has vectors; beam: the k most "
    "probable titles; disc: samples and their shares; shortlist: what the vectors propose, scored.",
    **SHOWN,
)
@click.option(
    "--index", default="", help="Index to search.", show_default="the server's first", show_envvar=True
)
@click.option(
    "--json",
    "as_json_lines",
    is_flag=True,
    envvar="GENRET_QUERY_JSON",
    help="One JSON object per query.",
    **SHOWN,
)
@click.option(
    "--beam-size",
    type=int,
    help="beam: live prefixes per step, at most 1000; disc: prefixes per draw, at most 64.",
    show_default="beam: the larger of k and 10; disc: 1",
    show_envvar=True,
)
@click.option("--num-draws", type=int, default=4, help="disc: draws tried per sample.", **SHOWN)
@click.option(
    "--num-samples", type=int, default=DEFAULT_NUM_SAMPLES, help="disc: independent samples.", **SHOWN
)
@click.option("--temperature", type=float, default=1.0, help="disc: divides the logits.", **SHOWN)
@click.option(
    "--top-m",
    type=int,
    help="disc: only the M likeliest tokens of a step, which biases the shares.",
    show_default="all, exact",
    show_envvar=True,
)
@click.option(
    "--seed",
    type=int,
    help="disc: the same seed gives the same answer.",
    show_default="chosen and told",
    show_envvar=True,
)
@click.option(
    "--min-mass",
    type=float,
    help="disc: no match when the model's probability that its answer is in the catalogue is below this, "
    "in [0, 1].",
    show_default="no limit",
    show_envvar=True,
)
@adaptive_option
@scoring_options
@shortlist_options
@click.option(
    "--title-weight",
    type=float,
    help="How much more an entity counts for a name that is its title than for one that is its alias, where "
    "several share the name, in [1e-6, 1e6].",
    show_default="the checkpoint's",
    show_envvar=True,
)
@click.option(
    "--prompt", help="Name of the prompt template.", show_default="the checkpoint's", show_envvar=True
)
@click.option(
    "--filter",
    "predicate",
    envvar="GENRET_QUERY_FILTER",
    help="Only entities for which this is true: kind = 'film' and year >= 1990",
    show_default="all entities",
    show_envvar=True,
)
@click.option(
    "--allow-ids",
    type=click.Path(),
    help="File of entity ids, one per line: only these.",
    show_default="all entities",
    show_envvar=True,
)
@click.option(
    "--deny-ids",
    type=click.Path(),
    help="File of entity ids, one per line: none of these.",
    show_default="none",
    show_envvar=True,
)
@click.option(
    "--explain",
    is_flag=True,
    help="Show the tokens the model walked through as well; disc: and its draws. Excludes adaptive draws.",
    **SHOWN,
)
@click.option(
    "--stream",
    is_flag=True,
    help="Ask over one stream and print every answer as soon as it is there, in any order, with bounded "
    "memory however many queries come; --timeout does not limit it.",
    **SHOWN,
)
@connection_options(timeout_s=60.0)
def query_command(
    queries: tuple[str, ...],
    k: int,
    method: str,
    index: str,
    as_json_lines: bool,
    beam_size: int | None,
    num_draws: int,
    num_samples: int,
    temperature: float,
    top_m: int | None,
    seed: int | None,
    min_mass: float | None,
    adaptive: bool,
    exact: bool,
    exact_budget: int | None,
    length_penalty: float,
    aggregate: str | None,
    shortlist_size: int | None,
    decoder: str | None,
    vector_weight: float | None,
    shortlist_query: str | None,
    title_weight: float | None,
    prompt: str | None,
    predicate: str | None,
    allow_ids: str | None,
    deny_ids: str | None,
    explain: bool,
    stream: bool,
    connection: Connection,
) -> None:
    """Ask a running server. Several QUERIES go in one call.

    - reads queries from standard input, one per line, in UTF-8; blank lines are skipped. What has arrived
    is answered at once, without waiting for the end of the input.

    On a terminal the answer is a table. In a pipe it is one line per candidate: query, rank, entity id,
    title, surface form, log-probability, with disc the share of the samples, with auto and shortlist the
    probability among what was scored, what they are ordered by, and the similarity of the vectors, between
    tabs; an explanation goes to standard error.
    """
    if not queries:
        raise click.UsageError('what is the query? genret query "author of hamlet"')
    try:
        allowed = None if allow_ids is None else read_ids(allow_ids)
        denied = () if deny_ids is None else read_ids(deny_ids)
    except SourceError as error:
        raise click.ClickException(str(error)) from error
    make = partial(
        RetrieveRequest,
        k=k,
        method=method,
        beam_size=beam_size,
        num_draws=num_draws,
        num_samples=num_samples,
        temperature=temperature,
        top_m=top_m,
        seed=seed,
        min_mass=min_mass,
        adaptive=adaptive,
        exact=exact,
        exact_budget=exact_budget,
        length_penalty=length_penalty,
        aggregate=aggregate,
        shortlist_size=shortlist_size,
        decoder=decoder,
        vector_weight=vector_weight,
        shortlist_query=shortlist_query,
        title_weight=title_weight,
        prompt=prompt,
        filter=predicate,
        allow_ids=allowed,
        deny_ids=denied,
        explain=explain,
    )
    # A wrong option must not wait for a server, nor for the first line of stdin.
    try:
        make("probe")
    except InputError as error:
        raise usage_error(error) from error
    if any(text != "-" and not text.strip() for text in queries):
        raise click.UsageError("query: must not be empty")
    printer = _Printer(as_json_lines, min_mass)
    with connection.open() as client:
        if stream:
            _stream(client, (make(text) for batch in batches(queries) for text in batch), index, printer)
        else:
            for batch in batches(queries, most_items(allowed or (), denied)):
                for text, reply in zip(batch, _ask(client, [make(t) for t in batch], index), strict=True):
                    printer.show(text, reply)
    if printer.num_failed:
        raise click.exceptions.Exit(1)


class _Printer:
    """Writes answers to stdout and what is to be said about them to stderr."""

    def __init__(self, as_json_lines: bool, min_mass: float | None) -> None:
        self._as_json_lines = as_json_lines
        self._min_mass = min_mass
        self._on_terminal = sys.stdout.isatty()
        self.num_failed = 0

    def show(self, query: str, reply: Reply | CallError) -> None:
        from service.commands import render
        from service.errors import CallError

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
        """Show why, where it was asked for; lines and JSON stay as they are."""
        from service.errors import CallError

        if self._as_json_lines or isinstance(reply, CallError) or reply.result.explanation is None:
            return
        from rich.console import Console

        from service.commands.render_explanation import as_tree

        Console(stderr=on_stderr).print(as_tree(reply.result.explanation))


def _ask(client: RetrievalClient, requests: Sequence[RetrieveRequest], index: str) -> list[Reply | CallError]:
    from service.errors import CallError

    try:
        if len(requests) == 1:
            return [client.retrieve(requests[0], index)]
        return client.retrieve_batch(requests, index)
    except CallError as error:
        raise call_error(error) from error


def _stream(
    client: RetrievalClient, requests: Iterable[RetrieveRequest], index: str, printer: _Printer
) -> None:
    from service.errors import CallError

    try:
        for request, reply in client.retrieve_stream(requests, index):
            printer.show(request.query, reply)
    except CallError as error:
        raise call_error(error) from error
