"""Pages of the documentation, what stands in them, and their examples run as a reader would run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from decimal import Decimal
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """Return the text below a heading of the second or third depth, up to the next one."""
    (found,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##+ |\Z)", text_of(page), re.M | re.S)
    return str(found)


def rows(text: str) -> list[list[str]]:
    """Return the cells of all tables of a text, without their heads."""
    lines = text.splitlines()
    cells = [
        re.split(r"(?<!\\)\|", line.strip("|"))
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("|") and not line.startswith("|--") and not after.startswith("|--")
    ]
    return [[cell.strip() for cell in row] for row in cells]


def code(cell: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def examples(text: str) -> list[tuple[str, str]]:
    """Return the Python blocks that are followed by what they print, and that."""
    return re.findall(r"```python\n((?:(?!```).)*)```\n```\n(.*?)```", text, re.DOTALL)


_DECIMAL = re.compile(r"-?\d+\.\d+")


def differ(printed: str, said: str) -> str:
    """Return how an output differs from what a page says of it; "" if it does not.

    A model's last digit differs between processors: decimals may be one unit of the page's last digit off.
    """
    numbers = _DECIMAL.findall(printed), _DECIMAL.findall(said)
    if _DECIMAL.sub("#", printed) != _DECIMAL.sub("#", said):
        return f"expected\n{said}\ngot\n{printed}"
    for got, expected in zip(*numbers, strict=True):
        if abs(Decimal(got) - Decimal(expected)) > Decimal(1).scaleb(Decimal(expected).as_tuple().exponent):
            return f"expected {expected}, got {got}, in\n{printed}"
    return ""


def run(code: str, folder: Path) -> str:
    """Return what Python code prints in a folder."""
    return run_command([sys.executable, "-c", code], folder)


def genret(command: str, folder: Path) -> str:
    """Return what a command, its name left out, prints in a folder."""
    code = f"from genret.service.main import cli; cli({shlex.split(command)!r}, standalone_mode=False)"
    return run(code, folder)


def shell(command: str, folder: Path, **variables: str) -> str:
    """Return what a shell command prints, `genret` being that of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **variables}
    return run_command(["bash", "-c", f"set -eo pipefail\n{command}"], folder, environment)


def run_command(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout
