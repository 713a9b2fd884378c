"""Reads the lines and fields of labelled files; every error is a SourceError with file, line and field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from genret.retrieval.arguments import check_text
from genret.retrieval.errors import InputError, SourceError
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.source_files import ByteStream, line_blocks

_SHOWN = 80


def text_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers from 1, without line ends.

    The file may be compressed with gzip or Zstandard; "-" is standard input. It must not be empty.
    """
    if Path(path).is_dir():
        raise SourceError(f"{path}: this is a directory; expected a file")
    some = False
    with closing(ByteStream(path)) as stream:
        for first, block in line_blocks(stream, 0):
            for number, raw in enumerate(block.split(b"\n"), first):
                if not raw.strip():
                    continue
                some = True
                try:
                    yield number, raw.removesuffix(b"\r").decode()
                except UnicodeDecodeError as error:
                    wrong(path, number, None, "UTF-8", f"byte {error.start + 1} that is none")
    if not some:
        raise SourceError(f"{path}: the file is empty")


def spaced_fields(text: str) -> list[str]:
    """Return the fields between ASCII white space, as trec_eval does: other white space belongs to fields."""
    return [field.decode() for field in text.encode().split()]


def json_objects(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file with the numbers of their lines."""
    for number, line in text_lines(path):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            value = f"{error.msg} at column {error.colno}"
        except ValueError as error:  # a number of thousands of digits
            value = str(error)
        except RecursionError:
            value = "one nested too deeply"
        if not isinstance(value, dict):
            wrong(path, number, None, "a JSON object", value)
        yield number, value


def table_rows(
    path: str | Path, check_header: Callable[[int, list[str]], None]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a file of fields separated by tabs, with the numbers of their lines.

    The first line holds the names of the columns; `check_header` is given its number and them.
    """
    header: list[str] | None = None
    for line, text in text_lines(path):
        fields = text.split("\t")
        if header is None:
            header = [name.strip() for name in fields]
            check_header(line, header)
            continue
        if len(fields) != len(header):
            wrong(path, line, None, f"{len(header)} fields separated by tabs", f"{len(fields)}")
        yield line, dict(zip(header, fields, strict=True))


def text_field(path: str | Path, line: int, value: object, field: str, clean: bool = True) -> str:
    """Return a text that is not empty, after the text policy unless `clean` is false."""
    try:
        check_text(field, value)
    except InputError as error:
        wrong(path, line, field, "text", value if not isinstance(value, str) else error.message)
    text = normalize(str(value)) if clean else str(value)
    if not text.strip():
        wrong(path, line, field, "text that is not empty", value)
    return text


def id_field(path: str | Path, line: int, value: object, field: str, clean: bool = True) -> str:
    """Return an id, text or an integer, as text (see `text_field`)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text_field(path, line, value, field, clean)


def grade_field(path: str | Path, line: int, value: object, field: str) -> int:
    """Return a grade: an integer, or the text of one."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            wrong(path, line, field, "an integer", value)
        value = number
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        wrong(path, line, field, "an integer", value)
    return value


def wrong(path: str | Path, line: int, field: str | None, expected: str, got: object) -> NoReturn:
    """Raise a `SourceError` that says what is wrong with a line."""
    shown = got if isinstance(got, str) and field is None else repr(got)
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "…"
    where = f"{path}, line {line}" + (f", field {field!r}" if field else "")
    raise SourceError(f"{where}: expected {expected}, got {shown}")
