"""Publishing a version of an index that differs from the live one in its ranking alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from index_builder.durable import write_synced
from index_builder.evidence import copy_version
from index_builder.publish import prune, publish, staging
from retrieval.errors import IndexDirectoryError
from retrieval.index.digests import digest_bytes
from retrieval.index.layout import RANKING_FILE
from retrieval.index.manifest import FileEntry, HistoryEntry, extend_history
from retrieval.index.reader import Index
from retrieval.sources import digest_files


def publish_rankings(
    index: Path,
    parent: str,
    rankings: bytes,
    files: Sequence[Path],
    options: Mapping[str, Any],
    num_queries: int,
    keep_versions: int,
) -> str:
    """Publish the live version with other rankings; `genret rollback` takes it back.

    Args:
        index: The index directory.
        parent: Id of the version that the rankings were fitted to.
        rankings: Content of their file.
        files: What they were fitted to.
        options: What shaped them.
        num_queries: How many queries they were fitted to.
        keep_versions: Superseded versions to keep.

    Returns:
        The id of the version now live.

    Raises:
        IndexDirectoryError: another version is live by now, another build is running, or the index is
            damaged or cannot be written. The live version is untouched.
        SourceError: a file cannot be read any more.
    """
    sources = digest_files(files)
    with staging(index) as folder, Index.open(index) as live:
        if live.version != parent:
            raise IndexDirectoryError(
                f"{index}: was changed meanwhile: the ranking was fitted to version {parent}, and "
                f"{live.version} is live now; tune it again"
            )
        manifest = copy_version(live, folder, with_fields=True, with_vectors=True)
        write_synced(folder / RANKING_FILE, rankings)
        entry = FileEntry(RANKING_FILE, len(rankings), digest_bytes(rankings))
        step = HistoryEntry("tune", parent, sources, options, num_queries, 0, 0, 0, 0, 0)
        manifest = replace(
            manifest,
            files=tuple(sorted((*manifest.files, entry), key=lambda file: file.name)),
            history=extend_history(manifest.history, step),
        )
        version = publish(index, folder, manifest)
        prune(index, version, keep_versions, before=parent)
    return version
