"""What commands that talk to a server have in common: its address, how long to wait, how errors read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from retrieval.errors import InputError
from retrieval.options import SHOWN
from service.commands.usage import usage_error
from service.configuration.config import DEFAULT_HOST, DEFAULT_PORT, check_address, join_address

if TYPE_CHECKING:
    from service.errors import CallError


def _checked_address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        check_address(value)
    except InputError as error:
        raise usage_error(error) from error
    return value


address_option = click.option(
    "--address",
    default=join_address(DEFAULT_HOST, DEFAULT_PORT),
    callback=_checked_address,
    help="The server, as host:port.",
    **SHOWN,
)


def check_timeout(timeout: float) -> None:
    """Refuse a time to wait that is none."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise click.UsageError(f"--timeout: must be a positive number of seconds, got {timeout}")


def hint(error: CallError) -> str:
    """Say what to do about an error, where there is something to be done."""
    if error.retry_after_s is not None:
        return f"; try again in {error.retry_after_s:.2g} s"
    return "; start one with: genret serve INDEX" if error.code == "UNAVAILABLE" else ""


def call_error(error: CallError) -> click.ClickException:
    """Return click's error for a call that failed."""
    return click.ClickException(f"{error}{hint(error)}")
