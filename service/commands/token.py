"""`genret token`: make bearer tokens, and check the file they lie in."""

from __future__ import annotations

import json
from pathlib import Path

import click

from genret.retrieval.command_options import shown_option
from genret.retrieval.errors import InputError
from genret.service.call import Priority
from genret.service.commands.connection import json_option
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
@json_option("token, with its line")
def new_command(scope: str, priority: str, as_json_lines: bool) -> None:
    """Print a fresh token, and below it the line that makes it live in a server's token file.

    The token is for its user and is not stored anywhere. The line holds its SHA-256 only.
    """
    token = new_token()
    line = line_of(Scope(scope), token, Priority(priority))
    click.echo(json.dumps({"token": token, "line": line}) if as_json_lines else f"{token}\n{line}")


@token_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@json_option("token")
def check_command(file: Path, as_json_lines: bool) -> None:
    """Say which tokens of FILE are live; fail if a server would refuse it.

    A line says scope, priority if it is bulk, and fingerprint.
    """
    try:
        tokens = read_token_file(file).tokens
    except InputError as error:
        raise click.ClickException(error.message) from error
    for token in tokens:
        bulk = "bulk " if token.priority is Priority.BULK else ""
        told = {
            "scope": token.scope.value,
            "priority": token.priority.value,
            "fingerprint": token.fingerprint,
        }
        click.echo(json.dumps(told) if as_json_lines else f"{token.scope.value} {bulk}{token.fingerprint}")
