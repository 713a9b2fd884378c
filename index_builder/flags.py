"""Options of the commands that make versions: how sources are read, and which evidence an index gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from genret.index_builder.build_options import (
    DEFAULT_MEMORY_LIMIT,
    MIB,
    SHIPPED,
    BuildOptions,
    EvidenceChange,
    EvidenceOptions,
    VectorBuildOptions,
    VectorChange,
)
from genret.index_builder.command_line import option_group
from genret.index_builder.past_queries import QueryFile
from genret.retrieval.command_options import described_option as option
from genret.retrieval.index.layout import ALIASES, ENTITY_ID, TITLE
from genret.retrieval.index.reader import DESCRIPTION
from genret.retrieval.sources.columns import ALIAS_SEPARATOR, ColumnMapping, ColumnType
from genret.retrieval.sources.remote_files import source_path
from genret.retrieval.sources.row_readers import SOURCE_FORMATS, SourceFormat
from genret.retrieval.vectors.embedder import VectorMethod, check_device_name
from genret.retrieval.vectors.faiss_index import KIND_NAMES
from genret.retrieval.vectors.vector_maker import VectorOptions

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


def row_count(text: str) -> int:
    """Return a number of rows to sample; 0 for 0 and "all". Raises `click.BadParameter` for other text."""
    if text != ALL and not text.isdecimal():
        raise click.BadParameter(f"expected a number of rows such as 10000, or {ALL}, got {text!r}")
    return 0 if text == ALL else int(text)


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


def source_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command, which gets them as `options`: `BuildOptions` without a place."""
    return option_group(
        "options",
        _options,
        option(
            "--format source_format",
            "csv: a header with `title`, optionally `entity_id` and `aliases`; further columns "
            "are metadata; fields may be quoted. tsv: the same with tabs, without quoting. jsonl: one "
            "object per line. parquet: a table. lines: one title per line. auto: what each file looks "
            "like. All may be compressed with gzip or Zstandard.",
            click.Choice(SOURCE_FORMATS),
            "auto",
        ),
        option(
            "--delimiter",
            "Between the fields of CSV files, such as ; or \\t for a tab. With it, --format auto takes "
            "text for CSV.",
            metavar="CHARACTER",
            show_default="what the first lines of each file show, among , ; | and tab",
        ),
        option("--title-column", "Column of titles.", metavar="COLUMN", default=TITLE),
        option(
            "--id-column",
            "Column of ids. Without any, an entity's id is its title.",
            metavar="COLUMN",
            default=ENTITY_ID,
        ),
        option(
            "--aliases-column",
            "Column of aliases: text, or a list in JSON Lines and Parquet.",
            metavar="COLUMN",
            default=ALIASES,
        ),
        option("--alias-separator", "Between the aliases of one cell of text.", default=ALIAS_SEPARATOR),
        option(
            "--metadata",
            "A column to keep as metadata, which comes back with answers and can be filtered by; "
            "may be given several times.",
            metavar="COLUMN",
            multiple=True,
            show_default="all further columns",
        ),
        option("--no-metadata", "Keep no metadata.", is_flag=True),
        option(
            "--type types",
            "Type of a metadata column: string, int, float or bool; may be given several times. "
            "Rows with other values are bad rows.",
            typed_column,
            metavar="COLUMN=TYPE",
            multiple=True,
            show_default="what the values are",
        ),
        option(
            "--weight-column",
            "A column of numbers >= 0 that says how often people mean each entity, such as a "
            "population or page views. It is kept as metadata; where it is empty the weight is 1.",
            metavar="COLUMN",
            show_default="no weights; for an update those of the index",
        ),
        option(
            "--aliases alias_file",
            "A second file of aliases, one a row, with the columns `alias` and `entity_id` or "
            "`title`; it is held in memory.",
            source_path,
            metavar="FILE",
            show_default="none",
        ),
        option("--unescape-html", "Resolve HTML entities such as &amp; in titles and aliases.", is_flag=True),
        option(
            "--memory-limit",
            "Memory to keep to, from 512MiB, which do for millions of titles. The index is "
            "the same whatever the limit.",
            byte_size,
            f"{DEFAULT_MEMORY_LIMIT // MIB // 1024}GiB",
            metavar="SIZE",
        ),
    )(command)


def _options(
    source_format: SourceFormat,
    delimiter: str | None,
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
) -> BuildOptions:
    if delimiter is not None and source_format not in ("auto", "csv"):
        raise click.UsageError(f"--delimiter goes with --format csv or auto, got {source_format}")
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
        delimiter="\t" if delimiter == "\\t" else delimiter,
    )
    return BuildOptions(Path(), source_format, mapping, alias_file, unescape_html, memory_limit=memory_limit)


ALL, NONE = "all", "none"

_METHODS = f"encoder:DIR_OR_ID|sentence-transformers:DIR_OR_ID|{NONE}"
_QUERY_FILE = (
    "a file with the columns `query` and `entity_id` or `title`, and possibly `count` and `split`; "
    "FILE#SPLIT: the lines of one split"
)


def build_evidence_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a build to a command, which gets `_wishes` as `evidence`."""
    evidence = {
        "default": ALL,
        "help": "Index the words and letters of names, of texts and of past queries, by which candidates are "
        f"found and ranked, and fit a ranking to the catalogue; {NONE}: nothing of it.",
    }
    queries = {
        "show_default": "none",
        "help": f"Past queries with the entity that was wanted: {_QUERY_FILE}. May be given several times.",
    }
    method = {
        "default": NONE,
        "help": "Make vectors of titles and aliases, which propose candidates too; needs the extra "
        "`vectors`. encoder: the mean of the states of a Hugging Face encoder.",
    }
    ranking = option(
        "--ranking",
        "Rankings fitted to such a catalogue before, as `genret tune --out` writes them.",
        click.Path(path_type=Path, dir_okay=False),
        show_default="one is fitted to queries made from the catalogue",
    )
    weigh_model = option(
        "--weigh-model",
        "Weigh a model against the evidence, by queries made from the catalogue; a checkpoint "
        f"directory, a hub id or `{SHIPPED}`. Takes minutes, nearly all of them the model's.",
        metavar="DIR_OR_ID",
        show_default="none: a model counts little until `genret tune` weighs it",
    )
    shared = _shared_options(evidence, queries, method)
    return option_group("evidence", _wishes, *shared, ranking, weigh_model)(command)


def update_evidence_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of an update to a command, which gets `_changes` as `evidence`."""
    evidence = {
        "show_default": "evidence that is there is kept in step",
        "help": f"Make evidence by words and letters anew, also for an index without any ({ALL}), or drop "
        f"it ({NONE}).",
    }
    queries = {
        "show_default": "those that are there move with their entities",
        "help": f"Past queries that join those that are there: {_QUERY_FILE}; {NONE}: drop those that are "
        "there. May be given several times.",
    }
    method = {
        "show_default": "vectors that are there are kept in step",
        "help": f"Make new vectors of all entities, or drop those that are there ({NONE}).",
    }
    encoder = option(
        "--encoder",
        "Where the model of the vectors lies that are kept in step.",
        metavar="DIR_OR_ID",
        show_default="where it was",
    )
    shared = _shared_options(evidence, queries, method)
    return option_group("evidence", _changes, *shared, encoder)(command)


def _shared_options(
    evidence: dict[str, Any], queries: dict[str, Any], method: dict[str, Any]
) -> list[Callable[..., Any]]:
    """Return the options that both commands have, in the order of the help."""
    return [
        option("--evidence kinds", type=click.Choice([ALL, NONE]), **evidence),
        option(
            "--evidence-columns",
            "Metadata columns whose texts are evidence, in words, letters and vectors; an empty value: none.",
            metavar="COLUMN,…",
            show_default=f"{DESCRIPTION}, if there is such a column",
        ),
        option("--queries", metavar="FILE[#SPLIT]", multiple=True, **queries),
        option("--vectors method", metavar=_METHODS, **method),
        option(
            "--vector-index",
            "How faiss keeps the vectors; auto: flat for fewer than 100,000, compressed above; "
            "FACTORY: a string for its index factory.",
            metavar=f"{'|'.join(KIND_NAMES)}|FACTORY",
            show_default="auto",
        ),
        option(
            "--vector-sample",
            "Most vectors to train on.",
            click.IntRange(min=1),
            show_default="what the kind needs",
        ),
        option("--vector-device", "Where an encoder runs, such as cuda or auto.", show_default="cpu"),
    ]


def _wishes(
    kinds: str,
    evidence_columns: str | None,
    queries: Sequence[str],
    method: str,
    vector_index: str | None,
    vector_sample: int | None,
    vector_device: str | None,
    ranking: Path | None,
    weigh_model: str | None,
) -> tuple[EvidenceOptions | None, VectorBuildOptions | None]:
    """Return the evidence by words and letters, and the vectors, that a build shall make."""
    columns = _columns(evidence_columns)
    if kinds == NONE:
        needing = {"--queries": queries or None, "--ranking": ranking, "--weigh-model": weigh_model}
        _refuse(needing, f"goes without --evidence {NONE}")
        if method == NONE:
            _refuse({"--evidence-columns": evidence_columns}, f"goes without --evidence {NONE}")
    files = tuple(map(QueryFile.parse, queries))
    wish = None if kinds == NONE else EvidenceOptions(columns, files, ranking, weigh_model)
    return wish, _vector_wish(method, columns, vector_index, vector_sample, vector_device)


def _changes(
    kinds: str | None,
    evidence_columns: str | None,
    queries: Sequence[str],
    method: str | None,
    vector_index: str | None,
    vector_sample: int | None,
    vector_device: str | None,
    encoder: str | None,
) -> tuple[EvidenceChange, VectorChange]:
    """Return the changes to names, texts and past queries, and to vectors, that an update shall make."""
    columns = _columns(evidence_columns)
    if kinds != ALL and method in (None, NONE):
        _refuse({"--evidence-columns": evidence_columns}, f"goes with --evidence {ALL} or --vectors METHOD")
    evidence = EvidenceChange(
        wish=EvidenceOptions(columns) if kinds == ALL else None,
        drop=kinds == NONE,
        queries=tuple(QueryFile.parse(text) for text in queries if text != NONE),
        drop_queries=NONE in queries,
    )
    if method is None:
        given = {"--vector-index": vector_index, "--vector-sample": vector_sample}
        _refuse(given, "goes with --vectors METHOD, which makes new vectors")
        check_device_name(device := "cpu" if vector_device is None else vector_device)
        return evidence, VectorChange(device=device, encoder=encoder)
    wish = _vector_wish(method, columns, vector_index, vector_sample, vector_device)
    return evidence, VectorChange(wish=wish, drop=wish is None, encoder=encoder)


def _vector_wish(
    method: str, columns: tuple[str, ...] | None, index: str | None, sample: int | None, device: str | None
) -> VectorBuildOptions | None:
    if method == NONE:
        given = {"--vector-index": index, "--vector-sample": sample, "--vector-device": device}
        _refuse(given, "goes with --vectors METHOD")
        return None
    kind = "auto" if index is None else index
    chosen = VectorMethod.parse(method)
    check_device_name(device := "cpu" if device is None else device)
    return VectorBuildOptions(chosen, VectorOptions(kind, columns, sample=sample, device=device))


def _refuse(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} {why}")


def _columns(text: str | None) -> tuple[str, ...] | None:
    """Return the named columns; none for an empty text."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if not all(names) or len(set(names)) != len(names):
        raise click.UsageError(f"--evidence-columns: expected different columns, as in a,b, got {text!r}")
    return tuple(names)
