"""Reading mentions to link: JSON lines with id, left, mention, right; optionally gzipped."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from retrieval.arguments import check_text
from retrieval.errors import InputError, SourceError
from retrieval.types import Mention

STDIN = "-"
_GZIP_MAGIC = b"\x1f\x8b"
_TEXT_FIELDS = ("left", "mention", "right")


@dataclass(frozen=True, slots=True)
class MentionRow:
    """One line of the input.

    Attributes:
        line: Line number, from 1.
        mention_id: The line's `id` as text; the line number when it has none.
        mention: The mention and its context.
        title: Title of the entity it stands for, where the line has a label.
        entity_id: Its id, as the title.
    """

    line: int
    mention_id: str
    mention: Mention
    title: str | None = None
    entity_id: str | None = None


@dataclass(frozen=True, slots=True)
class BadRow:
    """A line that is no mention.

    Attributes:
        line: Line number, from 1.
        reason: What was expected and what was got.
    """

    line: int
    reason: str


def read_mentions(path: str) -> Iterator[MentionRow | BadRow]:
    """Read mentions one by one; blank lines are skipped.

    Args:
        path: A file of JSON lines, gzipped or not, or "-" for standard input.

    Raises:
        SourceError: the file is missing, a directory, or not readable.
    """
    with _open(path) as lines:
        number = 0
        while True:
            number += 1
            try:
                raw = lines.readline()
            except (OSError, EOFError, zlib.error) as error:  # a broken gzip stream shows only here
                raise SourceError(f"{path}, line {number}: cannot be read: {error}") from error
            if not raw:
                return
            if raw.strip():
                yield _parse(raw, number)


def check_source(path: str) -> None:
    """Refuse a path that no mentions can be read from, before any work is done.

    Raises:
        SourceError: it is missing or a directory.
    """
    if path == STDIN:
        return
    if Path(path).is_dir():
        raise SourceError(f"{path}: is a directory; expected a .jsonl or .jsonl.gz file")
    if not Path(path).exists():
        raise SourceError(f"{path}: no such file")


@contextmanager
def _open(path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        if sys.stdin is None:
            raise SourceError("standard input is closed")
        yield sys.stdin.buffer
        return
    check_source(path)
    file = Path(path)
    try:
        stream = file.open("rb")
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
    with stream:
        gzipped = stream.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        yield cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if gzipped else stream


def _parse(raw: bytes, number: int) -> MentionRow | BadRow:
    try:
        text = raw.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
        value = json.loads(text)
    except UnicodeDecodeError as error:
        return BadRow(number, f"not valid UTF-8 at byte {error.start + 1}")
    except json.JSONDecodeError as error:
        return BadRow(number, f"not a JSON value: {error.msg} at column {error.colno}")
    except ValueError as error:  # a number of thousands of digits
        return BadRow(number, f"not a JSON value: {error}")
    except RecursionError:
        return BadRow(number, "not a mention: nested too deeply")
    if not isinstance(value, dict):
        return BadRow(number, f"expected a JSON object, got {type(value).__name__}")
    try:
        return mention_row(value, number)
    except InputError as error:
        return BadRow(number, f"field {error.field!r}: {error.message}")


def mention_row(value: dict[str, Any], number: int) -> MentionRow:
    """Read the fields of one line; null stands for a field that is not there.

    Raises:
        InputError: a field is wrong; it is named.
    """
    given = {name: value[name] for name in (*_TEXT_FIELDS, "id") if value.get(name) is not None}
    mention_id = given.pop("id", number)
    if isinstance(mention_id, bool) or not isinstance(mention_id, str | int):
        raise InputError("id", f"must be text or an integer, got {mention_id!r}")
    check_text("id", str(mention_id))
    if "mention" not in given:
        raise InputError("mention", "is missing")
    mention = Mention(**given)
    if not mention.mention.strip():
        raise InputError("mention", "must not be empty")
    labels = {name: value.get(name) for name in ("title", "entity_id")}
    for name, label in labels.items():
        if label is not None:
            check_text(name, label)
    return MentionRow(number, str(mention_id), mention, **labels)
