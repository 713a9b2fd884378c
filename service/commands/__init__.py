"""Holds the sub-commands of `genret` that start a server or ask one.

`service.main` imports the module of a command when that command runs, so nothing heavy may stand at the top
of one. `usage_error` here is how all of them tell a wrong option. Commands that ask a server go through
`service.client`: they must not know messages or the server.
"""

from __future__ import annotations

import click

from genret.retrieval.errors import InputError


def usage_error(error: InputError) -> click.UsageError:
    """Return click's error for a parameter that the library refused, under the option's name."""
    option = f"-{error.field}" if len(error.field) == 1 else f"--{error.field.replace('_', '-')}"
    return click.UsageError(f"{option}: {error.message}")
