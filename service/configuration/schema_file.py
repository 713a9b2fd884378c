"""Files with JSON Schemas."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import SourceError

# More than any schema that is compiled by default; a wrong file must not fill the memory.
_MAX_SCHEMA_BYTES = 4 * 2**20


def read_schema(file: Path) -> str:
    """Return the text of a schema file.

    Raises:
        SourceError: it cannot be read, or is no UTF-8 text of a sensible size.
    """
    try:
        with file.open("rb") as stream:
            raw = stream.read(_MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror or error}") from error
    if len(raw) > _MAX_SCHEMA_BYTES:
        raise SourceError(
            f"{file}: a schema of at most {_MAX_SCHEMA_BYTES:,} bytes is expected, this is larger"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{file}: not valid UTF-8 at byte {error.start + 1}") from error
