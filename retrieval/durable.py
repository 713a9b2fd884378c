"""Files that appear whole or not at all, and survive a loss of power; errors that name the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.errors import SourceError

_ARROW_ERRNO = re.compile(r"\[errno (\d+)\]")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses in the block into an error that names `path`.

    Raises:
        SourceError: the disk is full, the folder may not be written to, or is gone.
    """
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

    Raises:
        SourceError: it cannot be written.
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
    """Sync a file, give it its name, and make that durable.

    Raises:
        OSError: the operating system refuses.
    """
    sync(staging)
    staging.replace(path)
    sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file in one step.

    Raises:
        SourceError: it cannot be written.
    """
    with appearing(path) as staging, writing(path):
        staging.write_bytes(data)


def _reason(error: OSError) -> str:
    """Return what the system says, without the name of the hidden file."""
    number = _ARROW_ERRNO.search(str(error))  # Arrow's own errors have it in their text
    return os.strerror(int(number[1])) if number else error.strerror or str(error)


def sync(path: Path, flags: int = os.O_RDONLY) -> None:
    """Make what was written to a file or folder durable.

    Raises:
        OSError: the operating system refuses.
    """
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
