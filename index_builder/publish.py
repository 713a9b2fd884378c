"""Staging and publication: a version becomes live in one atomic step, or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.errors import GenretError, IndexDirectoryError
from retrieval.index.digests import digest_bytes
from retrieval.index.layout import CURRENT_FILE, MANIFEST_FILE, VERSIONS_DIR
from retrieval.index.manifest import Manifest
from retrieval.index.reader import Index
from retrieval.index.versions import list_versions

_STAGING_DIR = "staging"
_LOCK_FILE = ".lock"


@contextmanager
def staging(index: Path) -> Iterator[Path]:
    """Yield an empty staging directory inside the index directory, under the index's build lock.

    What an earlier, killed build left behind is removed first. The directory is gone afterwards,
    published or not; the kernel frees the lock of a killed process.

    Raises:
        IndexDirectoryError: another build is running, or `index` is something else than an index directory.
    """
    _refuse_foreign(index)
    fresh = not index.exists()
    try:
        index.mkdir(parents=True, exist_ok=True)
        with (index / _LOCK_FILE).open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise IndexDirectoryError(f"{index}: another build of this index is running") from None
            folder = index / _STAGING_DIR
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                if fresh and not (index / CURRENT_FILE).exists():
                    shutil.rmtree(index, ignore_errors=True)
    except OSError as error:
        where = error.filename or index
        raise IndexDirectoryError(f"{where}: cannot write the index: {error.strerror or error}") from error


def publish(index: Path, folder: Path, manifest: Manifest) -> str:
    """Make a staged version live: manifest, fsync, rename, then replace CURRENT.

    Returns:
        The version's id. A version that is already there and intact is used again.
    """
    data = manifest.to_bytes()
    version = digest_bytes(data)
    _write_synced(folder / MANIFEST_FILE, data)
    for staged in (*(p for p in folder.rglob("*") if p.is_dir()), folder):
        _sync_directory(staged)
    versions = index / VERSIONS_DIR
    versions.mkdir(exist_ok=True)
    target = versions / version
    if target.exists() and not _is_intact(target):
        damaged = folder.with_name(_STAGING_DIR + ".damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        target.rename(damaged)
        folder.rename(target)
        shutil.rmtree(damaged, ignore_errors=True)
    elif not target.exists():
        folder.rename(target)
    os.utime(target)  # the order of publication
    _sync_directory(versions)
    pointer = index / (CURRENT_FILE + ".new")
    _write_synced(pointer, f"{version}\n".encode("ascii"))
    pointer.replace(index / CURRENT_FILE)
    _sync_directory(index)
    return version


def prune(index: Path, live: str, keep: int) -> None:
    """Remove all but the live and the `keep` most recently published other versions.

    A reader that has an old version open keeps its mapping.
    """
    superseded = [version for version in list_versions(index) if version != live]
    for version in superseded[keep:]:
        shutil.rmtree(index / VERSIONS_DIR / version, ignore_errors=True)


def _refuse_foreign(index: Path) -> None:
    if index.exists() and not index.is_dir():
        raise IndexDirectoryError(f"{index}: is a file; expected an index directory or nothing")
    if not index.is_dir() or (index / CURRENT_FILE).exists():
        return
    ours = {VERSIONS_DIR, _STAGING_DIR, _LOCK_FILE, CURRENT_FILE + ".new"}
    foreign = sorted(entry.name for entry in index.iterdir() if entry.name not in ours)
    if foreign:
        raise IndexDirectoryError(
            f"{index}: is a directory with other files in it ({', '.join(foreign[:3])}); "
            "expected an index, an empty directory or nothing"
        )


def _is_intact(folder: Path) -> bool:
    try:
        Index.open(folder).close()
    except GenretError:
        return False
    return True


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
