"""Writes files that appear whole or not at all and survive a loss of power; errors name the file.

Files of users (`appearing`, `replace_file`, `staged_file`) fail with `SourceError`, files inside an index
(`written`, `write_synced`, `publish`, `sync`) with `OSError`, of which the builder makes its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from genret.retrieval.errors import SourceError

_ARROW_ERRNO = re.compile(r"\[errno (\d+)\]")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the operating system in the block into SourceError that names `path`."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: cannot be written: {_reason(error)}") from error


def temporary_name(path: Path) -> Path:
    """Return the hidden name, unique to this process, under which a file is written first."""
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yield the hidden file to write; at the end of the block it is synced and gets its name.

    When the block fails nothing is left; only a process that is killed leaves the hidden file behind.
    """
    staging = temporary_name(path)
    try:
        yield staging
        with writing(path):
            publish(staging, path)
    finally:
        with writing(path):
            staging.unlink(missing_ok=True)


def publish(staging: Path, path: Path) -> None:
    """Sync a file, give it its name, and make that durable."""
    sync(staging)
    staging.replace(path)
    sync(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file in one step."""
    with appearing(path) as staging, writing(path):
        staging.write_bytes(data)


def _reason(error: OSError) -> str:
    """Return the system's reason, without the name of the hidden file."""
    number = _ARROW_ERRNO.search(str(error))  # Arrow's own errors have it in their text
    return os.strerror(int(number[1])) if number else error.strerror or str(error)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; at the end of the block it is synced to the disk."""
    with naming(path), path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the operating system in the block name `path` if they name no file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and sync it."""
    with written(path) as file:
        file.write(data)


@contextmanager
def staged_file(path: str | Path) -> Iterator[TextIO]:
    """Open a file that takes its name when the block ends without an error; the folder is made."""
    file = Path(path)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    with (
        appearing(file) as staging,
        writing(file),
        staging.open("w", encoding="utf-8", newline="\n") as stream,
    ):
        yield stream
