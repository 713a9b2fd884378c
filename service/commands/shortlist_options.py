"""Options of command lines that answer by `shortlist` and `auto`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--shortlist-size",
        type=int,
        help="auto, shortlist: entities that the vectors propose, at most 2000.",
        show_default="100",
        show_envvar=True,
    ),
    click.option(
        "--decoder",
        type=click.Choice(["beam", "disc"]),
        help="auto: what decodes beside the shortlist; its options are the ones that count.",
        show_default="beam",
        show_envvar=True,
    ),
    click.option(
        "--vector-weight",
        type=float,
        help="auto, shortlist: order by log P + this * similarity, at most 1000.",
        show_default="shortlist: 0; auto: the server's",
        show_envvar=True,
    ),
    click.option(
        "--shortlist-query",
        help="auto, shortlist: text that the vectors are asked with.",
        show_default="the query",
        show_envvar=True,
    ),
)


def shortlist_options(command: _F) -> _F:
    """Add --shortlist-size, --decoder, --vector-weight and --shortlist-query to a command."""
    for option in reversed(_OPTIONS):  # decorators apply from the last to the first
        command = option(command)
    return command
