"""Publishing a version of an index that differs from the live one in its ranking and its prior alone."""

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
from retrieval.index.layout import PRIOR_FILE, RANKING_FILE
from retrieval.index.manifest import FileEntry, HistoryEntry, extend_history
from retrieval.index.reader import Index
from retrieval.sources import digest_files


def publish_rankings(
    index: Path,
    parent: str,
    made: Mapping[str, bytes],
    files: Sequence[Path],
    options: Mapping[str, Any],
    num_queries: int,
    keep_versions: int,
) -> str:
    """Publish the live version with other rankings or priors; `genret rollback` takes it back.

    Args:
        index: The index directory.
        parent: Id of the version that they were made for.
        made: Content of `RANKING_FILE`, of `PRIOR_FILE` or both; what is left out is taken over.
        files: What the rankings were fitted to.
        options: What shaped them.
        num_queries: How many queries the rankings were fitted to.
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
                f"{index}: was changed meanwhile: this was made for version {parent}, and "
                f"{live.version} is live now; tune it again"
            )
        manifest = copy_version(live, folder, with_fields=True, with_vectors=True)
        contents = {**_kept(live), **made}
        for name, content in contents.items():
            write_synced(folder / name, content)
        entries = [FileEntry(name, len(data), digest_bytes(data)) for name, data in contents.items()]
        step = HistoryEntry("tune", parent, sources, options, num_queries, 0, 0, 0, 0, 0)
        manifest = replace(
            manifest,
            files=tuple(sorted((*manifest.files, *entries), key=lambda file: file.name)),
            history=extend_history(manifest.history, step),
        )
        version = publish(index, folder, manifest)
        prune(index, version, keep_versions, before=parent)
    return version


def _kept(live: Index) -> dict[str, bytes]:
    """Return the rankings and the priors of a version, those that are damaged left out."""
    listed = [name for name in (RANKING_FILE, PRIOR_FILE) if live.manifest.file(name) is not None]
    sound = [name for name in listed if name not in live.evidence_problems]
    return {name: live.evidence_path(name).read_bytes() for name in sound}
