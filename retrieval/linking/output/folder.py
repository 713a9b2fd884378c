"""Manages the output folder of a run: who may write it, which shards are recorded, and what is left over.

    OUT/part-000012.parquet      the rows of shard 12 (or .jsonl)
    OUT/_shards/000012.json      its record, written after the part
    OUT/_run.json                what the run is about: written first
    OUT/_summary.json            totals: there when the run is complete
    OUT/.lock                    held by the run that writes; the system releases it when that process ends
    OUT/.NAME.HOST.PID.tmp       a file that is being written

A record is one small file per shard, so that many machines can write them. Readers of folders of Parquet
(Arrow, DuckDB, Spark) leave out names that begin with "." or "_". Where the output is to be one file, the
folder stands beside it until the parts are merged (`OutputTarget`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from genret.retrieval.durable import replace_file, writing
from genret.retrieval.errors import GenretError, InputError
from genret.retrieval.interruption import uninterrupted
from genret.retrieval.linking.documents.corpus import Shard
from genret.retrieval.linking.run_progress import LinkCounts
from genret.retrieval.normalize import find_surrogate


class OutputFolder:
    """The folder of a run, made by `locked`. A file that cannot be written or removed is a `SourceError`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[OutputFolder]:
        """Make the folder, with those it is in, and keep other runs out until the block or this process ends.

        A folder that holds nothing but the lock is emptied then, and removed if it was made here. A
        LinkingRunError says that another run has it.
        """
        with writing(self.path):
            was_there = self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            # Of the system, not a mere file: it goes with the process, however that ends.
            lock = FileLock(self.path / LOCK_FILE)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise LinkingRunError(
                    f"{self.path}: another run is writing there; wait until it ends, or choose another --out"
                ) from None
        try:
            yield self
        finally:
            with uninterrupted():
                self._remove_if_unused(was_there)
                lock.release()

    def foreign_names(self) -> list[str]:
        """Return names in the folder that no run wrote, sorted; none where there is no folder."""
        try:
            names = [path.name for path in self.path.iterdir()]
            inner = (self.path / RECORDS_DIR).iterdir() if RECORDS_DIR in names else ()
            records = [path.name for path in inner]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LinkingRunError(f"{self.path}: cannot be read: {error.strerror}") from error
        foreign = [name for name in names if not is_ours(name)]
        return sorted(foreign + [f"{RECORDS_DIR}/{name}" for name in records if not is_record(name)])

    def identity(self) -> dict[str, Any] | None:
        """Return the identity of the run in the folder; None: there is no run in it."""
        return self._document(RUN_FILE)

    def summary(self) -> dict[str, Any] | None:
        """Return the totals of a complete run; None: the run is not complete."""
        return self._document(SUMMARY_FILE)

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write the identity of the run."""
        with writing(self.path):
            (self.path / RECORDS_DIR).mkdir(exist_ok=True)
        self._write(RUN_FILE, identity)

    def complete(self, summary: Mapping[str, Any]) -> None:
        """Write the totals, which mark the run as complete."""
        self._write(SUMMARY_FILE, summary)

    def finished(self, key: str, shards: tuple[Shard, ...], output_format: str) -> dict[int, ShardRecord]:
        """Return the records of shards that need not be done again, by number."""
        done = {}
        for shard in shards:
            record = read_record(record_file(self.path, shard.number))
            if record is not None and self._holds(record, key, shard, output_format):
                done[shard.number] = record
        return done

    def tidy(self, done: Mapping[int, ShardRecord], *kept: str) -> None:
        """Remove parts and records of shards that are not done, totals, and files left half written."""
        records = {record_file(self.path, number).name for number in done}
        files = {RUN_FILE, RECORDS_DIR, LOCK_FILE, *kept} | {record.part for record in done.values()}
        # Records go first: none may be there without its part.
        for folder, is_known, left in (
            (self.path / RECORDS_DIR, is_record, records),
            (self.path, is_ours, files),
        ):
            for path in sorted(folder.iterdir()) if folder.is_dir() else []:
                if is_known(path.name) and path.name not in left:
                    _remove(path)

    def clear(self) -> None:
        """Remove everything that a run wrote, its totals last; never anything else.

        The totals name the single file that was made of the parts: a run that is killed here finds it whole.
        """
        self.tidy({}, SUMMARY_FILE)
        with writing(self.path):
            if (self.path / RECORDS_DIR).is_dir() and not any((self.path / RECORDS_DIR).iterdir()):
                (self.path / RECORDS_DIR).rmdir()
        _remove(self.path / RUN_FILE)
        _remove(self.path / SUMMARY_FILE)

    def _remove_if_unused(self, was_there: bool) -> None:
        with writing(self.path), suppress(FileNotFoundError):  # somebody may have removed it already
            if {path.name for path in self.path.iterdir()} == {LOCK_FILE}:
                _remove(self.path / LOCK_FILE)
                if not was_there or self.path.name.endswith(PARTS_SUFFIX):
                    self.path.rmdir()

    def _holds(self, record: ShardRecord, key: str, shard: Shard, output_format: str) -> bool:
        expected = (shard.number, key, shard.digest, part_name(shard.number, output_format))
        if (record.shard, record.key, record.digest, record.part) != expected:
            return False
        part = self.path / record.part
        return part.is_file() and part.stat().st_size == record.num_bytes

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


# A record holds a few counts and complaints; what is longer is no record.
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The record of a finished shard; its presence says that the part file is whole."""

    shard: int  # the shard's number
    key: str  # the run key
    digest: str  # `Shard.digest`
    part: str  # name of the part file in the output folder
    num_bytes: int  # its size
    counts: LinkCounts  # counts of what was linked
    complaints: tuple[str, ...] = ()  # the first bad lines and failed mentions, as text
    seconds: float = 0.0  # wall time
    part_digest: str = ""  # XXH3-128 of the part file
    first_bad: str = ""  # the first line that is no document, with the reason

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardRecord:
        """Read the fields from an object; one without them, or with other counts, is a `ValueError`.

        `OutputFolder.finished` compares the others with the shard and its part.
        """
        try:
            counts = LinkCounts.from_json(asdict(LinkCounts(**value["counts"])))
            read = {**value, "counts": counts, "complaints": tuple(value["complaints"])}
            return cls(**{one.name: read[one.name] for one in fields(cls)})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the record of a shard: {error}") from error


def write_record(file: Path, record: ShardRecord) -> None:
    """Write a record, in one step."""
    text = json.dumps(asdict(record), ensure_ascii=False, sort_keys=True)
    replace_file(file, text.encode("utf-8", "backslashreplace") + b"\n")


def read_record(file: Path) -> ShardRecord | None:
    """Read a record; None where the file is gone or is no whole record, so that the shard is done again."""
    try:
        if file.stat().st_size > _MAX_RECORD_BYTES:
            return None
        return ShardRecord.from_json(json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise LinkingRunError(f"{file}: cannot be read: {error.strerror}") from error


_FILE_SUFFIXES = {".parquet": "parquet", ".jsonl": "jsonl"}
# Names that no folder has: whoever writes them wants a file.
_OTHER_SUFFIXES = frozenset(
    {".json", ".csv", ".tsv", ".txt", ".gz", ".zst", ".arrow", ".pq", ".ndjson", ".xml"}
)


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """The place that `--out` names."""

    folder: Path  # folder of the run
    output_format: str  # "parquet" or "jsonl"
    file: Path | None = None  # the single file to make in the end; None: the folder is the output

    @property
    def name(self) -> Path:
        """The folder or file that the user asked for."""
        return self.folder if self.file is None else self.file

    @classmethod
    def of(cls, out: str | Path, output_format: str | None = None) -> OutputTarget:
        """Return the target of a name, and refuse one that cannot be written, before any work is done.

        A name that ends in .parquet or .jsonl is a file of that format, any other one a folder, with parts in
        Parquet unless a format is named. An InputError refuses a name that is empty, not UTF-8, that of
        another kind of file or of a link that leads nowhere, or contradicts the format.
        """
        if not str(out):
            raise InputError("out", "must not be empty")
        if find_surrogate(str(out)) is not None:  # Arrow cannot open such a file
            raise InputError("out", f"the name is not valid UTF-8, got {str(out)!r}")
        path = Path(out)
        named = _FILE_SUFFIXES.get(path.suffix)
        if named is None and path.suffix in _OTHER_SUFFIXES and not path.is_dir():
            raise InputError("out", f"must be a folder, or end in .parquet or .jsonl, got {path.name!r}")
        if named is not None and output_format not in (None, named):
            raise InputError("format", f"must be {named} for {path.name!r}, got {output_format}")
        if named is not None and path.is_dir():
            raise InputError(
                "out", f"{path} is a directory; a name ending in {path.suffix} is that of a file"
            )
        if named is None and path.exists() and not path.is_dir():
            raise InputError("out", f"{path} is a file; expected a folder, or a name in .parquet or .jsonl")
        if path.is_symlink() and not path.exists():
            raise InputError("out", f"{path} is a link to {path.readlink()}, which is not there")
        if named is None:
            return cls(path, output_format or "parquet")
        return cls(path.with_name(path.name + PARTS_SUFFIX), named, path)


RUN_FILE = "_run.json"
SUMMARY_FILE = "_summary.json"
RECORDS_DIR = "_shards"
LOCK_FILE = ".lock"
PARTS_SUFFIX = ".parts"

_OURS = re.compile(
    r"part-\d{6,}\.(parquet|jsonl)|_run\.json|_summary\.json|_shards|\.lock"
    r"|\.(part-\d{6,}\.(parquet|jsonl)|_run\.json|_summary\.json)\..+\.\d+\.tmp"
)
_RECORDS = re.compile(r"\d{6,}\.json|\.\d{6,}\.json\..+\.\d+\.tmp")


def part_name(shard: int, output_format: str) -> str:
    """Return the name of a shard's part file."""
    return f"part-{shard:06d}.{output_format}"


def record_file(folder: Path, shard: int) -> Path:
    """Return where a shard's record is."""
    return folder / RECORDS_DIR / f"{shard:06d}.json"


def is_ours(name: str) -> bool:
    """Whether a run writes files of this name into its folder."""
    return _OURS.fullmatch(name) is not None


def is_record(name: str) -> bool:
    """Whether a run writes files of this name into the folder of its records."""
    return _RECORDS.fullmatch(name) is not None


class LinkingRunError(GenretError):
    """A run's folder cannot be used, or a worker is gone; the text says what is kept and how to go on."""
