"""`genret token`: make bearer tokens, and check the file they lie in."""

from __future__ import annotations

from pathlib import Path

import click

from genret.retrieval.command_options import shown_option
from genret.retrieval.errors import InputError
from genret.service.call import Priority
from genret.service.security.bearer_tokens import Scope, line_of, new_token, read_token_file


@click.group("token")
def token_command() -> None:
    """Make bearer tokens, and check the file of `genret serve --token-file`."""


@token_command.command("new")
@shown_option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    default=Scope.READ.value,
    help="What it allows: read answers and indexes, or admin, which may reload indexes as well.",
)
@shown_option(
    "--priority",
    type=click.Choice([priority.value for priority in Priority]),
    default=Priority.INTERACTIVE.value,
    help="The best priority of its calls: bulk gives way to others, whatever a call asks for.",
)
def new_command(scope: str, priority: str) -> None:
    """Print a fresh token, and below it the line that makes it live in a server's token file.

    The token is for its user and is not stored anywhere. The line holds its SHA-256 only.
    """
    token = new_token()
    click.echo(token)
    click.echo(line_of(Scope(scope), token, Priority(priority)))


@token_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check_command(file: Path) -> None:
    """Say which tokens of FILE are live; fail if a server would refuse it.

    A line says scope, priority if it is bulk, and fingerprint.
    """
    try:
        tokens = read_token_file(file).tokens
    except InputError as error:
        raise click.ClickException(error.message) from error
    for token in tokens:
        bulk = "bulk " if token.priority is Priority.BULK else ""
        click.echo(f"{token.scope.value} {bulk}{token.fingerprint}")
