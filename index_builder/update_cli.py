"""The command `genret update`."""

from __future__ import annotations

from pathlib import Path

import click

from genret.index_builder.build_options import BuildOptions
from genret.index_builder.command_line import (
    answered,
    bad_row_options,
    env_option,
    keep_versions_option,
    rejects_file,
    shown_progress,
    talk_options,
    tell,
    tokenizer_of,
    use_threads,
)
from genret.index_builder.evidence_flags import EvidenceChanges, update_evidence_flags
from genret.index_builder.source_flags import SourceFlags, source_flags
from genret.index_builder.update import UpdateRequest, UpdateSummary, update_index
from genret.retrieval.index.summary import evidence_facts, evidence_lines
from genret.retrieval.index.versions import live_or_none
from genret.retrieval.interruption import sigterm_as_interrupt
from genret.retrieval.text import TextTokenizer

_ENV = "GENRET_UPDATE_"


@click.command("update", context_settings={"show_default": True, "max_content_width": 100})
@click.argument("index", type=click.Path(path_type=Path, file_okay=False))
@env_option(
    _ENV,
    "--add",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    show_default="none",
    help="A titles file. An entity whose id is there already replaces that one; without a column of ids, "
    "titles are ids. May be given several times.",
)
@env_option(
    _ENV,
    "--remove",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    show_default="none",
    help="A file of ids to remove, one per line. May be given several times.",
)
@env_option(
    _ENV,
    "--remove-id",
    multiple=True,
    metavar="ID",
    show_default="none",
    help="An id to remove. May be given several times.",
)
@env_option(_ENV, "--ignore-missing", is_flag=True, help="Ids to remove that are not there are no bad rows.")
@env_option(
    _ENV,
    "--tokenizer",
    metavar="DIR_OR_ID",
    show_default="that of the default model of the index",
    help="The tokenizer the index was built with. Needed for --add alone.",
)
@source_flags(_ENV)
@update_evidence_flags(_ENV)
@bad_row_options(_ENV, fails="update", place="INDEX")
@keep_versions_option(_ENV)
@env_option(_ENV, "--dry-run", is_flag=True, help="Say what would change, and publish nothing.")
@talk_options(_ENV)
def update_command(
    index: Path,
    add: tuple[Path, ...],
    remove: tuple[Path, ...],
    remove_id: tuple[str, ...],
    ignore_missing: bool,
    tokenizer: str | None,
    flags: SourceFlags,
    evidence: EvidenceChanges,
    max_bad_rows: int,
    rejects: Path | None,
    keep_versions: int,
    dry_run: bool,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    debug: bool,
) -> None:
    """Add, replace and remove entities of an INDEX, or change its evidence, vectors or weights.

    What is there and stays is not tokenised again. The new version replaces the live one in one step, and
    has the files that a build of the same entities would have. `genret rollback` takes it back. Evidence
    that is there is kept in step: past queries move with their entities, and vectors of texts that stay are
    taken over.
    """
    use_threads(threads)
    before = live_or_none(index)
    with (
        answered(index, before, dry_run, debug),
        sigterm_as_interrupt(),
        shown_progress(quiet, "genret update") as progress,
    ):
        request = UpdateRequest(
            add,
            remove,
            remove_id,
            ignore_missing,
            dry_run,
            evidence.vectors,
            flags.mapping.weight,
            evidence.evidence,
        )
        options = BuildOptions(
            out=index,
            format=flags.format,
            mapping=flags.mapping,
            aliases=flags.aliases,
            unescape_html=flags.unescape_html,
            max_bad_rows=max_bad_rows,
            rejects=rejects_file(rejects, index, dry_run),
            keep_versions=keep_versions,
            memory_limit=flags.memory_limit,
            threads=threads,
        )
        loaded = None
        if add:
            loaded = tokenizer_of(index) if tokenizer is None else TextTokenizer.load(tokenizer)
        summary = update_index(request, loaded, options, progress)
    tell(summary, _describe(summary), as_json, quiet)


def _describe(summary: UpdateSummary) -> str:
    changes = summary.changes
    counts = (
        f"{changes.added:,} added, {changes.changed:,} changed, {changes.removed:,} removed; "
        f"{changes.unchanged:,} added ones were there already, {changes.missing:,} to remove were not there"
    )
    if summary.dry_run:
        would = "".join(f"\n  {name} would be {fate}" for name, fate in _fates(summary))
        if summary.weight_column is not None:
            would += f"\n  weights would be those of {summary.weight_column}"
        return f"{summary.index}: dry run, version {summary.version} stays live\n  would be: {counts}{would}"
    if summary.version == summary.parent:
        return f"{summary.index}: no change, version {summary.version} stays live\n  {counts}"
    stored = summary.manifest.counts
    lines = [
        f"{summary.index}: version {summary.version}, before: {summary.parent}",
        f"  {counts}",
        f"  {stored.entities:,} entities, {stored.rows:,} rows, {summary.manifest.num_bytes:,} bytes",
    ]
    if summary.weight_column is not None:
        lines.append(f"  weights: {summary.weight_column}")
    lines += [f"  {name} {fate}" for name, fate in _fates(summary)]
    lines += [f"    {line}" for line in evidence_lines(evidence_facts(summary.manifest))]
    return "\n".join(lines)


def _fates(summary: UpdateSummary) -> list[tuple[str, str]]:
    fates = {"evidence": summary.fates.evidence, "vectors": summary.fates.vectors}
    return [(name, fate) for name, fate in fates.items() if fate != "absent"]
