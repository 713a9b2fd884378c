"""Finds the versions of an index directory, and the live one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from genret.retrieval.errors import IndexDirectoryError, IndexFormatError, IndexNotFoundError
from genret.retrieval.index.layout import CURRENT_FILE, MANIFEST_FILE, VERSION_PATTERN, VERSIONS_DIR, WORK_DIR
from genret.retrieval.index.small_files import read_small_file

# A pointer has 33 bytes; a longer file is none.
_MAX_POINTER_BYTES = 4096

# Every further attempt needs one more publication that removes the version just being read.
_MAX_ATTEMPTS = 20

_T = TypeVar("_T")


def live_version(index: Path) -> str:
    """Return the id named by CURRENT.

    Raises IndexNotFoundError without an index directory, IndexFormatError if CURRENT is damaged.
    """
    file, expected = index / CURRENT_FILE, "expected a directory that genret build made"
    if os.path.isfile(index):
        raise IndexNotFoundError(f"{index}: not an index: it is a file; {expected}")
    try:
        text = read_small_file(file, _MAX_POINTER_BYTES)
    except FileNotFoundError:
        if not os.path.lexists(index):
            raise IndexNotFoundError(f"{index}: no such directory") from None
        why = f": it has no file {CURRENT_FILE}; {expected}"
        if os.path.isdir(index / WORK_DIR):
            why = " yet: its build is not done; if it was cut short, run it again, it goes on"
        raise IndexNotFoundError(f"{index}: not an index{why}") from None
    line = text.decode("ascii", errors="replace")
    name = line.removesuffix("\n")
    if VERSION_PATTERN.fullmatch(name) is None or name == line:
        raise IndexFormatError(
            f"{file}: damaged: expected the id of a version and the end of the line, got {line[:80]!r}"
        )
    return name


def live_or_none(index: Path) -> str | None:
    """Return the id named by CURRENT, or None where there is no index or CURRENT is damaged."""
    try:
        return live_version(index)
    except IndexDirectoryError:
        return None


def version_dir(path: Path) -> Path:
    """Return the version directory to read: the live one of an index directory, or `path` itself.

    Raises IndexNotFoundError if it is neither, IndexFormatError if CURRENT is damaged or names no version.
    """
    # os.path and not pathlib, which raises where a directory on the way may not be entered.
    if not os.path.lexists(path / CURRENT_FILE) and os.path.isfile(path / MANIFEST_FILE):
        return path
    folder = path / VERSIONS_DIR / live_version(path)
    if not os.path.isdir(folder):
        raise IndexFormatError(f"{path / CURRENT_FILE}: names version {folder.name}, which is not there")
    return folder


def read_version(path: Path, read: Callable[[Path], _T], sound: Callable[[_T], bool] | None = None) -> _T:
    """Read the version that `path` stands for; where another one was published meanwhile, that one.

    A publication may remove the version that CURRENT named when reading began. A fault of it counts only if
    CURRENT is still the same afterwards.

    Args:
        path: An index directory or a version directory.
        read: Reads a version directory; raises IndexDirectoryError.
        sound: Whether its result is without faults, if it can have some.
    """
    for _ in range(_MAX_ATTEMPTS - 1):
        before = _pointer_identity(path)
        try:
            result = read(version_dir(path))
        except IndexDirectoryError as error:
            if _pointer_identity(path) == before:
                error.args = (f"{error}{way_back(path)}",)
                raise
        else:
            if sound is None or sound(result) or _pointer_identity(path) == before:
                return result
    return read(version_dir(path))


def list_versions(index: Path) -> list[str]:
    """Return the ids of all published versions, the most recently published first."""
    folder = index / VERSIONS_DIR
    if not folder.is_dir():
        return []
    found = []
    for entry in folder.iterdir():
        if VERSION_PATTERN.fullmatch(entry.name):
            with suppress(OSError):  # a publication has just removed it, or it is a link to itself
                found.append((-entry.stat().st_mtime_ns, entry.name))
    return [name for _, name in sorted(found)]


def way_back(index: Path) -> str:
    """Return how to go back to another version than the live one, as the end of an error; "" without any."""
    with suppress(OSError):  # folders that may not be read are told by the error itself
        live = live_or_none(index)
        others = [version for version in list_versions(index) if version != live] if live else []
        if others:
            return f"; another version is there: genret rollback {index} --to {others[0]}"
    return ""


def _pointer_identity(path: Path) -> tuple[int, int] | None:
    """Return a value that changes whenever CURRENT is replaced, also by one with the same content."""
    try:
        found = (path / CURRENT_FILE).stat()
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns
