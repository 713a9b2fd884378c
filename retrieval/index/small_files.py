"""Reads the small files of an index, CURRENT and the manifest; digests files and bytes.

Digests are XXH3-128: they detect damage, not malice.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from genret.retrieval.errors import IndexFormatError, IndexNotFoundError


def read_small_file(file: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes`; longer ones are refused before they are read.

    Raises:
        FileNotFoundError: there is no such file.
        IndexNotFoundError: it cannot be read.
        IndexFormatError: it is too long, or a directory, a pipe or a device.
    """
    try:
        # Without O_NONBLOCK the opening of a pipe waits for a writer.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise IndexFormatError(f"{file}: expected a file, got a {kind_of(found)}")
            if found.st_size > max_bytes:
                raise IndexFormatError(f"{file}: expected at most {max_bytes} bytes, got {found.st_size}")
            return opened.read(max_bytes)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise IndexNotFoundError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # no file can have this name
        raise IndexNotFoundError(f"{str(file)!r}: cannot be read: {error}") from error


def kind_of(found: os.stat_result) -> str:
    """Return the kind of a thing in the place of a file, in one word or two."""
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    return "pipe" if stat.S_ISFIFO(found.st_mode) else "special file"


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON strictly: no duplicate keys, no NaN, no halves of characters, no endless nesting.

    IndexFormatError begins with `where`, the file's path.
    """
    try:
        document = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # fails on halves of characters
        return document
    except ValueError as error:
        raise IndexFormatError(f"{where}: not valid JSON: {error}") from error
    except RecursionError:
        raise IndexFormatError(f"{where}: not valid JSON: nested too deeply") from None


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def digest_bytes(data: Any) -> str:
    """Return the digest of a buffer as 32 hexadecimal digits."""
    return str(xxhash.xxh3_128_hexdigest(data))


def digest_file(path: Path) -> str:
    """Return the digest of a file, read in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
