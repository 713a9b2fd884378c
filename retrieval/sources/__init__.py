"""Reads catalogues: TSV, JSON Lines, Parquet and lines of text, plain or compressed, one or several files.

The index builder and training read catalogues with this package, so they agree on what a record is. It must
not know tokens, nor how an index is written.
"""

from genret.retrieval.sources.alias_file import AliasFile, key_hash
from genret.retrieval.sources.columns import (
    ALIAS_SEPARATOR,
    ColumnMapping,
    Columns,
    ColumnType,
    Kinds,
    cast,
    classify,
    fit,
    resolve,
)
from genret.retrieval.sources.records import Position, Record, SourceBatch, numbered_id
from genret.retrieval.sources.row_readers import SOURCE_FORMATS, SourceFormat
from genret.retrieval.sources.source_files import STDIN, digest_file, digest_files
from genret.retrieval.sources.title_source import TitleSource, open_source

__all__ = [
    "ALIAS_SEPARATOR",
    "SOURCE_FORMATS",
    "STDIN",
    "AliasFile",
    "ColumnMapping",
    "ColumnType",
    "Columns",
    "Kinds",
    "Position",
    "Record",
    "SourceBatch",
    "SourceFormat",
    "TitleSource",
    "cast",
    "classify",
    "digest_file",
    "digest_files",
    "fit",
    "key_hash",
    "numbered_id",
    "open_source",
    "resolve",
]
