"""Size and digest of source files as they lie on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from retrieval.errors import SourceError
from retrieval.index.manifest import FileEntry
from retrieval.sources.opening import display_name, is_read_once

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileState:
    """What shows that a file has been written to: size and time of its last change."""

    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, path: str | Path) -> FileState | None:
        """Look at a file; None for what can be read only once.

        Raises:
            SourceError: it cannot be looked at.
        """
        if is_read_once(path):
            return None
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise SourceError(f"{path}: no such file") from None
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
        return cls(status.st_size, status.st_mtime_ns)

    def check(self, path: str | Path) -> None:
        """Look again.

        Raises:
            SourceError: the file has changed.
        """
        if FileState.of(path) != self:
            raise SourceError(f"{path}: the file changed while it was read")


def digest_files(paths: Sequence[str | Path]) -> tuple[FileEntry, ...]:
    """Return size and xxh3_128 of regular files.

    Raises:
        SourceError: one cannot be read, or can be read only once, as standard input.
    """
    return tuple(digest_file(path) for path in paths)


def digest_file(path: str | Path) -> FileEntry:
    """Return size and xxh3_128 of one regular file.

    Raises:
        SourceError: it cannot be read, or can be read only once.
    """
    if is_read_once(path):
        raise SourceError(f"{display_name(path)}: what is read only once has no digest beforehand")
    digest, size = xxhash.xxh3_128(), 0
    try:
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise SourceError(f"{path}: this is a directory; expected a titles file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    return FileEntry(Path(path).name, size, digest.hexdigest())
