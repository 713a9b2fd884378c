"""Lists of entity ids in files: one per line, UTF-8."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import SourceError
from retrieval.filters.restriction import MAX_IDS

# An id of a line is as the catalogue has it; what is longer than this is no list of ids.
_MAX_FILE_BYTES = 64 * 2**20


def read_ids(path: str | Path) -> tuple[str, ...]:
    """Read a file of ids; blank lines are skipped, blanks around an id are not part of it.

    Raises:
        SourceError: the file cannot be read, is not UTF-8, or holds more than `MAX_IDS` ids; names the line.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise SourceError(f"{path}: larger than {_MAX_FILE_BYTES // 2**20} MiB, which is no list of ids")
    ids = []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError:
            raise SourceError(f"{path}, line {number}: not valid UTF-8") from None
        if text:
            ids.append(text)
        if len(ids) > MAX_IDS:
            raise SourceError(f"{path}, line {number}: more than {MAX_IDS:,} ids")
    return tuple(ids)
