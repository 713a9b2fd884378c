"""The command `genret update`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from index_builder.cli import answered, shown_progress
from index_builder.config import BuildOptions
from index_builder.source_flags import SourceFlags, source_flags
from index_builder.update import UpdateRequest, UpdateSummary, update_index
from retrieval.defaults import default_model_dir
from retrieval.index.versions import live_or_none
from retrieval.interruption import sigterm_as_interrupt
from retrieval.text import TextTokenizer

_ENV = "GENRET_UPDATE_"


@click.command("update", context_settings={"show_default": True, "max_content_width": 100})
@click.argument("index", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--add",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    envvar=_ENV + "ADD",
    show_envvar=True,
    show_default="none",
    help="A titles file. An entity whose id is there already replaces that one; without a column of ids, "
    "titles are ids. May be given several times.",
)
@click.option(
    "--remove",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    envvar=_ENV + "REMOVE",
    show_envvar=True,
    show_default="none",
    help="A file of ids to remove, one per line. May be given several times.",
)
@click.option(
    "--remove-id",
    multiple=True,
    metavar="ID",
    envvar=_ENV + "REMOVE_ID",
    show_envvar=True,
    show_default="none",
    help="An id to remove. May be given several times.",
)
@click.option(
    "--ignore-missing",
    is_flag=True,
    envvar=_ENV + "IGNORE_MISSING",
    show_envvar=True,
    help="Ids to remove that are not there are no bad rows.",
)
@click.option(
    "--tokenizer",
    metavar="DIR_OR_ID",
    envvar=_ENV + "TOKENIZER",
    show_envvar=True,
    show_default="that of the shipped default model",
    help="The tokenizer the index was built with. Needed for --add alone.",
)
@source_flags(_ENV)
@click.option(
    "--max-bad-rows",
    type=click.IntRange(min=0),
    default=0,
    envvar=_ENV + "MAX_BAD_ROWS",
    show_envvar=True,
    help="Leave out up to this many bad rows; more fail the update.",
)
@click.option(
    "--rejects",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=_ENV + "REJECTS",
    show_envvar=True,
    show_default="INDEX.rejects.tsv",
    help="Where bad rows are written, if there are any; by a dry run, only when given.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(min=0),
    default=2,
    envvar=_ENV + "KEEP_VERSIONS",
    show_envvar=True,
    help="Superseded versions to keep beside the live one.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    envvar=_ENV + "DRY_RUN",
    show_envvar=True,
    help="Say what would change, and publish nothing.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    envvar=_ENV + "THREADS",
    show_envvar=True,
    show_default="all cores",
    help="Threads of the tokenizer.",
)
@click.option(
    "--json", "as_json", is_flag=True, envvar=_ENV + "JSON", show_envvar=True, help="Summary as JSON."
)
@click.option(
    "--quiet", is_flag=True, envvar=_ENV + "QUIET", show_envvar=True, help="No progress and no summary."
)
@click.option(
    "--debug", is_flag=True, envvar=_ENV + "DEBUG", show_envvar=True, help="Show tracebacks of errors."
)
def update_command(
    index: Path,
    add: tuple[Path, ...],
    remove: tuple[Path, ...],
    remove_id: tuple[str, ...],
    ignore_missing: bool,
    tokenizer: str | None,
    flags: SourceFlags,
    max_bad_rows: int,
    rejects: Path | None,
    keep_versions: int,
    dry_run: bool,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Add, replace and remove entities of an INDEX.

    What is there and stays is not tokenised again. The new version replaces the live one in one step, and
    has the files that a build of the same entities would have. `genret rollback` takes it back.
    """
    if threads is not None:  # read once, when the tokenizer first needs its thread pool
        os.environ["RAYON_NUM_THREADS"] = str(threads)
    before = live_or_none(index)
    with (
        answered(index, before, dry_run, debug),
        sigterm_as_interrupt(),
        shown_progress(quiet, "genret update") as progress,
    ):
        request = UpdateRequest(add, remove, remove_id, ignore_missing, dry_run)
        options = BuildOptions(
            out=index,
            format=flags.format,
            mapping=flags.mapping,
            aliases=flags.aliases,
            unescape_html=flags.unescape_html,
            max_bad_rows=max_bad_rows,
            rejects=rejects if dry_run else rejects or index.with_name(index.name + ".rejects.tsv"),
            keep_versions=keep_versions,
            memory_limit=flags.memory_limit,
        )
        loaded = (
            TextTokenizer.load(tokenizer if tokenizer is not None else default_model_dir()) if add else None
        )
        summary = update_index(request, loaded, options, progress)
    if summary.report and not quiet:
        where = "" if summary.rejects_file is None else f"; all of them are in {summary.rejects_file}"
        click.echo(f"{summary.report}\nleft out{where}", err=True)
    if as_json:
        click.echo(json.dumps(summary.to_json(), ensure_ascii=False))
    elif not quiet:
        click.echo(_describe(summary))


def _describe(summary: UpdateSummary) -> str:
    changes = summary.changes
    counts = (
        f"{changes.added:,} added, {changes.changed:,} changed, {changes.removed:,} removed; "
        f"{changes.unchanged:,} added ones were there already, {changes.missing:,} to remove were not there"
    )
    if summary.dry_run:
        return f"{summary.index}: dry run, version {summary.version} stays live\n  would be: {counts}"
    if not changes.any:
        return f"{summary.index}: no change, version {summary.version} stays live\n  {counts}"
    stored = summary.manifest.counts
    return (
        f"{summary.index}: version {summary.version}, before: {summary.parent}\n  {counts}\n"
        f"  {stored.entities:,} entities, {stored.rows:,} rows, {summary.manifest.num_bytes:,} bytes"
    )
