"""Keeps the work directory inside an index: the shards of one build and their journal.

The shards lie under a key of everything that shapes them, so that only the same build continues with them.
The journal has one JSON line per finished shard, written after the shard is safely on disk; a torn last line
is ignored. Texts embedded by a model lie beside the shards under their own keys, for any later build.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from genret.index_builder.faults import fault_point
from genret.index_builder.shards import NUMBERS_FILE, TEXTS_FILE, ShardShape
from genret.retrieval.durable import naming, sync
from genret.retrieval.errors import IndexDirectoryError
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.index.small_files import digest_bytes, digest_file
from genret.retrieval.normalize import NormalizationReport
from genret.retrieval.sources.columns import Kinds
from genret.retrieval.sources.records import Position
from genret.retrieval.sources.rejects import Reject

WORK_DIR = "work"
_VECTORS_DIR = "vectors"
_SPILL_DIR = "spill"

# To be changed whenever the format of shards or the journal changes.
_WORK_FORMAT = 1
_SHAPING_LIBRARIES = ("generative-retrieval", "numpy", "pyarrow", "tokenizers")

# Key of builds whose input cannot be read twice, so that they cannot be resumed.
_ONCE = "once"


def shaping_libraries() -> dict[str, str]:
    """Return the versions of the libraries that decide about the files of a build."""
    return library_versions(_SHAPING_LIBRARIES)


def library_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of some distributions; "unknown" where one is not installed."""
    return {name: _library_version(name) for name in names}


def work_key(shaping: Mapping[str, Any] | None) -> str:
    """Return the name of a build's folder.

    `shaping` is everything that decides about the shards, as JSON; None for input that can be read only once.
    """
    if shaping is None:
        return _ONCE
    document = {"format": _WORK_FORMAT, "libraries": shaping_libraries(), **shaping}
    return digest_bytes(json.dumps(document, sort_keys=True, ensure_ascii=True).encode("ascii"))


def open_journal(root: Path, key: str, resume: bool) -> Journal:
    """Open the journal of a build in the work directory; the shards of all other builds are removed.

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
    folder = root / _VECTORS_DIR
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        _remove_empty(folder)
        _remove_empty(root)


def remove_vector_work(root: Path) -> None:
    """Remove the embedded texts, once they are published."""
    shutil.rmtree(root / _VECTORS_DIR, ignore_errors=True)
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


def remove_work(root: Path) -> None:
    """Remove all work; leftovers wait for the next build."""
    shutil.rmtree(root, ignore_errors=True)
    fault_point("work-removed")


def holds_work(root: Path) -> bool:
    """Return whether a build could continue with the work directory."""
    if any((root / _VECTORS_DIR).glob("*")):
        return True
    return any(
        path.parent.name != _ONCE and path.stat().st_size > 0 for path in root.glob(f"*/{JOURNAL_FILE}")
    )


def _library_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"


JOURNAL_FILE = "journal.jsonl"
_SHARD_PREFIX = "shard-"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One finished shard, with everything learned while its part of the source was read."""

    shape: ShardShape
    files: tuple[FileEntry, ...]
    position: Position  # end of this part in the source
    kinds: tuple[Kinds, ...]  # kinds of cells in each metadata column
    normalization: NormalizationReport
    rejects: tuple[Reject, ...]  # bad rows since the shard before

    def to_line(self) -> bytes:
        """Return its line of the journal."""
        document = {
            "shape": self.shape.to_json(),
            "files": [asdict(file) for file in self.files],
            "position": self.position.to_json(),
            "kinds": [int(kinds) for kinds in self.kinds],
            "normalization": self.normalization.to_json(),
            "rejects": [reject.to_json() for reject in self.rejects],
        }
        return json.dumps(document, ensure_ascii=True).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ShardEntry:
        """Read a line of `to_line`. Raises `ValueError` or `KeyError` or `TypeError` if it is malformed."""
        document: Mapping[str, Any] = json.loads(line)
        return cls(
            shape=ShardShape.from_json(document["shape"]),
            files=tuple(FileEntry(**file) for file in document["files"]),
            position=Position.from_json(document["position"]),
            kinds=tuple(Kinds(kinds) for kinds in document["kinds"]),
            normalization=NormalizationReport.from_json(document["normalization"]),
            rejects=tuple(Reject.from_json(reject) for reject in document["rejects"]),
        )


class Journal:
    """The finished shards of one build, in the order of the source.

    Intact shards in the folder are taken up; anything else in it is removed.

    Raises:
        OSError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / JOURNAL_FILE
        self.entries: list[ShardEntry] = []
        intact_bytes = self._load()
        self._remove_others()
        with naming(self._path), self._path.open("ab") as file:
            file.truncate(intact_bytes)
            os.fsync(file.fileno())
        sync(folder)

    def shard_folder(self, number: int) -> Path:
        """Return the folder of a shard."""
        return self.folder / f"{_SHARD_PREFIX}{number:05d}"

    def append(self, entry: ShardEntry) -> None:
        """Add a shard whose files have been synced. Raises `OSError` if the journal cannot be written."""
        sync(self.folder)  # makes the shard's name durable
        with naming(self._path), self._path.open("ab") as file:
            begin = file.tell()
            try:
                file.write(entry.to_line())
                file.flush()
            except OSError:
                file.truncate(begin)  # half a line would hide those after it
                raise
            os.fsync(file.fileno())
        self.entries.append(entry)
        fault_point("shard-journalled")

    def _load(self) -> int:
        """Load the lines whose shards are intact; return their total bytes."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        intact = 0
        for line in data.splitlines(keepends=True):
            try:
                entry = ShardEntry.from_line(line)
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n") or not self._is_intact(len(self.entries), entry):
                break
            self.entries.append(entry)
            intact += len(line)
        return intact

    def _is_intact(self, number: int, entry: ShardEntry) -> bool:
        folder = self.shard_folder(number)
        try:
            found = describe_files(folder)
        except FileNotFoundError:
            return False
        return found == entry.files

    def _remove_others(self) -> None:
        known = {JOURNAL_FILE, *(self.shard_folder(number).name for number in range(len(self.entries)))}
        for path in self.folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def describe_files(folder: Path) -> tuple[FileEntry, ...]:
    """Return size and digest of a shard's files."""
    return tuple(
        FileEntry(name, (folder / name).stat().st_size, digest_file(folder / name))
        for name in (NUMBERS_FILE, TEXTS_FILE)
    )


def kept_records(root: Path) -> int:
    """Return the number of records in the shards of a work directory, by its journals alone."""
    records = 0
    for path in root.glob(f"*/{JOURNAL_FILE}"):
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                records = max(records, ShardEntry.from_line(line).position.records_read)
            except (ValueError, KeyError, TypeError):  # torn
                break
    return records
