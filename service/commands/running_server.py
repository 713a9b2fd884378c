"""`genret health`, `genret indexes` and `genret reload`: readiness and indexes of a running server."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from genret.retrieval.command_options import GroupedCommand, shown_option
from genret.service.commands.connection import Connection, connection_options, json_option
from genret.service.commands.render import FOLDED, RIGHT, show, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from genret.service.client import IndexInfo


@click.command("indexes", cls=GroupedCommand)
@click.argument("name", required=False)
@json_option("index")
@connection_options(timeout_s=10.0)
def indexes_command(name: str | None, as_json_lines: bool, connection: Connection) -> None:
    """List the indexes of a running server, the default one first, or describe the one called NAME.

    In a pipe an index is one line: name, version, entities, surface forms, model, device, when it was loaded,
    "default" for the default one, and its kinds of evidence, a minus sign before those that cannot be used,
    between tabs.
    """
    with connection.open() as client:
        found = client.list_indexes() if name is None else [client.get_index(name)]
    if as_json_lines:
        for index in found:
            click.echo(json.dumps(_document(index), ensure_ascii=False))
    elif sys.stdout.isatty():
        show(_as_table(found) if name is None else _as_details(found[0]))
    else:
        for index in found:
            click.echo(_as_line(index))


@click.command("reload", cls=GroupedCommand)
@click.argument("name", default="", required=False)
@shown_option("--force", is_flag=True, help="Load it also when it is the version that is served.")
@json_option("index")
@connection_options(timeout_s=600.0, waits_for="the new version to be loaded")
def reload_command(name: str, force: bool, as_json_lines: bool, connection: Connection) -> None:
    """Have a running server take up the live version of the index called NAME, or of its default one.

    Requests that run keep the version they began with. When the new version cannot be used, the one that is
    served stays. A server that asks for tokens asks for one with the scope admin.
    """
    with connection.open() as client:
        reply = client.reload_index(name, force=force)
    if as_json_lines:
        document = {**dataclasses.asdict(reply), "index": _document(reply.index)}
        click.echo(json.dumps(document, ensure_ascii=False))
    elif reply.reloaded:
        click.echo(
            f"index {reply.index.name!r}: version {reply.previous_version} -> {reply.index.version}; "
            f"opened in {reply.open_ms / 1000:.2f} s, warmed up in {reply.warm_up_ms / 1000:.2f} s"
        )
    else:
        click.echo(f"index {reply.index.name!r}: version {reply.index.version} is served already")
    for one in reply.index.evidence:
        if one.problem:
            click.echo(f"evidence {one.kind}: cannot be used: {one.problem}", err=True)


@click.command("health", cls=GroupedCommand)
@shown_option("--live", is_flag=True, help="Ask whether the server lives, not whether it is ready.")
@shown_option(
    "--wait",
    type=float,
    help="Wait so many seconds for it to be ready, also when it has not been started yet.",
    show_default="answer at once",
)
@json_option("server")
@connection_options(timeout_s=5.0)
def health_command(live: bool, wait: float | None, as_json_lines: bool, connection: Connection) -> None:
    """Say whether a server is ready: exit code 0 when it is, 1 when it is not or does not answer."""
    from genret.service.client import LIVENESS, READINESS, CallError

    if wait is not None and live:
        raise click.UsageError("--wait: a server is waited for until it is ready; leave --live out")
    if wait is not None and not (math.isfinite(wait) and wait > 0):
        raise click.UsageError(f"--wait: must be a positive number of seconds, got {wait}")
    with connection.open() as client:
        if wait is not None:
            try:
                client.health(timeout_s=min(wait, 5.0))
            except CallError as error:  # which may last, as with TLS; "refused" goes when the server starts
                if sys.stderr.isatty() or "refused" not in str(error):
                    click.echo(f"waiting, at most {wait:g} s: {error}", err=True)
            try:
                client.wait_until_ready(wait)
            except CallError:
                client.health()  # fails with the reason where none answers
                raise
        status = client.health(LIVENESS if live else READINESS)
    told = {"address": connection.address, "asked": "live" if live else "ready", "status": status}
    click.echo(json.dumps(told) if as_json_lines else status)
    if status != "SERVING":
        raise click.exceptions.Exit(1)


def _document(index: IndexInfo) -> dict[str, Any]:
    own = {"loaded_at": _loaded_at(index) or None, "columns": dict(index.columns)}
    return dataclasses.asdict(index) | own


def _loaded_at(index: IndexInfo) -> str:
    """Return when an index was loaded, in UTC to the second; nothing where that is unknown."""
    if index.loaded_at is None:
        return ""
    return datetime.fromtimestamp(int(index.loaded_at), UTC).isoformat().replace("+00:00", "Z")


def _vectors_text(index: IndexInfo) -> str:
    """Return an index's vectors in words; nothing where it has none."""
    vectors = index.vectors
    if vectors is None:
        return ""
    recall = "" if vectors.recall is None else f", recall {vectors.recall:.3f}"
    return (
        f"{vectors.method}, {vectors.count:,} of {vectors.dimensions} dimensions, {vectors.kind}, "
        f"{vectors.bytes / 2**20:,.1f} MiB{recall}"
    )


def _evidence_text(index: IndexInfo) -> str:
    """Return the kinds of evidence with their counts, a line for each; nothing where there are none."""
    return "\n".join(
        f"{one.kind}: cannot be used: {one.problem}"
        if one.problem
        else f"{one.kind}: {one.count:,}, {one.bytes / 2**20:,.1f} MiB"
        for one in index.evidence
    )


def _ranking_text(index: IndexInfo) -> str:
    """Return the origin of the ranking in words; nothing where there is no evidence to weigh."""
    ranking = index.ranking
    if ranking is None:
        return ""
    if ranking.problem:
        return f"the library's own: {ranking.problem}"
    if not ranking.fitted:
        return "the library's own, fitted to other catalogues"
    model = "with this model" if ranking.fitted_with_model else "without this model"
    return f"fitted {model} on {ranking.num_queries:,} queries: {ranking.queries}"


def _as_line(index: IndexInfo) -> str:
    counts = (str(index.num_entities), str(index.num_rows))
    default = "default" if index.is_default else ""
    cells = (index.name, index.version, *counts, index.model, index.device, _loaded_at(index), default)
    return "\t".join((*cells, _kinds(index)))


def _kinds(index: IndexInfo) -> str:
    """Return the kinds of evidence, those that cannot be used behind a minus sign."""
    return ", ".join(f"-{one.kind}" if one.problem else one.kind for one in index.evidence)


def _as_table(indexes: Sequence[IndexInfo]) -> RenderableType:
    rows = [{**_facts(index), "Evidence": _kinds(index), "Loaded": _loaded_at(index)} for index in indexes]
    names = ("Index", "Version", "Entities", "Surface forms", "Evidence", "Model", "Device", "Loaded")
    numbers = ("Entities", "Surface forms")
    columns = [(name, FOLDED | RIGHT if name in numbers else FOLDED) for name in names]
    spare = [names.index(name) for name in ("Version", "Loaded", "Device")]
    return table(columns, [[row[name] for name in names] for row in rows], spare)


def _as_details(index: IndexInfo) -> RenderableType:
    rows = [*_facts(index).items()]
    return table([("", {"style": "bold"}), ("", FOLDED)], rows, show_header=False)


def _facts(index: IndexInfo) -> dict[str, str]:
    return {
        "Index": index.name + (" (default)" if index.is_default else ""),
        "Version": index.version,
        "Digest": index.digest,
        "Entities": f"{index.num_entities:,}",
        "Surface forms": f"{index.num_rows:,}",
        "Longest form": f"{index.max_title_tokens} tokens",
        "Columns": ", ".join(f"{name} ({kind})" for name, kind in index.columns) or "none",
        "Evidence": _evidence_text(index) or "none",
        "Vectors": _vectors_text(index) or "none",
        "Ranking": _ranking_text(index) or "none",
        "Model": index.model,
        "Device": index.device,
        "Loaded": _loaded_at(index) or "unknown",
    }
