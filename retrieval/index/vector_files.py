"""The files of vectors of one version: checked like all others, but a damaged one stops nothing else."""

from __future__ import annotations

from pathlib import Path

from retrieval.errors import IndexChecksumError, VectorsMissingError
from retrieval.index.arrow_files import open_mapped
from retrieval.index.layout import VECTOR_FILES
from retrieval.index.manifest import FileEntry, Manifest


class VectorFiles:
    """What of `vectors.faiss` and `embedder.safetensors` a version has, and whether it is sound.

    Attributes:
        problem: What is wrong with the first damaged file, or None.

    Args:
        folder: The version directory.
        manifest: Its manifest.
        verify_digests: Whether digests are compared now, or sizes alone.
    """

    def __init__(self, folder: Path, manifest: Manifest, verify_digests: bool) -> None:
        self._folder = folder
        self._entries = {entry.name: entry for entry in manifest.files if entry.name in VECTOR_FILES}
        self._problems: dict[str, IndexChecksumError] = {}
        for entry in self._entries.values():
            self._check(entry, verify_digests)
        self.problem = next(iter(self._problems.values()), None)

    def path(self, name: str) -> Path:
        """Return where a file lies.

        Args:
            name: One of `VECTOR_FILES`.

        Raises:
            VectorsMissingError: the version has no such file.
            IndexChecksumError: it differs from the manifest, or has gone since.
        """
        entry = self._entries.get(name)
        if entry is None:
            raise VectorsMissingError(
                f"{self._folder}: this version of the index has no {name}; "
                "vectors are made with: genret update INDEX --vectors METHOD"
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
