"""`genret health`, `genret indexes` and `genret reload`: readiness and indexes of a running server."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import TYPE_CHECKING, Any

import click

from retrieval.command_options import SHOWN
from service.commands.connection import Connection, connection_options, json_option
from service.commands.render_indexes import as_details, as_line, as_table, loaded_at

if TYPE_CHECKING:
    from service.client import IndexInfo


@click.command("indexes")
@click.argument("name", required=False)
@json_option("INDEXES", "index")
@connection_options(timeout_s=10.0)
def indexes_command(name: str | None, as_json_lines: bool, connection: Connection) -> None:
    """List the indexes of a running server, the default one first, or describe the one called NAME.

    In a pipe an index is one line: name, version, entities, surface forms, model, device, when it was loaded,
    "default" for the default one, and its kinds of evidence, a minus sign before those that cannot be used,
    between tabs.
    """
    with connection.open() as client:
        found = client.list_indexes() if name is None else [client.get_index(name)]
    if as_json_lines:
        for index in found:
            click.echo(json.dumps(_document(index), ensure_ascii=False))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(as_table(found) if name is None else as_details(found[0]))
    else:
        for index in found:
            click.echo(as_line(index))


@click.command("reload")
@click.argument("name", default="", required=False)
@click.option("--force", is_flag=True, help="Load it also when it is the version that is served.", **SHOWN)
@json_option("RELOAD", "index")
@connection_options(timeout_s=600.0, waits_for="the new version to be loaded")
def reload_command(name: str, force: bool, as_json_lines: bool, connection: Connection) -> None:
    """Have a running server take up the live version of the index called NAME, or of its default one.

    Requests that run keep the version they began with. When the new version cannot be used, the one that is
    served stays. A server that asks for tokens asks for one with the scope admin.
    """
    with connection.open() as client:
        reply = client.reload_index(name, force=force)
    if as_json_lines:
        document = {**dataclasses.asdict(reply), "index": _document(reply.index)}
        click.echo(json.dumps(document, ensure_ascii=False))
    elif reply.reloaded:
        click.echo(
            f"index {reply.index.name!r}: version {reply.previous_version} -> {reply.index.version}; "
            f"opened in {reply.open_ms / 1000:.2f} s, warmed up in {reply.warm_up_ms / 1000:.2f} s"
        )
    else:
        click.echo(f"index {reply.index.name!r}: version {reply.index.version} is served already")


def _document(index: IndexInfo) -> dict[str, Any]:
    document = dataclasses.asdict(index)
    document["loaded_at"] = loaded_at(index) or None
    document["columns"] = dict(index.columns)
    return document


@click.command("health")
@click.option("--live", is_flag=True, help="Ask whether the server lives, not whether it is ready.", **SHOWN)
@click.option(
    "--wait",
    type=float,
    help="Wait so many seconds for it to be ready, also when it has not been started yet.",
    show_default="answer at once",
    show_envvar=True,
)
@connection_options(timeout_s=5.0)
def health_command(live: bool, wait: float | None, connection: Connection) -> None:
    """Say whether a server is ready: exit code 0 when it is, 1 when it is not or does not answer."""
    from service.client import LIVENESS, READINESS

    if wait is not None and live:
        raise click.UsageError("--wait: a server is waited for until it is ready; leave --live out")
    if wait is not None and not (math.isfinite(wait) and wait > 0):
        raise click.UsageError(f"--wait: must be a positive number of seconds, got {wait}")
    with connection.open() as client:
        if wait is not None:
            client.wait_until_ready(wait)
        status = client.health(LIVENESS if live else READINESS)
    click.echo(status)
    if status != "SERVING":
        raise click.exceptions.Exit(1)
