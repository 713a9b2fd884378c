"""Stages and publishes versions, and keeps the work directory inside an index.

A version becomes live in one atomic step, or not at all. The work directory holds the shards of one build,
spills, and texts embedded by a model under their own keys, for any later build.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from genret.index_builder.faults import fault_point
from genret.retrieval.durable import sync, write_synced
from genret.retrieval.errors import GenretError, IndexDirectoryError
from genret.retrieval.index.layout import CURRENT_FILE, MANIFEST_FILE, VERSIONS_DIR, WORK_DIR
from genret.retrieval.index.manifest import Manifest
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_bytes
from genret.retrieval.index.versions import list_versions
from genret.retrieval.interruption import uninterrupted

VECTORS_DIR = "vectors"
COPIES_DIR = "copies"  # of remote sources and of results of queries
_SPILL_DIR = "spill"

_SHAPING_LIBRARIES = ("generative-retrieval", "numpy", "pyarrow", "tokenizers")
# The shards of a build lie in a folder of their own. Input that can be read only once makes one that no other
# build continues with.
JOURNAL_FILE = "journal.jsonl"
ONCE = "once"
_STAGING_DIR = "staging"
_REMOVED_DIR = "staging.removed"
_LOCK_FILE = ".lock"


@contextmanager
def staging(index: Path) -> Iterator[Path]:
    """Yield an empty staging directory inside the index directory, under the index's build lock.

    Leftovers of a killed build are removed first; the kernel freed its lock. The directory is gone
    afterwards, published or not. Shards that a build can continue with stay in the work directory, also in an
    index without any version.

    Raises:
        IndexDirectoryError: another build is running, `index` is not an index directory, or it cannot be
            written.
    """
    check_place(index)
    fresh = not index.exists() or (_is_unpublished(index) and any(index.iterdir()))
    try:
        index.mkdir(parents=True, exist_ok=True)
        with (index / _LOCK_FILE).open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise IndexDirectoryError(f"{index}: another build of this index is running") from None
            fault_point("locked")
            folder = index / _STAGING_DIR
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(index / _REMOVED_DIR, ignore_errors=True)
            try:
                folder.mkdir()
                yield folder
            finally:
                with uninterrupted():
                    _tidy(index, folder, fresh)
    except OSError as error:
        where = error.filename2 or error.filename or index  # filename2: the target of a rename
        raise IndexDirectoryError(f"{where}: cannot write the index: {error.strerror or error}") from error


def publish(index: Path, folder: Path, manifest: Manifest) -> str:
    """Make a staged version live: manifest, fsync, rename, then replace CURRENT. Return its id.

    An intact version with this id is used again.
    """
    data = manifest.to_bytes()
    version = digest_bytes(data)
    write_synced(folder / MANIFEST_FILE, data)
    fault_point("manifest-written")
    for staged in (*(p for p in folder.rglob("*") if p.is_dir()), folder):
        sync(staged)
    fault_point("staging-synced")
    versions = index / VERSIONS_DIR
    versions.mkdir(exist_ok=True)
    target = versions / version
    if target.exists() and not _is_intact(target):
        damaged = index / _REMOVED_DIR
        target.rename(damaged)
        folder.rename(target)
        shutil.rmtree(damaged, ignore_errors=True)
    elif not target.exists():
        folder.rename(target)
    os.utime(target)  # the order of publication
    sync(versions)
    sync(index)  # the name `versions` itself: CURRENT must not come before it
    fault_point("version-renamed")
    point_to(index, version)
    return version


def point_to(index: Path, version: str) -> None:
    """Make a version of the index the live one."""
    pointer = index / (CURRENT_FILE + ".new")
    write_synced(pointer, f"{version}\n".encode("ascii"))
    fault_point("pointer-written")
    pointer.replace(index / CURRENT_FILE)
    sync(index)
    fault_point("pointer-replaced")


def prune(index: Path, live: str, keep: int, before: str | None) -> None:
    """Remove all versions but the live one and `keep` others, the most recently published ones.

    The previously live version `before` counts as the latest of them, even if it is old and was brought back
    by a rollback. A reader of an old version keeps its mapping. A version is renamed before it is removed, so
    that a half removed one is never taken for a version.
    """
    fault_point("pruning")
    removed = index / _REMOVED_DIR
    superseded = [other for other in list_versions(index) if other != live]
    superseded.sort(key=lambda other: other != before)  # stable: the others keep their order
    for other in superseded[keep:]:
        (index / VERSIONS_DIR / other).rename(removed)
        shutil.rmtree(removed)


def check_place(index: Path) -> None:
    """Raise `IndexDirectoryError` if what is there is neither an index directory nor an empty one."""
    if index.exists() and not index.is_dir():
        raise IndexDirectoryError(f"{index}: is a file; expected an index directory or nothing")
    if not _is_unpublished(index):
        return
    ours = {VERSIONS_DIR, _STAGING_DIR, _REMOVED_DIR, WORK_DIR, _LOCK_FILE, CURRENT_FILE + ".new"}
    foreign = sorted(entry.name for entry in index.iterdir() if entry.name not in ours)
    if foreign:
        raise IndexDirectoryError(
            f"{index}: is a directory with other files in it ({', '.join(foreign[:3])}); "
            "expected an index, an empty directory or nothing"
        )


def _is_unpublished(index: Path) -> bool:
    return index.is_dir() and not (index / CURRENT_FILE).exists()


def _tidy(index: Path, folder: Path, fresh: bool) -> None:
    """Remove what no later build can use."""
    shutil.rmtree(folder, ignore_errors=True)
    work = index / WORK_DIR
    if holds_work(work):
        return
    shutil.rmtree(work, ignore_errors=True)
    if fresh and _is_unpublished(index):
        shutil.rmtree(index, ignore_errors=True)


def _is_intact(folder: Path) -> bool:
    try:
        with Index.open(folder) as index:
            return not index.evidence_problems
    except GenretError:
        return False


def library_versions(names: Sequence[str] = _SHAPING_LIBRARIES) -> dict[str, str]:
    """Return the versions of some distributions, by default those that decide about the files of a build.

    It is "unknown" where one is not installed.
    """
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # a checkout that is not installed
            versions[name] = "unknown"
    return versions


@contextmanager
def spill_folder(root: Path) -> Iterator[Path]:
    """Yield an empty directory for spills; it is removed afterwards."""
    folder = root / _SPILL_DIR
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def vector_work(root: Path) -> Iterator[Path]:
    """Yield the directory for embedded texts; it is removed afterwards if it is empty.

    Raises:
        OSError: it cannot be made.
    """
    folder = root / VECTORS_DIR
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        _remove_empty(folder)
        _remove_empty(root)


def remove_vector_work(root: Path) -> None:
    """Remove the embedded texts, once they are published."""
    shutil.rmtree(root / VECTORS_DIR, ignore_errors=True)
    _remove_empty(root)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # not empty, or missing
        folder.rmdir()


@contextmanager
def temporary_work() -> Iterator[Path]:
    """Yield a directory for the files of a dry run; it is removed afterwards.

    Raises:
        IndexDirectoryError: the system's temporary directory cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="genret-dry-run-") as place:
            yield Path(place)
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        raise IndexDirectoryError(
            f"{where}: cannot write temporary files: {error.strerror or error}; TMPDIR names another place"
        ) from error


def remove_work(root: Path, keeps_copies: bool = False) -> None:
    """Remove all work, or all but copies of remote sources; leftovers wait for the next build."""
    for path in [*root.glob("*")] if keeps_copies and (root / COPIES_DIR).exists() else [root]:
        if path.name != COPIES_DIR:
            shutil.rmtree(path, ignore_errors=True)
    fault_point("work-removed")


def holds_work(root: Path) -> bool:
    """Return whether a build could continue with the work directory."""
    if any((root / VECTORS_DIR).glob("*")) or any((root / COPIES_DIR).glob("*/*")):
        return True
    return any(
        path.parent.name != ONCE and path.stat().st_size > 0 for path in root.glob(f"*/{JOURNAL_FILE}")
    )
