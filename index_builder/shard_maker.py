"""Turns a source into journalled shards: parses ahead in a thread, tokenises, writes shard by shard.

`RowEncoder` makes rows of titles and refuses those that break a rule. The shards lie under a key of
everything that shapes them, so that only the same build continues with them. The journal has one JSON line
per finished shard, written after the shard is safely on disk; a torn last line is ignored.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from genret.index_builder.build_options import BuildOptions
from genret.index_builder.faults import fault_point
from genret.index_builder.publish import COPIES_DIR, JOURNAL_FILE, ONCE, VECTORS_DIR, library_versions
from genret.index_builder.runs import NUMBERS_FILE, TEXTS_FILE, ShardShape, ShardWriter
from genret.retrieval.durable import naming, sync
from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import MAX_ROWS
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.index.small_files import digest_bytes, digest_file
from genret.retrieval.normalize import NormalizationReport
from genret.retrieval.progress import StepProgress
from genret.retrieval.sources.columns import Kinds
from genret.retrieval.sources.records import Position, Record, Reject, RejectReason, Rejects, SourceBatch
from genret.retrieval.sources.title_source import TitleSource
from genret.retrieval.text import Rendering, TextTokenizer

_BATCH_RECORDS = 8192
_MAX_SHARD_BYTES = 1 << 30  # a shard's texts have 31-bit offsets


class ShardMaker:
    """Tokenises a source, which is not read yet, into shards.

    The journal lists the finished shards and receives the new ones; `rejects` gets the bad rows, those from
    the journal first.
    """

    def __init__(
        self,
        source: TitleSource,
        encoder: RowEncoder,
        vocab_size: int,
        options: BuildOptions,
        journal: Journal,
        rejects: Rejects,
    ) -> None:
        self._source = source
        self._encoder = encoder
        self._vocab_size = vocab_size
        self._journal = journal
        self._rejects = rejects
        self._shard_records = options.shard_records
        self._max_bad_rows = options.max_bad_rows
        self._max_bytes = min(options.free_bytes // 2, _MAX_SHARD_BYTES)
        for entry in journal.entries:
            rejects.rows.extend(entry.rejects)
        self._num_forms = sum(entry.shape.forms for entry in journal.entries)
        if journal.entries:
            source.skip_to(journal.entries[-1].position)
        self._begin_shard()

    def run(self, progress: StepProgress) -> None:
        """Read to the end.

        Raises:
            SourceError: the source cannot be used, or holds too much.
            OSError: a file cannot be written.
        """
        progress.phase("reading and tokenising", self._source.num_bytes)
        size = min(_BATCH_RECORDS, self._shard_records)
        with closing(_parse_ahead(self._source, size, self._max_bad_rows)) as batches:
            for parsed in batches:
                self._rejects.rows.extend(parsed.rejects)
                if parsed.batch is not None:
                    self._add(parsed.batch)
                    progress.advance(parsed.bytes_read, f"{parsed.batch.position.records_read:,} rows")
        self._finish_shard()

    @property
    def kinds(self) -> list[Kinds]:
        """Kinds of cells in each metadata column, also those behind the last good record."""
        entries = self._journal.entries
        return _combined([*(entry.kinds for entry in entries), self._kinds], len(self._kinds))

    @property
    def normalization(self) -> NormalizationReport:
        """Changes that the text policy made, also behind the last good record."""
        return sum((entry.normalization for entry in self._journal.entries), self._normalization)

    def _begin_shard(self) -> None:
        columns = self._source.columns.names
        self._writer = ShardWriter(self._source.has_ids, columns, self._vocab_size)
        self._kinds = [Kinds.NONE] * len(columns)
        self._normalization = NormalizationReport()
        self._first_reject = len(self._rejects.rows)
        self._position = Position()

    def _add(self, batch: SourceBatch) -> None:
        kept, rows, forms = self._encoder.encode(batch.records, self._rejects)
        self._writer.add(kept, rows, forms)
        self._kinds = _combined([self._kinds, batch.kinds], len(self._kinds))
        self._normalization += batch.normalization
        self._position = batch.position
        self._num_forms += len(rows)
        if self._num_forms > MAX_ROWS:
            raise SourceError(
                f"{self._source.name}: more than {MAX_ROWS} titles and aliases are not supported"
            )
        if self._writer.num_entities >= self._shard_records or self._writer.num_bytes >= self._max_bytes:
            self._finish_shard()

    def _finish_shard(self) -> None:
        """Write and journal the collected records, if any."""
        if self._writer.num_entities:
            folder = self._journal.shard_folder(len(self._journal.entries))
            try:
                shape = self._writer.write(folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # gives its space back on a full disk
                raise
            entry = ShardEntry(
                shape=shape,
                files=describe_files(folder),
                position=self._position,
                kinds=tuple(self._kinds),
                normalization=self._normalization,
                rejects=tuple(self._rejects.rows[self._first_reject :]),
            )
            self._journal.append(entry)
            self._begin_shard()


def _combined(parts: Iterable[Sequence[Kinds]], count: int) -> list[Kinds]:
    """Combine the kinds of cells of `count` metadata columns."""
    kinds = [Kinds.NONE] * count
    for part in parts:
        kinds = [old | new for old, new in zip(kinds, part, strict=True)]
    return kinds


# Batches that are parsed ahead: enough to keep both threads busy, few enough to take little memory.
_AHEAD = 2


class _ParsedBatch(NamedTuple):
    """A batch of a source (None at the end) with the bad rows since the one before."""

    batch: SourceBatch | None
    rejects: list[Reject]
    bytes_read: int  # of the source's files so far
    failure: BaseException | None  # what ended the parsing behind these bad rows


def _parse_ahead(source: TitleSource, size: int, limit: int) -> Generator[_ParsedBatch, None, None]:
    """Yield the batches of a source in order while the next ones are being parsed.

    At most `limit` bad rows are allowed. The iterator must be closed before the source, also after an error:
    the thread ends with it. A `SourceError` is raised after the bad rows before it were yielded. Rows in
    memory are parsed in the caller's thread: a cursor of a database that gives them may know no other.
    """
    rejects = Rejects(source.name, limit, files=source.names, unit=source.unit)
    batches = source.batches(size, rejects)
    handed_over = 0

    def parse() -> _ParsedBatch:
        nonlocal handed_over
        batch = failure = None
        try:
            batch = next(batches, None)
        except BaseException as error:
            failure = error
        new, handed_over = rejects.rows[handed_over:], len(rejects.rows)
        return _ParsedBatch(batch, new, source.bytes_read, failure)

    waiting: deque[Future[_ParsedBatch]] = deque()
    with ThreadPoolExecutor(1, "parser") as pool:
        try:
            while True:
                while not source.in_memory and len(waiting) <= _AHEAD:
                    waiting.append(pool.submit(parse))
                item = waiting.popleft().result() if waiting else parse()
                yield item
                if item.failure is not None:
                    raise item.failure
                if item.batch is None:
                    return
        finally:
            pool.shutdown(cancel_futures=True)


_NAMED = 5  # characters or words named in the detail of a bad row


@dataclass(frozen=True, slots=True)
class OverLong:
    """A title or alias that was refused for its length."""

    tokens: int  # of its row, end token included
    text: str
    file: int  # number of the file, from 0
    line: int  # from 1


class RowEncoder:
    """Tokenises records in batches, on as many cores as the tokenizer's thread pool has.

    Rows of more than `max_title_tokens` tokens, end token included, are refused; `longest` is the longest.

    Raises:
        InputError: the tokenizer names no end token.
    """

    def __init__(self, tokenizer: TextTokenizer, rendering: Rendering, max_title_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._rendering = rendering
        self._max_title_tokens = max_title_tokens
        self.end_token_id = tokenizer.end_token_id(rendering)
        self._unknown_id = tokenizer.unknown_id
        self._empty_row = tokenizer.encode_titles([""], rendering)[0]
        self.longest: OverLong | None = None

    def encode(
        self, records: Sequence[Record], rejects: Rejects
    ) -> tuple[list[Record], list[list[int]], list[int]]:
        """Tokenise every form of every record; a record with a bad form is refused as a whole.

        Returns:
            The kept records; the rows of their forms, for each record its title, then its aliases; and the
            number of forms per kept record.
        """
        texts: list[str] = []
        for record in records:
            texts.append(record.title)
            texts += record.aliases
        encoded = self._tokenizer.encode_titles(texts, self._rendering)
        whole = [row for row in encoded if row is not None]
        if len(whole) == len(texts) and self._are_good(whole):
            return list(records), whole, [1 + len(record.aliases) for record in records]
        return self._sift(records, texts, encoded, rejects)

    def _are_good(self, rows: Sequence[list[int]]) -> bool:
        """Whether no row of a batch breaks a rule: one fast look, since few batches have such a row."""
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        if not len(rows) or lengths.min() < 2 or lengths.max() > self._max_title_tokens:
            return False
        tokens = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=int(lengths.sum()))
        # Every row ends with the end token, so there is at least one for each row.
        if np.count_nonzero(tokens == self.end_token_id) != len(rows):
            return False
        if self._unknown_id is not None and (tokens == self._unknown_id).any():
            return False
        return self._empty_row not in rows

    def _sift(
        self,
        records: Sequence[Record],
        texts: Sequence[str],
        encoded: Sequence[list[int] | None],
        rejects: Rejects,
    ) -> tuple[list[Record], list[list[int]], list[int]]:
        """Separate good records from bad ones, row by row."""
        kept: list[Record] = []
        rows: list[list[int]] = []
        forms: list[int] = []
        begin = 0
        for record in records:
            end = begin + 1 + len(record.aliases)
            good: list[list[int]] = []
            for at in range(begin, end):
                row = encoded[at]
                fault = self._fault(row, texts[at])
                if fault is not None or row is None:
                    reason, detail = fault or (RejectReason.UNSTABLE_BOUNDARY, "")
                    rejects.add(record.line, reason, texts[at], detail, record.file)
                    if reason is RejectReason.OVER_LONG and row is not None:
                        longest = OverLong(len(row), texts[at], record.file, record.line)
                        self.longest = max(self.longest or longest, longest, key=lambda one: one.tokens)
                    break
                good.append(row)
            else:
                kept.append(record)
                rows += good
                forms.append(len(good))
            begin = end
        return kept, rows, forms

    def _fault(self, row: list[int] | None, text: str) -> tuple[RejectReason, str] | None:
        if row is None:
            return RejectReason.UNSTABLE_BOUNDARY, "its first characters change the tokens before it"
        if row == self._empty_row or len(row) < 2:
            return RejectReason.NO_TOKENS, ""
        if len(row) > self._max_title_tokens:
            return RejectReason.OVER_LONG, f"{len(row)} tokens, at most {self._max_title_tokens}"
        if self._unknown_id in row[:-1]:
            # It stands for everything outside the vocabulary, so unrelated entities would share the row.
            return RejectReason.UNKNOWN_TOKEN, self._unspellable(text)
        if row.index(self.end_token_id) != len(row) - 1:
            # Only a row that ends with its one end token can be no prefix of another.
            return RejectReason.END_TOKEN_INSIDE, f"token {self.end_token_id}"
        return None

    def _unspellable(self, text: str) -> str:
        """Name what the vocabulary lacks: characters, else words, else the rendered text."""
        for parts in (list(dict.fromkeys(text)), list(dict.fromkeys(text.split()))):
            rows = self._tokenizer.encode_texts(parts)
            lacking = [part for part, ids in zip(parts, rows, strict=True) if self._unknown_id in ids]
            if lacking:
                more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
                return f"cannot spell {', '.join(map(repr, lacking[:_NAMED]))}{more}"
        rendering = self._rendering
        return f"cannot spell {rendering.prefix + text + rendering.suffix!r}"


# To be changed whenever the format of shards or the journal changes.
_WORK_FORMAT = 2
_SHARD_PREFIX = "shard-"


def work_key(shaping: Mapping[str, Any] | None) -> str:
    """Return the name of a build's folder.

    `shaping` is everything that decides about the shards, as JSON; None for input that can be read only once.
    """
    if shaping is None:
        return ONCE
    document = {"format": _WORK_FORMAT, "libraries": library_versions(), **shaping}
    return digest_bytes(json.dumps(document, sort_keys=True, ensure_ascii=True).encode("ascii"))


def open_journal(root: Path, key: str, resume: bool) -> Journal:
    """Open the journal of a build in the work directory; the shards of all other builds are removed.

    Raises:
        OSError: the directory cannot be written.
    """
    root.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        if path.name == COPIES_DIR:  # just made, for this build
            continue
        if not resume or (path.name != VECTORS_DIR and (path.name != key or key == ONCE)):
            with naming(path):
                shutil.rmtree(path)
    return Journal(root / key)


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
        return json.dumps(asdict(self), ensure_ascii=True).encode("ascii") + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ShardEntry:
        """Read a line of `to_line`. Raises `ValueError` or `KeyError` or `TypeError` if it is malformed."""
        told: Mapping[str, Any] = json.loads(line)
        shape, rows = told["shape"], told["rejects"]
        return cls(
            shape=ShardShape(**{**shape, "columns": tuple(shape["columns"])}),
            files=tuple(FileEntry(**file) for file in told["files"]),
            position=Position(**told["position"]),
            kinds=tuple(map(Kinds, told["kinds"])),
            normalization=NormalizationReport(**told["normalization"]),
            rejects=tuple(Reject(**{**row, "reason": RejectReason(row["reason"])}) for row in rows),
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
        known = {JOURNAL_FILE, *(self.shard_folder(number).name for number in range(len(self.entries)))}
        for path in folder.iterdir():
            if path.name not in known:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
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
                found = describe_files(self.shard_folder(len(self.entries)))
            except (ValueError, KeyError, TypeError, FileNotFoundError):
                break
            if not line.endswith(b"\n") or found != entry.files:
                break
            self.entries.append(entry)
            intact += len(line)
        return intact


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
