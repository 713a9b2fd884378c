"""Rows of a JSON Lines file: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from retrieval.errors import SourceError
from retrieval.normalize import normalize
from retrieval.rejects import Reason
from retrieval.sources.columns import LEAVE_OUT
from retrieval.sources.opening import BOM, ByteStream
from retrieval.sources.rows import BadRow, RowChunk
from retrieval.sources.text_lines import line_blocks

_HEAD_BYTES = 4 << 20
HEAD_LINES = 10_000


class _BadJsonError(ValueError):
    """What is legal for Python's parser and not for us."""


class JsonLinesReader:
    """Reads objects; see `RowReader`. Its columns are the keys of the first lines.

    Args:
        stream: Nothing of it has been consumed.

    Raises:
        SourceError: not one of the first lines holds an object.
    """

    header_lines = 0

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._keys = _keys(stream)
        self.names = tuple(map(normalize, self._keys))
        self._used: tuple[int, ...] = tuple(range(len(self.names)))
        self._ignore_others = False

    @property
    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk that have been consumed."""
        return self._stream.raw.bytes_read

    @property
    def digest(self) -> str:
        """xxh3_128 of what was read, of a stream that can be read only once."""
        return self._stream.raw.hexdigest

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Say which columns are looked at."""
        self._used = tuple(used)
        self._ignore_others = ignore_others

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines."""
        for first, block in line_blocks(self._stream, skip):
            yield RowChunk(first, [self._row(raw) for raw in block.split(b"\n")], is_text=False)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _row(self, raw: bytes) -> list[object] | BadRow:
        value = parse_object(raw)
        if isinstance(value, BadRow):
            return value
        if not self._ignore_others:
            late = next((key for key in value if key not in self._keys), None)
            if late is not None:
                detail = (
                    f"{late!r} is in none of the first {HEAD_LINES:,} lines, by which the columns are known; "
                    f"give it in the first line, if only as null, or {LEAVE_OUT}"
                )
                return BadRow(Reason.UNKNOWN_FIELD, detail, raw)
        keys = self._keys
        row: list[object] = [None] * len(keys)
        for place in self._used:
            row[place] = value.get(keys[place])
        return row


def parse_object(raw: bytes) -> dict[str, Any] | BadRow:
    """Read one line.

    Returns:
        The object, or why it is none.
    """
    try:
        value = _DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        return BadRow(Reason.BAD_UTF8, f"byte {error.start + 1}", raw)
    except json.JSONDecodeError as error:
        if not raw.strip():
            return BadRow(Reason.BAD_JSON, "an empty line", raw)
        return BadRow(Reason.BAD_JSON, f"{error.msg} at character {error.pos + 1}", raw)
    except _BadJsonError as error:
        return BadRow(Reason.BAD_JSON, str(error), raw)
    except RecursionError:
        return BadRow(Reason.BAD_JSON, "nested too deeply", raw)
    except ValueError:  # Python refuses to read integers of thousands of digits
        return BadRow(Reason.BAD_JSON, "a number of too many digits", raw)
    if not isinstance(value, dict):
        return BadRow(Reason.NOT_AN_OBJECT, f"got {json_kind(value)}", raw)
    return value


def json_kind(value: object) -> str:
    """Return what a JSON value is, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a bool"
    for kind, name in ((int, "a number"), (float, "a number"), (str, "a string"), (dict, "an object")):
        if isinstance(value, kind):
            return name
    return "a list"


def _keys(stream: ByteStream) -> tuple[str, ...]:
    head = stream.peek(_HEAD_BYTES)
    lines = head.removeprefix(BOM).split(b"\n", HEAD_LINES)
    if len(lines) > HEAD_LINES or (len(head) >= _HEAD_BYTES and len(lines) > 1):
        lines.pop()  # what lies behind the head, or a line that is cut off
    keys: dict[str, None] = {}
    bad: BadRow | None = None
    for raw in lines:
        value = parse_object(raw) if raw.strip() else None
        if isinstance(value, BadRow):
            bad = bad or value
        elif value is not None:
            keys.update(dict.fromkeys(value))
    if not keys:
        why = f"; the first that is none: {bad.reason} ({bad.detail})" if bad is not None else ""
        raise SourceError(f"{stream.name}: none of the first lines is a JSON object with fields{why}")
    return tuple(keys)


def _refuse_constant(name: str) -> NoReturn:
    raise _BadJsonError(f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _BadJsonError(f"{text} is beyond the range of a float")
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadJsonError(f"the field {twice!r} is given more than once")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float)
