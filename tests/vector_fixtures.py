"""Versions with made-up files of vectors, for the tests of what keeps them; faiss reads none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from genret.index_builder.build import BuildSummary
from genret.retrieval.index.layout import EMBEDDER_FILE, VECTORS_FILE
from genret.retrieval.index.manifest import FileEntry, Manifest, VectorsEntry
from genret.retrieval.index.reader import EntityTexts, Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.vectors.embedder import VectorMethod
from genret.retrieval.vectors.vector_maker import VectorOptions

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


def with_file(summary: BuildSummary, folder: Path, name: str, data: bytes) -> Path:
    """Replace a file of the version in a folder, under a manifest that fits; return its new folder."""
    (folder / name).write_bytes(data)
    files = tuple(
        replace(entry, bytes=len(data), xxh3_128=digest_bytes(data)) if entry.name == name else entry
        for entry in summary.manifest.files
    )
    return rename(folder.parents[1], folder, replace(summary.manifest, files=files))


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


def as_format(summary: BuildSummary, version: int) -> Path:
    """Give the version of a build the manifest of an older format; below 3 it has no order of titles."""
    folder = summary.index / "versions" / summary.version
    files = summary.manifest.files
    if version < 3:
        (folder / "title_order.arrow").unlink()
        files = tuple(file for file in files if file.name != "title_order.arrow")
    return rename(summary.index, folder, replace(summary.manifest, format_version=version, files=files))


class FakeVectors:
    """Stands in for what makes vectors: its file lists, line by line, the entity and text of every vector.

    Attributes:
        calls: What was asked for, in order: the arguments by name.
        taken_over: Numbers of the last version's entities, as the last call of `carry_over` got them.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.taken_over: list[int] = []

    def make(
        self, index: Index, method: VectorMethod, options: VectorOptions, folder: Path, **named: Any
    ) -> tuple[VectorsEntry, tuple[str, ...]]:
        self.calls.append({"method": method, "options": options, **named})
        columns = options.columns
        if columns is None:
            columns = ("description",) if index.metadata_types.get("description") == "string" else ()
        named["progress"].phase("training vectors")
        named["progress"].phase("adding vectors")
        entry = replace(ENTRY, method=method.name, source=method.source, columns=columns)
        return self._write(index, entry, folder)

    def carry_over(
        self,
        old: Index,
        new: Index,
        number_of_old: npt.NDArray[np.int64],
        folder: Path,
        device: str,
        **named: Any,
    ) -> tuple[VectorsEntry, tuple[str, ...]]:
        self.calls.append({"device": device, **named})
        assert number_of_old.shape == (new.num_entities,)
        assert number_of_old.dtype == np.int64
        self.taken_over = number_of_old.tolist()
        for number, was in enumerate(self.taken_over):
            if was >= 0:
                assert new.entity(number).entity_id == old.entity(was).entity_id
        assert old.evidence_path(VECTORS_FILE).read_bytes() == listed(old, old.vectors)
        named["progress"].phase("taking vectors over")
        return self._write(new, old.vectors, folder)

    def _write(self, index: Index, entry: VectorsEntry, folder: Path) -> tuple[VectorsEntry, tuple[str, ...]]:
        data = listed(index, entry)
        (folder / VECTORS_FILE).write_bytes(data)
        return replace(entry, count=data.count(b"\n")), (VECTORS_FILE,)


def listed(index: Index, entry: VectorsEntry | None) -> bytes:
    """Return what `FakeVectors` writes for an index."""
    lines = [
        f"{number}\t{text}\n"
        for batch in EntityTexts(index, () if entry is None else entry.columns).batches()
        for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True)
    ]
    return "".join(lines).encode()
