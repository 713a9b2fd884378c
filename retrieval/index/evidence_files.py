"""The files of evidence of one version: checked like all others, but a damaged one stops nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from retrieval.errors import EvidenceMissingError, IndexChecksumError
from retrieval.index.arrow_files import open_mapped
from retrieval.index.layout import EVIDENCE_FILES, VECTOR_FILES
from retrieval.index.manifest import FileEntry, Manifest


class EvidenceFiles:
    """What of `EVIDENCE_FILES` a version has, and whether each is sound.

    Args:
        folder: The version directory.
        manifest: Its manifest.
        verify_digests: Whether digests are compared now, or sizes alone.
    """

    def __init__(self, folder: Path, manifest: Manifest, verify_digests: bool) -> None:
        self._folder = folder
        self._entries = {entry.name: entry for entry in manifest.files if entry.name in EVIDENCE_FILES}
        self._problems: dict[str, IndexChecksumError] = {}
        for entry in self._entries.values():
            self._check(entry, verify_digests)

    @property
    def problems(self) -> Mapping[str, IndexChecksumError]:
        """What is wrong with each damaged file, by its name."""
        return self._problems

    def read(self, name: str) -> pa.Buffer:
        """Map a file; arguments and errors are those of `path`."""
        self.path(name)
        return open_mapped(self._folder, self._entries[name], verify_digest=False)

    def path(self, name: str) -> Path:
        """Return where a file lies.

        Args:
            name: One of `EVIDENCE_FILES`.

        Raises:
            EvidenceMissingError: the version has no such file.
            IndexChecksumError: it differs from the manifest, or has gone since.
        """
        entry = self._entries.get(name)
        if entry is None:
            flags = "--vectors METHOD" if name in VECTOR_FILES else "--evidence all"
            raise EvidenceMissingError(
                f"{self._folder}: this version of the index has no {name}; evidence is added with: genret "
                f"update INDEX {flags}"
            )
        if name not in self._problems:
            self._check(entry, verify_digest=False)  # a publication may have removed the version meanwhile
        if name in self._problems:
            raise self._problems[name]
        return self._folder / name

    def _check(self, entry: FileEntry, verify_digest: bool) -> None:
        try:
            open_mapped(self._folder, entry, verify_digest)
        except IndexChecksumError as error:
            self._problems[entry.name] = error
