"""The vectors of a version that is being made: of its staged files, or taken over from the version before."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from index_builder.durable import sync_file
from index_builder.faults import fault_point
from index_builder.memory import MemoryBudget
from index_builder.progress import BuildProgress
from index_builder.vector_wish import VectorChange, VectorWish, check_method
from index_builder.workplace import library_versions, vector_work
from retrieval.errors import IndexChecksumError, IndexDirectoryError, InputError, SourceError
from retrieval.index.digests import digest_file
from retrieval.index.layout import VECTOR_FILES
from retrieval.index.manifest import FileEntry, Manifest, VectorsEntry
from retrieval.index.reader import Index
from retrieval.vectors.carrying import carry_over_vectors
from retrieval.vectors.embedder import VectorMethod, absolute_place
from retrieval.vectors.making import VectorOptions, make_vectors

_LIBRARIES = ("faiss-cpu",)


class VectorMaker:
    """Puts vectors beside the files of a version that is not published yet.

    Args:
        folder: The staging directory; its other files are complete.
        root: Work directory of the index; what a model has embedded is kept there until the publication.
        memory_limit: Bytes of memory the process may take.
        threads: Of what makes vectors; None: all cores that the process may use.
        progress: Told about every step.
    """

    def __init__(
        self, folder: Path, root: Path, memory_limit: int, threads: int | None, progress: BuildProgress
    ) -> None:
        self._folder = folder
        self._root = root
        self._memory = MemoryBudget(memory_limit).free_bytes
        self._threads = threads or len(os.sched_getaffinity(0))
        self._progress = _Watched(progress)

    def make(self, manifest: Manifest, wish: VectorWish) -> Manifest:
        """Make vectors of the staged entities.

        Args:
            manifest: Of the staged files.
            wish: Which vectors.

        Returns:
            The manifest with the vectors.

        Raises:
            InputError: a column has no texts, or faiss does not know the kind of index.
            ModelError: the encoder cannot be loaded.
            MissingExtraError: a library is not installed.
            IndexDirectoryError: a file cannot be written.
            OSError: the disk is full, or worse.
        """
        with (
            _unwritable(),
            Index.open_unpublished(self._folder, manifest) as index,
            vector_work(self._root) as work,
        ):
            entry, names = make_vectors(
                index,
                wish.method.placed(),
                wish.options,
                self._folder,
                memory_bytes=self._memory,
                threads=self._threads,
                work=work,
                progress=self._progress,
            )
        return self._added(manifest, entry, names)

    def carry_over(
        self,
        manifest: Manifest,
        old: Index,
        number_of_old: npt.NDArray[np.int64],
        change: VectorChange,
    ) -> Manifest:
        """Take the vectors of the version before over; new texts get new ones.

        Args:
            manifest: Of the staged files.
            old: The version before, which has vectors.
            number_of_old: For every staged entity the number it had there, or -1. Shape: (num_entities,).
            change: Where an encoder lies and runs now.

        Returns:
            The manifest with the vectors.

        Raises:
            IndexDirectoryError: the vectors that are there cannot be used, or a file cannot be written.
            InputError, ModelError, MissingExtraError, OSError: as for `make`.
        """
        with (
            _unwritable(),
            Index.open_unpublished(self._folder, manifest) as new,
            vector_work(self._root) as work,
        ):
            entry, names = carry_over_vectors(
                old,
                new,
                number_of_old,
                self._folder,
                VectorOptions(device=change.device),
                memory_bytes=self._memory,
                encoder=None if change.encoder is None else absolute_place(change.encoder),
                threads=self._threads,
                work=work,
                progress=self._progress,
            )
        return self._added(manifest, entry, names)

    def _added(self, manifest: Manifest, entry: VectorsEntry, names: Sequence[str]) -> Manifest:
        for name in names:
            sync_file(self._folder / name)
        fault_point("vectors-written")
        made = [described(self._folder, name) for name in names]
        files = sorted((*manifest.files, *made), key=lambda file: file.name)
        built_with = {**manifest.built_with, **library_versions(_LIBRARIES)}
        return replace(manifest, vectors=entry, files=tuple(files), built_with=built_with)


def described(folder: Path, name: str) -> FileEntry:
    """Return size and digest of a staged file."""
    return FileEntry(name, (folder / name).stat().st_size, digest_file(folder / name))


def copy_version(index: Index, folder: Path, with_vectors: bool) -> Manifest:
    """Copy the files of a version into the staging directory.

    Args:
        index: The version.
        folder: The staging directory.
        with_vectors: Whether its vectors are copied too.

    Returns:
        The manifest of the copies; its history is that of the version.

    Raises:
        OSError: the disk is full, or worse.
    """
    files = [entry for entry in index.manifest.files if with_vectors or entry.name not in VECTOR_FILES]
    for entry in files:
        target = folder / entry.name
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(index.path / entry.name, target)
        sync_file(target)
    if with_vectors:
        return index.manifest
    built_with = {
        name: version for name, version in index.manifest.built_with.items() if name not in _LIBRARIES
    }
    return replace(index.manifest, vectors=None, files=tuple(files), built_with=built_with)


def check_keeping(index: Index, encoder: str | None, device: str) -> None:
    """Refuse an update of an index whose vectors cannot be kept in step; the text says what can be done.

    Args:
        index: The live version.
        encoder: Where the model of its vectors lies now; None: where it lay.
        device: Where that model runs.

    Raises:
        InputError: a library, the model or the device is missing, or this version has no such method.
        IndexChecksumError: the vectors are damaged.
    """
    vectors, problem = index.vectors, index.vectors_problem
    if vectors is None:
        if encoder is not None:
            raise InputError("encoder", f"{index.path}: the index has no vectors, which a model would make")
        return
    ways = "--vectors METHOD makes new ones, --vectors none drops them"
    if problem is not None:
        cause = str(problem).removeprefix(f"{problem.file}: ")
        raise IndexChecksumError(problem.file, f"{cause}; an update keeps vectors in step: {ways}")
    if vectors.method == "lexical":
        raise InputError(
            "vectors",
            f"{index.path}: made by the method lexical, which this version no longer has: {ways}",
        )
    if find_spec("faiss") is None:
        raise InputError(
            "vectors",
            f"{index.path} has vectors, which an update keeps in step with the extra `vectors` (pip install "
            "'generative-retrieval[vectors]'); without it, --vectors none drops them",
        )
    try:
        check_method(VectorMethod(vectors.method, encoder or vectors.source), device)
    except InputError as error:
        if error.field != "vectors":
            raise
        raise InputError(
            "encoder", f"{error.message}; --encoder says where the model of the vectors lies now, {ways}"
        ) from error


@contextmanager
def _unwritable() -> Iterator[None]:
    """Let files that cannot be written be an error of the index and not of a source."""
    try:
        yield
    except SourceError as error:
        raise IndexDirectoryError(str(error)) from error


class _Watched:
    """Passes everything on, and lets tests end the making of vectors at any step of it."""

    def __init__(self, progress: BuildProgress) -> None:
        self._progress = progress

    def phase(self, name: str, total: int | None = None) -> None:
        """Pass it on."""
        fault_point("vectors-making")
        self._progress.phase(name, total)

    def advance(self, done: int, note: str) -> None:
        """Pass it on."""
        self._progress.advance(done, note)

    def note(self, text: str) -> None:
        """Pass it on."""
        self._progress.note(text)
