"""Renders descriptions of indexes: a table for people, tab-separated lines for pipes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from service.client.reply import IndexInfo


def loaded_at(index: IndexInfo) -> str:
    """Return when an index was loaded, in UTC to the second; nothing where that is unknown."""
    if index.loaded_at is None:
        return ""
    return datetime.fromtimestamp(int(index.loaded_at), UTC).isoformat().replace("+00:00", "Z")


def vectors_text(index: IndexInfo) -> str:
    """Return an index's vectors in words; nothing where it has none."""
    vectors = index.vectors
    if vectors is None:
        return ""
    recall = "" if vectors.recall is None else f", recall {vectors.recall:.3f}"
    return (
        f"{vectors.method}, {vectors.count:,} of {vectors.dimensions} dimensions, {vectors.kind}, "
        f"{vectors.bytes / 2**20:,.1f} MiB{recall}"
    )


def evidence_text(index: IndexInfo) -> str:
    """Return the kinds of evidence with their counts, a line for each; nothing where there are none."""
    return "\n".join(
        f"{one.kind}: cannot be used: {one.problem}"
        if one.problem
        else f"{one.kind}: {one.count:,}, {one.bytes / 2**20:,.1f} MiB"
        for one in index.evidence
    )


def ranking_text(index: IndexInfo) -> str:
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


def as_line(index: IndexInfo) -> str:
    """Return one line for one index."""
    cells = (
        index.name,
        index.version,
        str(index.num_entities),
        str(index.num_rows),
        index.model,
        index.device,
        loaded_at(index),
        "default" if index.is_default else "",
        _kinds(index),
    )
    return "\t".join(cells)


def _kinds(index: IndexInfo) -> str:
    """Return the kinds of evidence, those that cannot be used behind a minus sign."""
    return ", ".join(f"-{one.kind}" if one.problem else one.kind for one in index.evidence)


def as_table(indexes: Sequence[IndexInfo]) -> RenderableType:
    """Return a rich table with a row per index."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("Index", "Version", "Entities", "Surface forms", "Evidence", "Model", "Device", "Loaded"):
        is_number = name in ("Entities", "Surface forms")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for index in indexes:
        cells = (
            index.name + (" (default)" if index.is_default else ""),
            index.version,
            f"{index.num_entities:,}",
            f"{index.num_rows:,}",
            _kinds(index),
            index.model,
            index.device,
            loaded_at(index),
        )
        table.add_row(*(Text(cell) for cell in cells))  # Text, so that brackets are not read as markup
    return table


def as_details(index: IndexInfo) -> RenderableType:
    """Return a rich table with all facts of one index."""
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    rows = {
        "Index": index.name + (" (default)" if index.is_default else ""),
        "Version": index.version,
        "Digest": index.digest,
        "Entities": f"{index.num_entities:,}",
        "Surface forms": f"{index.num_rows:,}",
        "Longest form": f"{index.max_title_tokens} tokens",
        "Columns": ", ".join(f"{name} ({kind})" for name, kind in index.columns) or "none",
        "Evidence": evidence_text(index) or "none",
        "Vectors": vectors_text(index) or "none",
        "Ranking": ranking_text(index) or "none",
        "Model": index.model,
        "Device": index.device,
        "Loaded": loaded_at(index) or "unknown",
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table
