"""`genret health`: whether a server takes requests, for people, scripts and probes."""

from __future__ import annotations

import math

import click

from retrieval.options import SHOWN
from service.commands.connection import Connection, call_error, connection_options


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
    from service.errors import CallError

    if wait is not None and live:
        raise click.UsageError("--wait: a server is waited for until it is ready; leave --live out")
    if wait is not None and not (math.isfinite(wait) and wait > 0):
        raise click.UsageError(f"--wait: must be a positive number of seconds, got {wait}")
    with connection.open() as client:
        try:
            if wait is not None:
                client.wait_until_ready(wait)
            status = client.health(LIVENESS if live else READINESS)
        except CallError as error:
            raise call_error(error) from error
    click.echo(status)
    if status != "SERVING":
        raise click.exceptions.Exit(1)
