"""Reading mentions to link: JSON lines with id, left, mention, right; optionally gzipped."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from retrieval.errors import SourceError
from retrieval.types import Mention

_TEXT_FIELDS = ("left", "mention", "right")


@dataclass(frozen=True, slots=True)
class MentionRow:
    """One line of the input.

    Attributes:
        line: Line number, from 1.
        mention_id: The line's `id` as text; the line number when it has none.
        mention: The mention and its context.
    """

    line: int
    mention_id: str
    mention: Mention


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
        path: A .jsonl or .jsonl.gz file, or "-" for standard input.

    Raises:
        SourceError: the file is missing, a directory, or not readable.
    """
    with _open(path) as lines:
        number = 0
        while True:
            number += 1
            try:
                raw = lines.readline()
            except (OSError, EOFError) as error:  # a broken gzip stream shows only here
                raise SourceError(f"{path}, line {number}: cannot be read: {error}") from error
            if not raw:
                return
            if raw.strip():
                yield _parse(raw, number)


@contextmanager
def _open(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    file = Path(path)
    if file.is_dir():
        raise SourceError(f"{path}: is a directory; expected a .jsonl or .jsonl.gz file")
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
    with stream:
        yield cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if file.suffix == ".gz" else stream


def _parse(raw: bytes, number: int) -> MentionRow | BadRow:
    try:
        value = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(number, f"not valid UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return BadRow(number, f"not a JSON value: {error.msg} at column {error.colno}")
    except RecursionError:
        return BadRow(number, "not a mention: nested too deeply")
    if not isinstance(value, dict):
        return BadRow(number, f"expected a JSON object, got {type(value).__name__}")
    return _mention(value, number)


def _mention(value: dict[str, Any], number: int) -> MentionRow | BadRow:
    texts: dict[str, str] = {}
    for name in _TEXT_FIELDS:
        text = value.get(name, "" if name != "mention" else None)
        if not isinstance(text, str):
            got = "nothing" if text is None else type(text).__name__
            return BadRow(number, f"field {name!r}: expected text, got {got}")
        texts[name] = text
    if not texts["mention"].strip():
        return BadRow(number, "field 'mention' is empty")
    mention_id = value.get("id", number)
    if isinstance(mention_id, bool) or not isinstance(mention_id, str | int):
        return BadRow(number, f"field 'id': expected text or a number, got {mention_id!r}")
    return MentionRow(number, str(mention_id), Mention(**texts))
