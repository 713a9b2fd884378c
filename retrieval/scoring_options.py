"""Options of command lines that answer by `beam`: what its scores are, and whether they are to be proven."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from retrieval.options import SHOWN

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--exact",
        is_flag=True,
        help="beam: go on until the list is proven, or --exact-budget is spent.",
        **SHOWN,
    ),
    click.option(
        "--exact-budget",
        type=int,
        help="beam: most tokens computed for that, at most 1000000.",
        show_default="1024",
        show_envvar=True,
    ),
    click.option(
        "--length-penalty",
        type=float,
        default=0.0,
        help="beam: rank by log P / length ** this, in [-4, 4]; above 0 favours long titles.",
        **SHOWN,
    ),
    click.option(
        "--aggregate",
        type=click.Choice(["sum", "max"]),
        help="beam: an entity's score is the probability of all of its titles and aliases found, or the "
        "score of the best one.",
        show_default="sum; max with a --length-penalty",
        show_envvar=True,
    ),
)


def scoring_options(command: _F) -> _F:
    """Add --exact, --exact-budget, --length-penalty and --aggregate to a command."""
    for option in reversed(_OPTIONS):  # decorators apply from the last to the first
        command = option(command)
    return command
