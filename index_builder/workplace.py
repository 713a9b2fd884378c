"""The work directory inside an index: one build's shards, under a key of everything that shapes them.

Beside them lies what a model has embedded, under keys of its own: it is of use to any later build.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from index_builder.durable import naming
from index_builder.faults import fault_point
from index_builder.journal import JOURNAL_FILE, Journal
from retrieval.errors import IndexDirectoryError
from retrieval.index.digests import digest_bytes

WORK_DIR = "work"
_VECTORS_DIR = "vectors"
_SPILL_DIR = "spill"

# Changes whenever shards or the journal are written in another way.
_WORK_FORMAT = 1
_SHAPING_LIBRARIES = ("generative-retrieval", "numpy", "pyarrow", "tokenizers")

# Of builds whose input cannot be read twice, so that nobody can go on with them.
_ONCE = "once"


def shaping_libraries() -> dict[str, str]:
    """Return the versions of the libraries that shape what is built."""
    return library_versions(_SHAPING_LIBRARIES)


def library_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of some distributions; "unknown" where one is not installed."""
    return {name: _library_version(name) for name in names}


def work_key(shaping: Mapping[str, Any] | None) -> str:
    """Return the name of a build's folder.

    Args:
        shaping: Everything that decides what the shards hold, as JSON; None for input that can be read only
            once.
    """
    if shaping is None:
        return _ONCE
    document = {"format": _WORK_FORMAT, "libraries": shaping_libraries(), **shaping}
    return digest_bytes(json.dumps(document, sort_keys=True, ensure_ascii=True).encode("ascii"))


def open_journal(root: Path, key: str, resume: bool) -> Journal:
    """Open the journal of a build; the shards of every other one are removed.

    Args:
        root: The work directory; made when missing.
        key: Of this build.
        resume: Whether what an earlier run of it did is taken up.

    Raises:
        OSError: the directory cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        if not resume or (path.name != _VECTORS_DIR and (path.name != key or key == _ONCE)):
            with naming(path):
                shutil.rmtree(path)
    return Journal(root / key)


@contextmanager
def spill_folder(root: Path) -> Iterator[Path]:
    """Yield an empty directory for what a step sets aside; it is removed afterwards."""
    folder = root / _SPILL_DIR
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def vector_work(root: Path) -> Iterator[Path]:
    """Yield the directory for what a model has embedded; it is gone afterwards if nothing is in it.

    Raises:
        OSError: it cannot be made.
    """
    folder = root / _VECTORS_DIR
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        _remove_empty(folder)
        _remove_empty(root)


def remove_vector_work(root: Path) -> None:
    """Remove what a model has embedded, once it is published."""
    shutil.rmtree(root / _VECTORS_DIR, ignore_errors=True)
    _remove_empty(root)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # something lies in it, or it is not there
        folder.rmdir()


@contextmanager
def temporary_work() -> Iterator[Path]:
    """Yield a directory for what a dry run writes; it is removed afterwards.

    Raises:
        IndexDirectoryError: the system's directory for temporary files cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="genret-dry-run-") as place:
            yield Path(place)
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        raise IndexDirectoryError(
            f"{where}: cannot write temporary files: {error.strerror or error}; TMPDIR names another place"
        ) from error


def remove_work(root: Path) -> None:
    """Remove all work; what cannot be removed is left to the next build."""
    shutil.rmtree(root, ignore_errors=True)
    fault_point("work-removed")


def holds_work(root: Path) -> bool:
    """Return whether a build could go on with what lies there."""
    if any((root / _VECTORS_DIR).glob("*")):
        return True
    return any(
        path.parent.name != _ONCE and path.stat().st_size > 0 for path in root.glob(f"*/{JOURNAL_FILE}")
    )


def _library_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
