"""Options for reading sources, shared by the commands that take titles files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from genret.index_builder.command_line import env_option, option_group
from genret.index_builder.memory_budget import DEFAULT_MEMORY_LIMIT, MIB, MemoryBudget
from genret.retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from genret.retrieval.sources.columns import ALIAS_SEPARATOR, ColumnMapping, ColumnType
from genret.retrieval.sources.row_readers import SOURCE_FORMATS, SourceFormat

_F = TypeVar("_F", bound=Callable[..., Any])
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([kmgt]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def byte_size(text: str) -> int:
    """Return a number of bytes, given as 512MiB, 2G or 1073741824; K, M, G and T are powers of 1024.

    Raises:
        click.BadParameter: the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise click.BadParameter(f"expected bytes such as 512MiB, 2G or 1073741824, got {text!r}")
    number, unit = match.groups()
    return int(float(number) * 1024 ** _POWERS[unit.lower()])


def typed_column(text: str) -> tuple[str, ColumnType]:
    """Return column and type of COLUMN=TYPE; the column's name may hold "=".

    Raises:
        click.BadParameter: the text has another form.
    """
    column, _, kind = text.rpartition("=")
    if not column or kind not in tuple(ColumnType):
        kinds = ", ".join(ColumnType)
        raise click.BadParameter(f"expected COLUMN=TYPE with a type of {kinds}, got {text!r}")
    return column, ColumnType(kind)


@dataclass(frozen=True, slots=True)
class SourceFlags:
    """Values of the options."""

    format: SourceFormat
    mapping: ColumnMapping
    aliases: Path | None  # a second file of aliases
    unescape_html: bool
    memory_limit: int  # in bytes


def source_flags(prefix: str) -> Callable[[_F], Callable[..., Any]]:
    """Return a decorator that adds the options to a command, which gets one `SourceFlags` as `flags`.

    `prefix` is that of the environment variables, such as "GENRET_BUILD_".
    """
    return option_group(
        "flags",
        _flags,
        env_option(
            prefix,
            "--format",
            "source_format",
            type=click.Choice(SOURCE_FORMATS),
            default="auto",
            help="tsv: a header with `title`, optionally `entity_id` and `aliases`; further columns "
            "are metadata. jsonl: one object per line. parquet: a table. lines: one title per line. "
            "auto: what each file looks like. All may be compressed with gzip or Zstandard.",
        ),
        env_option(prefix, "--title-column", metavar="COLUMN", default=TITLE, help="Column of titles."),
        env_option(
            prefix,
            "--id-column",
            metavar="COLUMN",
            default=ENTITY_ID,
            help="Column of ids. Without any, an entity's id is its title.",
        ),
        env_option(
            prefix,
            "--aliases-column",
            metavar="COLUMN",
            default=ALIASES,
            help="Column of aliases: text, or a list in JSON Lines and Parquet.",
        ),
        env_option(
            prefix,
            "--alias-separator",
            default=ALIAS_SEPARATOR,
            help="Between the aliases of one cell of text.",
        ),
        env_option(
            prefix,
            "--metadata",
            metavar="COLUMN",
            multiple=True,
            show_default="all further columns",
            help="A column to keep as metadata, which comes back with answers and can be filtered by; "
            "may be given several times.",
        ),
        env_option(prefix, "--no-metadata", is_flag=True, default=False, help="Keep no metadata."),
        env_option(
            prefix,
            "--type",
            "types",
            type=typed_column,
            metavar="COLUMN=TYPE",
            multiple=True,
            show_default="what the values are",
            help="Type of a metadata column: string, int, float or bool; may be given several times. "
            "Rows with other values are bad rows.",
        ),
        env_option(
            prefix,
            "--weight-column",
            metavar="COLUMN",
            default=None,
            show_default="no weights; for an update those of the index",
            help="A column of numbers >= 0 that says how often people mean each entity, such as a "
            "population or page views. It is kept as metadata; where it is empty the weight is 1.",
        ),
        env_option(
            prefix,
            "--aliases",
            "alias_file",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            show_default="none",
            help="A second file of aliases, one a row, with the columns `alias` and `entity_id` or "
            "`title`; it is held in memory.",
        ),
        env_option(
            prefix,
            "--unescape-html",
            is_flag=True,
            default=False,
            help="Resolve HTML entities such as &amp; in titles and aliases.",
        ),
        env_option(
            prefix,
            "--memory-limit",
            type=byte_size,
            metavar="SIZE",
            default=f"{DEFAULT_MEMORY_LIMIT // MIB // 1024}GiB",
            help="Memory to keep to, from 512MiB, which do for millions of titles. The index is "
            "the same whatever the limit.",
        ),
    )


def _flags(
    source_format: SourceFormat,
    title_column: str,
    id_column: str,
    aliases_column: str,
    alias_separator: str,
    metadata: Sequence[str],
    no_metadata: bool,
    types: Sequence[tuple[str, ColumnType]],
    weight_column: str | None,
    alias_file: Path | None,
    unescape_html: bool,
    memory_limit: int,
) -> SourceFlags:
    columns = [column for column, _ in types]
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise click.UsageError(f"--type: column {twice!r} is given more than one type")
    if no_metadata and (metadata or set(columns) - {weight_column}):
        raise click.UsageError("--no-metadata goes without --metadata and --type")
    mapping = ColumnMapping(
        title=title_column,
        entity_id=id_column,
        aliases=aliases_column,
        alias_separator=alias_separator,
        metadata=() if no_metadata else tuple(metadata) or None,
        types=dict(types),
        weight=weight_column,
    )
    MemoryBudget(memory_limit)  # checks the limit
    return SourceFlags(source_format, mapping, alias_file, unescape_html, memory_limit)
