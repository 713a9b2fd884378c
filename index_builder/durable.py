"""Writing files so that they are still there after a loss of power, and errors that say which file it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing; at the end of the block it is synced to the disk.

    Raises:
        OSError: it cannot be written; `filename` is `path`, which a failed write alone does not say.
    """
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


def sync_file(path: Path) -> None:
    """Make the content of a file that something else wrote durable."""
    with naming(path), path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
