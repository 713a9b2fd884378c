"""Makes an earlier version of an index live again: `roll_back` and the command `genret rollback`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click

from genret.index_builder.command_line import answered
from genret.index_builder.publish import point_to, staging
from genret.retrieval.command_options import described_option
from genret.retrieval.errors import IndexDirectoryError, InputError
from genret.retrieval.index.layout import VERSIONS_DIR
from genret.retrieval.index.reader import Index, read_manifest
from genret.retrieval.index.versions import list_versions, live_or_none, live_version
from genret.retrieval.interruption import sigterm_as_interrupt
from genret.retrieval.tables import Shown


@dataclass(frozen=True, slots=True, repr=False)
class Rollback(Shown):
    """A finished rollback; `entities` is the number of entities now live."""

    index: Path
    before: str
    version: str
    entities: int

    _told = ("index", "before", "version", "entities")


def roll_back(index: Path, to: str | None = None) -> Rollback:
    """Make an earlier version live, once all its files have been checked against their digests.

    `to` is its id, or the beginning of one; by default it is the version that an update started from, if
    still there, else the one published before. The version that was live stays, and so does the order:
    rolling back twice goes back by two.

    Raises:
        IndexNotFoundError: there is no index.
        IndexDirectoryError: the version is damaged, or another build is running. The live version stays.
        InputError: there is no such version; the message lists the existing ones.
    """
    live_version(index)
    with staging(index):
        before = live_version(index)
        version = _choose(index, before, to)
        with Index.open(index / VERSIONS_DIR / version) as opened:
            for problem in opened.evidence_problems.values():
                raise problem
            entities = opened.num_entities
        if version != before:
            point_to(index, version)
    return Rollback(index, before, version, entities)


def _choose(index: Path, live: str, to: str | None) -> str:
    present = list_versions(index)
    if to is not None:
        found = [version for version in present if version.startswith(to)] if to else []
        if len(found) == 1:
            return found[0]
        why = "several versions begin with it" if found else "there is no such version"
        raise InputError("to", f"{to!r}: {why}; {_listing(index, present, live)}")
    parent = _parent(index / VERSIONS_DIR / live)
    if parent in present:
        return parent
    older = present[present.index(live) + 1 :] if live in present else present
    if not older:
        raise InputError("to", f"none was published before the live one; {_listing(index, present, live)}")
    return older[0]


def _parent(folder: Path) -> str:
    """Return the version that another one started from, or "" if none is known."""
    with suppress(IndexDirectoryError):  # a damaged version is a good reason for going back
        return read_manifest(folder)[0].history[-1].parent
    return ""


def _listing(index: Path, present: list[str], live: str) -> str:
    marked = [version + (" (live)" if version == live else "") for version in present]
    return f"{index} has, the latest first: {', '.join(marked) or 'none'}"


@click.command("rollback", context_settings={"show_default": True})
@click.argument("index", type=click.Path(path_type=Path))
@described_option(
    "--to",
    "Id of the version, or its first digits; `genret inspect` lists them.",
    metavar="VERSION",
    show_default="the one before the live one",
)
@described_option("--json as_json", "As JSON.", is_flag=True)
def rollback_command(index: Path, to: str | None, as_json: bool) -> None:
    """Make an earlier version of an INDEX live again, once its files have been checked.

    The version that is live now is kept, so that `--to` can return to it.
    """
    # Errors are left to the group: a missing earlier version is no wrong usage.
    with answered(index, live_or_none(index), dry_run=False, debug=True), sigterm_as_interrupt():
        try:
            done = roll_back(index, to)
        except InputError as error:
            raise click.ClickException(f"--to: {error.message}") from error
    if as_json:
        click.echo(json.dumps(done.to_dict(), ensure_ascii=False))
    elif done.version == done.before:
        click.echo(f"{index}: version {done.version} is live already")
    else:
        click.echo(
            f"{index}: version {done.version} is live, {done.entities:,} entities; before: {done.before}"
        )
