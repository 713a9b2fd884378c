"""The command `genret rollback`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from index_builder.command_line import answered
from index_builder.rollback import roll_back
from retrieval.errors import InputError
from retrieval.index.versions import live_or_none
from retrieval.interruption import sigterm_as_interrupt

_ENV = "GENRET_ROLLBACK_"


@click.command("rollback", context_settings={"show_default": True})
@click.argument("index", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="VERSION",
    envvar=_ENV + "TO",
    show_envvar=True,
    show_default="the one before the live one",
    help="Id of the version, or its first digits; `genret inspect` lists them.",
)
@click.option("--json", "as_json", is_flag=True, envvar=_ENV + "JSON", show_envvar=True, help="As JSON.")
def rollback_command(index: Path, to: str | None, as_json: bool) -> None:
    """Make an earlier version of an INDEX live again, once its files have been checked.

    The version that is live now is kept, so that `--to` can return to it.
    """
    # Errors pass through, to be told by the group: to have no earlier version is no wrong usage.
    with answered(index, live_or_none(index), dry_run=False, debug=True), sigterm_as_interrupt():
        try:
            done = roll_back(index, to)
        except InputError as error:
            raise click.ClickException(f"--to: {error.message}") from error
    if as_json:
        click.echo(json.dumps(done.to_json(), ensure_ascii=False))
    elif done.version == done.before:
        click.echo(f"{index}: version {done.version} is live already")
    else:
        click.echo(
            f"{index}: version {done.version} is live, {done.entities:,} entities; before: {done.before}"
        )
