"""The output folder of a run: who may write it, what is done in it, and what is left over."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from retrieval.durable import replace_file, writing
from retrieval.linking.documents.shard import Shard
from retrieval.linking.output.layout import (
    LOCK_FILE,
    PARTS_SUFFIX,
    RECORDS_DIR,
    RUN_FILE,
    SUMMARY_FILE,
    is_ours,
    is_record,
    part_name,
    record_file,
)
from retrieval.linking.output.record import ShardRecord, read_record
from retrieval.linking.run_error import LinkingRunError


class OutputFolder:
    """The folder of one run.

    Args:
        path: The folder; made by `lock`, below a folder that is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: FileLock | None = None
        self._made = False

    def lock(self) -> None:
        """Make the folder if it is missing, and keep other runs out of it as long as this process lives.

        Raises:
            LinkingRunError: another run has it.
            SourceError: it cannot be made or written.
        """
        with writing(self.path):
            self._made = not self.path.exists()
            self.path.mkdir(exist_ok=True)
            # Of the system, not a mere file: it goes with the process, however that ends.
            lock = FileLock(self.path / LOCK_FILE)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise LinkingRunError(
                    f"{self.path}: another run is writing there; wait until it ends, or choose another --out"
                ) from None
        self._lock = lock

    def release(self) -> None:
        """Let others in. Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def foreign_names(self) -> list[str]:
        """Return names in the folder that no run wrote, sorted; none where there is no folder.

        Raises:
            SourceError: the folder cannot be read.
        """
        try:
            names = [path.name for path in self.path.iterdir()]
            records = (
                [path.name for path in (self.path / RECORDS_DIR).iterdir()] if RECORDS_DIR in names else []
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LinkingRunError(f"{self.path}: cannot be read: {error.strerror}") from error
        foreign = [name for name in names if not is_ours(name)]
        return sorted(foreign + [f"{RECORDS_DIR}/{name}" for name in records if not is_record(name)])

    def identity(self) -> dict[str, Any] | None:
        """Return what the run in the folder is about; None: there is no run in it.

        Raises:
            LinkingRunError: that cannot be read.
        """
        return self._document(RUN_FILE)

    def summary(self) -> dict[str, Any] | None:
        """Return the totals of a complete run; None: the run is not complete.

        Raises:
            LinkingRunError: they cannot be read.
        """
        return self._document(SUMMARY_FILE)

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write down what the run is about.

        Raises:
            SourceError: it cannot be written.
        """
        with writing(self.path):
            (self.path / RECORDS_DIR).mkdir(exist_ok=True)
        self._write(RUN_FILE, identity)

    def complete(self, summary: Mapping[str, Any]) -> None:
        """Write the totals, which say that the run is complete.

        Raises:
            SourceError: they cannot be written.
        """
        self._write(SUMMARY_FILE, summary)

    def finished(self, key: str, shards: tuple[Shard, ...], output_format: str) -> dict[int, ShardRecord]:
        """Return the records of shards that need not be done again, by number."""
        done = {}
        for shard in shards:
            record = read_record(record_file(self.path, shard.number))
            if record is not None and self._holds(record, key, shard, output_format):
                done[shard.number] = record
        return done

    def tidy(self, done: Mapping[int, ShardRecord]) -> None:
        """Remove parts and records of shards that are not done, totals, and files left half written.

        Raises:
            SourceError: one cannot be removed.
        """
        self._keep(done, {RUN_FILE, RECORDS_DIR, LOCK_FILE})

    def _keep(self, done: Mapping[int, ShardRecord], others: Set[str]) -> None:
        kept = others | {record.part for record in done.values()}
        records = {record_file(self.path, number).name for number in done}
        # Records go first: none may be there without its part.
        for path in self._own_files(RECORDS_DIR):
            if path.name not in records:
                _remove(path)
        for path in self._own_files():
            if path.name not in kept:
                _remove(path)

    def clear(self) -> None:
        """Remove everything that a run wrote, its totals last; never anything else.

        The totals know the one file that was made of the parts: a run that is killed here finds it whole.

        Raises:
            SourceError: a file cannot be removed.
        """
        self._keep({}, {RUN_FILE, RECORDS_DIR, LOCK_FILE, SUMMARY_FILE})
        with writing(self.path):
            if (self.path / RECORDS_DIR).is_dir() and not any((self.path / RECORDS_DIR).iterdir()):
                (self.path / RECORDS_DIR).rmdir()
        _remove(self.path / RUN_FILE)
        _remove(self.path / SUMMARY_FILE)

    def remove_if_unused(self) -> None:
        """Where the folder holds nothing but the lock of this process, remove that, and what `lock` made."""
        if self._lock is None:
            return
        with writing(self.path):
            try:
                names = {path.name for path in self.path.iterdir()}
            except FileNotFoundError:  # somebody has removed it already
                return
        if names != {LOCK_FILE}:
            return
        _remove(self.path / LOCK_FILE)
        if self._made or self.path.name.endswith(PARTS_SUFFIX):
            with writing(self.path):
                self.path.rmdir()

    def _holds(self, record: ShardRecord, key: str, shard: Shard, output_format: str) -> bool:
        expected = (shard.number, key, shard.digest, part_name(shard.number, output_format))
        if (record.shard, record.key, record.digest, record.part) != expected:
            return False
        part = self.path / record.part
        return part.is_file() and part.stat().st_size == record.num_bytes

    def _own_files(self, below: str = "") -> Iterator[Path]:
        folder = self.path / below
        known = is_record if below else is_ours
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if known(path.name) and path.name != RECORDS_DIR:
                yield path

    def _document(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        try:
            document = json.loads(file.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise LinkingRunError(f"{file}: cannot be read: {error}") from error
        if not isinstance(document, dict):
            raise LinkingRunError(f"{file}: expected a JSON object, got {type(document).__name__}")
        return document

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, ensure_ascii=True, indent=1, sort_keys=True)
        replace_file(self.path / name, text.encode("ascii") + b"\n")


def _remove(path: Path) -> None:
    with writing(path):
        path.unlink(missing_ok=True)
