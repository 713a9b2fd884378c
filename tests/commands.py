"""Commands in this process: what they print where they succeed, and what they say where they refuse."""

from __future__ import annotations

import json
from typing import Any

from click import Command
from click.testing import CliRunner, Result


def run(
    command: Command, *arguments: object, stdin: str | None = None, env: dict[str, str] | None = None
) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], input=stdin, env=env)


def succeed(command: Command, *arguments: object, **options: Any) -> Result:
    result = run(command, *arguments, **options)
    assert result.exit_code == 0, result.output
    return result


def json_of(command: Command, *arguments: object, **options: Any) -> Any:
    """Return what a command prints as JSON; standard output holds nothing else."""
    return json.loads(succeed(command, *arguments, **options).stdout)


def refusal(command: Command, *arguments: object, code: int = 2, **options: Any) -> str:
    """Return what a command that fails says on standard error; it prints nothing else."""
    result = run(command, *arguments, **options)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert "Traceback" not in result.stderr
    return result.stderr.removesuffix("\n")
