"""Tables of names in files: made once per index, mapped by every process that finds names.

CACHE/names-<index digest>-<version>/names.marisa      folded names
                                    /spellings.marisa  names as they are written
                                    /offsets.npy       key -> its entities
                                    /entities.npy      entity numbers
                                    /written.npy       bits about the spellings
                                    /small.npy, /weight.npy, /start.npy, /part.npy
                                                       evidence for each key
                                    /table.json        sizes and digests of these files
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import marisa_trie
import numpy as np
from filelock import FileLock

from genret.retrieval.errors import SourceError
from genret.retrieval.index.reader import Index
from genret.retrieval.index.small_files import digest_file
from genret.retrieval.linking.finding.name_table import EVIDENCE, NameTable, build_table

_LOG = logging.getLogger(__name__)

_FORMAT = "genret-name-table"
# Folding depends on both, weights on the first, which is raised whenever an older table would differ.
_VERSION = f"2-unicode{unicodedata.unidata_version}"
_TABLE_FILE = "table.json"
_TRIES = ("names", "spellings")
_ARRAYS: dict[str, type[np.generic]] = {
    "offsets": np.int64,
    "entities": np.int32,
    **{name: kind for name, (kind, _) in EVIDENCE.items()},
}
_ATTEMPTS = 10
# No table takes this long to make.
_LEFTOVER_SECONDS = 24 * 3600


class _UnusableTableError(Exception):
    """The cache holds something that is not a table of this index; the text says why."""


def open_table(index: Index, cache_dir: Path) -> NameTable:
    """Return the table of an index, mapped from the cache; it is made where the cache has none.

    Several processes can do this at once: one of them makes the table, the others wait for it. A damaged or
    foreign table is made anew, and logged.

    Raises:
        SourceError: the cache cannot be read or written.
    """
    folder = cache_dir / f"names-{index.digest}-{_VERSION}"
    try:
        table = _read_or_complain(folder, index)
        if table is not None:
            return table
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _lock(cache_dir / f".{folder.name}.lock"):
            return _read_or_complain(folder, index) or _make(folder, index)
    except OSError as error:
        where = error.filename or cache_dir
        raise SourceError(f"table of names: {where}: {error.strerror or error}") from error


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    """Hold a lock while a table is made, so that it is made once; where there are no locks, do without."""
    lock = FileLock(file)
    try:
        lock.acquire()
    except NotImplementedError:
        _LOG.warning("table of names: %s cannot be locked; other processes may make the table, too", file)
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, index: Index) -> NameTable:
    for leftover in folder.parent.glob(f".{folder.name}-*"):  # of processes that were killed
        if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(made, build_table(index), index.digest)
        for _ in range(_ATTEMPTS):
            try:
                made.rename(folder)
            except OSError:
                if not os.path.lexists(folder):
                    raise
                # What cannot be used, or the table of a process that did not see the lock.
                table = _read_or_complain(folder, index)
                if table is not None:
                    return table
                _remove(folder)
            else:
                return _read(folder, index)
        raise SourceError(f"table of names: {folder}: other processes keep replacing it")
    except _UnusableTableError as error:
        raise SourceError(f"table of names: {folder}: was written and cannot be read: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove the content of a table's place; processes that have mapped it keep it."""
    if folder.is_dir() and not folder.is_symlink():
        removed = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.rename(removed)
        shutil.rmtree(removed)
    else:
        folder.unlink(missing_ok=True)


def _write(folder: Path, table: NameTable, digest: str) -> None:
    for name in _TRIES:
        getattr(table, name).save(str(folder / f"{name}.marisa"))
    for name in _ARRAYS:
        np.save(folder / f"{name}.npy", getattr(table, name), allow_pickle=False)
    files = {
        file.name: {"bytes": file.stat().st_size, "digest": digest_file(file)}
        for file in sorted(folder.iterdir())
    }
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "index_digest": digest,
        "max_chars": table.max_chars,
        "first_marks": table.first_marks,
        "files": files,
    }
    with (folder / _TABLE_FILE).open("w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _read_or_complain(folder: Path, index: Index) -> NameTable | None:
    """Return a table, or None where there is none that can be used."""
    try:
        return _read(folder, index)
    except FileNotFoundError:
        if os.path.lexists(folder):
            _LOG.warning("table of names: %s is incomplete and is made anew", folder)
        return None
    except NotADirectoryError:
        _LOG.warning("table of names: %s is no folder and is made anew", folder)
        return None
    except _UnusableTableError as error:
        _LOG.warning("table of names: %s is made anew: %s", folder, error)
        return None


def _read(folder: Path, index: Index) -> NameTable:
    try:
        document = json.loads((folder / _TABLE_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise _UnusableTableError(f"{_TABLE_FILE} is not valid JSON: {error}") from error
    _check(folder, document, index.digest)
    tries = {}
    for name in _TRIES:
        tries[name] = marisa_trie.Trie()
        try:
            tries[name].mmap(str(folder / f"{name}.marisa"))
        except RuntimeError as error:
            raise _UnusableTableError(f"{name}.marisa cannot be opened: {error}") from error
    arrays = {name: _map_array(folder / f"{name}.npy", dtype) for name, dtype in _ARRAYS.items()}
    num_names = len(tries["names"])
    if len(arrays["offsets"]) != num_names + 1 or any(len(arrays[name]) != num_names for name in EVIDENCE):
        raise _UnusableTableError(f"expected arrays for {num_names} names")
    return NameTable(**tries, **arrays, max_chars=document["max_chars"], first_marks=document["first_marks"])


def _check(folder: Path, document: Any, index_digest: str) -> None:
    """Compare table.json with the table asked for and with the files beside it."""
    wanted = {"format": _FORMAT, "version": _VERSION, "index_digest": index_digest}
    got = {name: document.get(name) for name in wanted} if isinstance(document, dict) else document
    if got != wanted:
        raise _UnusableTableError(f"expected {wanted}, got {got}")
    names = [f"{name}.marisa" for name in _TRIES] + [f"{name}.npy" for name in _ARRAYS]
    files = document.get("files")
    is_whole = (
        isinstance(document.get("max_chars"), int)
        and isinstance(document.get("first_marks"), str)
        and isinstance(files, dict)
    )
    if not is_whole or sorted(files) != sorted(names):
        raise _UnusableTableError(f"{_TABLE_FILE} is incomplete")
    for name in names:
        file = folder / name
        expected = files[name]
        found = {"bytes": file.stat().st_size, "digest": digest_file(file)}
        if found != expected:
            raise _UnusableTableError(f"{name}: expected {expected}, got {found}")


def _map_array(file: Path, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except ValueError as error:  # an array of nothing cannot be mapped
        if file.stat().st_size > 256:
            raise _UnusableTableError(f"{file.name} cannot be opened: {error}") from error
        array = np.load(file, allow_pickle=False)
    if array.dtype != dtype or array.ndim != 1:
        raise _UnusableTableError(f"{file.name}: expected one row of {np.dtype(dtype)}, got {array.dtype}")
    # A memmap takes thrice as long to read a number from.
    plain: np.ndarray[Any, Any] = array.view(np.ndarray)
    return plain
