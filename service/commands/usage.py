"""How a wrong option is told to whoever typed it."""

from __future__ import annotations

import click

from retrieval.errors import InputError


def usage_error(error: InputError) -> click.UsageError:
    """Return click's error for a parameter that the library refused, under the option's name."""
    option = f"-{error.field}" if len(error.field) == 1 else f"--{error.field.replace('_', '-')}"
    return click.UsageError(f"{option}: {error.message}")
