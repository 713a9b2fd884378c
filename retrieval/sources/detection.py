"""Which format a file has: by its first bytes, with its suffix as a hint, or as the user says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

from retrieval.errors import InputError, SourceError
from retrieval.index.layout import TITLE
from retrieval.normalize import normalize
from retrieval.sources.columns import check_header
from retrieval.sources.delimited import DelimitedReader
from retrieval.sources.json_lines import JsonLinesReader, parse_object
from retrieval.sources.opening import ByteStream
from retrieval.sources.parquet import ParquetReader, is_parquet
from retrieval.sources.rows import BadRow, RowReader
from retrieval.sources.text_lines import first_line

SourceFormat = Literal["auto", "tsv", "jsonl", "parquet", "lines"]
SOURCE_FORMATS: tuple[str, ...] = get_args(SourceFormat)
_COMPRESSION_SUFFIXES = (".gz", ".zst", ".zstd")
_JSON_SUFFIXES = (".jsonl", ".ndjson")


def open_rows(
    path: str | Path, source_format: SourceFormat, header_names: tuple[str, ...] = (TITLE,)
) -> RowReader:
    """Open a file and find out its format and columns.

    Args:
        path: The file; "-" for standard input.
        source_format: "auto" looks at the content.
        header_names: For "auto", a first line is a header if one of its fields is one of these, in any case.

    Raises:
        InputError: there is no such format.
        SourceError: the file cannot be used.
    """
    if source_format not in SOURCE_FORMATS:
        raise InputError("format", f"expected one of {', '.join(SOURCE_FORMATS)}, got {source_format!r}")
    stream = ByteStream(path)
    try:
        if is_parquet(stream):
            if source_format not in ("auto", "parquet"):
                raise SourceError(f"{stream.name}: this is a Parquet file; expected {source_format}")
            return ParquetReader(path, stream)
        if source_format == "parquet" or (source_format == "auto" and inner_suffix(path) == ".parquet"):
            raise SourceError(f"{stream.name}: this is no Parquet file: it does not begin with PAR1")
        first = first_line(stream)
        if source_format == "jsonl" or (source_format == "auto" and _is_json(first, path, stream.name)):
            return JsonLinesReader(stream)
        return _delimited(stream, first, source_format, path, header_names)
    except BaseException:
        stream.close()
        raise


def _is_json(first: bytes, path: str | Path, name: str) -> bool:
    text = first.strip()
    if text.startswith(b"["):
        if inner_suffix(path) in (".json", *_JSON_SUFFIXES):
            raise SourceError(f"{name}: this begins with a JSON list; expected one JSON object per line")
        return False
    if inner_suffix(path) in _JSON_SUFFIXES:
        return True
    if not text.startswith(b"{"):
        return False
    is_object = not isinstance(parse_object(text), BadRow)
    if not is_object and inner_suffix(path) == ".json":
        raise SourceError(f"{name}: line 1 is not one whole JSON object; expected one per line")
    return is_object


def _delimited(
    stream: ByteStream,
    first: bytes,
    source_format: SourceFormat,
    path: str | Path,
    header_names: tuple[str, ...],
) -> DelimitedReader:
    if source_format == "lines":
        return DelimitedReader(stream, (TITLE,), header_lines=0)
    cells = [normalize(cell) for cell in first.decode("utf-8", errors="replace").split("\t")]
    wanted = [normalize(name).casefold() for name in header_names]
    is_header = any(cell.casefold() in wanted for cell in cells)
    if source_format == "auto" and not is_header:
        if len(cells) > 1:
            named = " or ".join(map(repr, header_names))
            raise SourceError(
                f"{stream.name}: line 1 has tabs, but none of its fields is {named}; expected a header, the "
                "names of the columns, above the rows"
            )
        if inner_suffix(path) == ".csv":
            raise SourceError(
                f"{stream.name}: comma-separated files are not read; expected tabs, or --format lines if "
                "every line is one title"
            )
        return DelimitedReader(stream, (TITLE,), header_lines=0)
    return DelimitedReader(stream, check_header(cells, f"{stream.name}, line 1"), header_lines=1)


def inner_suffix(path: str | Path) -> str:
    """Return the suffix that says what is inside, in lower case: ".tsv" of "a.TSV.gz"."""
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _COMPRESSION_SUFFIXES:
        suffix = os.path.splitext(stem)[1]
    return suffix.lower()
