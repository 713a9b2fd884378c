"""`genret token`: make bearer tokens, and check the file they lie in."""

from __future__ import annotations

from pathlib import Path

import click

from genret.retrieval.command_options import shown_option
from genret.retrieval.errors import InputError
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
def new_command(scope: str) -> None:
    """Print a fresh token, and below it the line that makes it live in a server's token file.

    The token is for its user and is not stored anywhere. The line holds its SHA-256 only.
    """
    token = new_token()
    click.echo(token)
    click.echo(line_of(Scope(scope), token))


@token_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check_command(file: Path) -> None:
    """Say which tokens of FILE are live, by scope and fingerprint; fail if a server would refuse it."""
    try:
        tokens = read_token_file(file).tokens
    except InputError as error:
        raise click.ClickException(error.message) from error
    for token in tokens:
        click.echo(f"{token.scope.value} {token.fingerprint}")
