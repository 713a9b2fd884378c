"""Versions with made-up files of vectors, for the tests of what keeps them; faiss reads none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from index_builder.build import BuildSummary
from retrieval.index.digests import digest_bytes
from retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from retrieval.index.manifest import FileEntry, Manifest, VectorsEntry

ENTRY = VectorsEntry(
    method="lexical",
    source="",
    fingerprint="lexical:0",
    columns=(),
    dimensions=8,
    count=5,
    kind="flat",
    factory="IDMap,Flat",
    effort=0,
    sample=0,
    recall=1.0,
    recall_queries=0,
    seed=0,
)
FILES = {VECTORS_FILE: b"vectors that nobody reads", EMBEDDER_FILE: b"an embedder"}


def with_vectors(
    summary: BuildSummary, entry: VectorsEntry | None = ENTRY, files: Mapping[str, bytes] = FILES
) -> Path:
    """Put files of vectors into the version of a build, under a manifest that fits; return its directory."""
    folder = summary.index / "versions" / summary.version
    for name, data in files.items():
        (folder / name).write_bytes(data)
    added = [FileEntry(name, len(data), digest_bytes(data)) for name, data in files.items()]
    listed = sorted((*summary.manifest.files, *added), key=lambda file: file.name)
    return rename(summary.index, folder, replace(summary.manifest, vectors=entry, files=tuple(listed)))


def rename(index: Path, folder: Path, manifest: Manifest) -> Path:
    """Give a version another manifest, and the name that goes with it; make it live."""
    data = manifest.to_bytes()
    (folder / "manifest.json").write_bytes(data)
    renamed = folder.rename(folder.with_name(digest_bytes(data)))
    (index / "CURRENT").write_text(renamed.name + "\n")
    return renamed
