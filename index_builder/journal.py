"""Finished shards, one JSON line each: what a build that was cut short has done already.

A line is written after its shard lies safely on the disk, so what the journal names is complete. A line that
was being written when the power went is no line.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from index_builder.durable import naming, sync_directory
from index_builder.faults import fault_point
from index_builder.shard_layout import NUMBERS_FILE, TEXTS_FILE, ShardShape
from retrieval.index.digests import digest_file
from retrieval.index.manifest import FileEntry
from retrieval.normalize import NormalizationReport
from retrieval.rejects import Reject
from retrieval.sources.column_types import Kinds
from retrieval.sources.position import Position

JOURNAL_FILE = "journal.jsonl"
_SHARD_PREFIX = "shard-"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One finished shard, with everything that reading its part of the source has told.

    Attributes:
        shape: Its sizes.
        files: Its files, with their digests.
        position: How far the source has been read with it.
        kinds: What the cells of each metadata column look like.
        normalization: What the text policy did.
        rejects: Bad rows met since the shard before.
    """

    shape: ShardShape
    files: tuple[FileEntry, ...]
    position: Position
    kinds: tuple[Kinds, ...]
    normalization: NormalizationReport
    rejects: tuple[Reject, ...]

    def to_line(self) -> bytes:
        """Return the line of the journal."""
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
        """Read what `to_line` gave.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
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
    """The shards of one build, in the order of the source.

    What lies in the folder is taken up as far as it is intact; anything else in it is removed.

    Args:
        folder: Where the shards and the journal lie; made when missing.

    Raises:
        OSError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / JOURNAL_FILE
        self.entries: list[ShardEntry] = []
        intact_bytes = self._load()
        self.num_resumed = len(self.entries)
        self._remove_others()
        with naming(self._path), self._path.open("ab") as file:
            file.truncate(intact_bytes)
            os.fsync(file.fileno())
        sync_directory(folder)

    def shard_folder(self, number: int) -> Path:
        """Return where a shard lies."""
        return self.folder / f"{_SHARD_PREFIX}{number:05d}"

    def append(self, entry: ShardEntry) -> None:
        """Note a shard whose files have been synced.

        Raises:
            OSError: the disk is full, or worse.
        """
        sync_directory(self.folder)  # the shard's own name
        with naming(self._path), self._path.open("ab") as file:
            begin = file.tell()
            try:
                file.write(entry.to_line())
                file.flush()
            except OSError:
                file.truncate(begin)  # half a line would hide those behind it
                raise
            os.fsync(file.fileno())
        self.entries.append(entry)
        fault_point("shard-journalled")

    def _load(self) -> int:
        """Take up the lines whose shards are intact; return how many bytes they have."""
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
    """Return how many records the shards below a work directory hold, without a look at these."""
    records = 0
    for path in root.glob(f"*/{JOURNAL_FILE}"):
        for line in path.read_bytes().splitlines(keepends=True):
            try:
                records = max(records, ShardEntry.from_line(line).position.records_read)
            except (ValueError, KeyError, TypeError):  # torn
                break
    return records
