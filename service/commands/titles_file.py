"""Lists of titles in files: one per line, UTF-8."""

from __future__ import annotations

import sys
from pathlib import Path

import click

# Most that a server takes in one message; more lines than it scores are refused by their number.
_MAX_BYTES = 64 * 2**20
_STDIN = "-"


def read_titles(path: str) -> list[str]:
    """Read a file of titles, "-" for standard input; blank lines are skipped, blanks around a title dropped.

    Raises:
        ClickException: it cannot be read, is larger than any list of titles, or not UTF-8; names the line.
    """
    name = "standard input" if path == _STDIN else path
    try:
        if path == _STDIN:
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > _MAX_BYTES:
        raise click.ClickException(
            f"{name}: larger than {_MAX_BYTES // 2**20} MiB, which is no list of titles"
        )
    titles = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise click.ClickException(f"{name}, line {number}: not valid UTF-8") from None
        if text:
            titles.append(text)
    return titles
