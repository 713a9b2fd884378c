"""From a source to journalled shards: reading goes on where the journal ends."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing

from index_builder.config import BuildOptions
from index_builder.journal import Journal, ShardEntry, describe_files
from index_builder.memory import MemoryBudget
from index_builder.parsing import parse_ahead
from index_builder.progress import BuildProgress
from index_builder.shard_writer import ShardWriter
from index_builder.tokenize import RowEncoder
from retrieval.errors import SourceError
from retrieval.index.layout import MAX_ROWS
from retrieval.normalize import NormalizationReport
from retrieval.rejects import Rejects
from retrieval.sources import SourceBatch, TitleSource
from retrieval.sources.column_types import Kinds
from retrieval.sources.position import Position

_BATCH_RECORDS = 8192
_MAX_SHARD_BYTES = 1 << 30  # a shard's texts have 31-bit offsets


class ShardMaker:
    """Tokenises a source into shards.

    Args:
        source: Not read yet.
        encoder: Turns its titles into rows.
        vocab_size: Every token is below this.
        options: Of the build.
        journal: Says what has been done already, and gets what is done here.
        rejects: Gets the bad rows, those from the journal first.
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
        self._max_bytes = min(MemoryBudget(options.memory_limit).free_bytes // 2, _MAX_SHARD_BYTES)
        for entry in journal.entries:
            rejects.rows.extend(entry.rejects)
        self._num_forms = sum(entry.shape.forms for entry in journal.entries)
        if journal.entries:
            source.skip_to(journal.entries[-1].position)
        self._begin_shard()

    def run(self, progress: BuildProgress) -> None:
        """Read to the end.

        Raises:
            SourceError: the source cannot be used, or holds too much.
            OSError: the disk is full, or worse.
        """
        progress.phase("reading and tokenising", self._source.num_bytes)
        size = min(_BATCH_RECORDS, self._shard_records)
        with closing(parse_ahead(self._source, size, self._max_bad_rows)) as batches:
            for parsed in batches:
                self._rejects.rows.extend(parsed.rejects)
                if parsed.batch is not None:
                    self._add(parsed.batch)
                    progress.advance(parsed.bytes_read, f"{parsed.batch.position.records_read:,} rows")
        self._finish_shard()

    @property
    def kinds(self) -> list[Kinds]:
        """What the cells of each metadata column look like, also those behind the last good record."""
        entries = self._journal.entries
        return _combined([*(entry.kinds for entry in entries), self._kinds], len(self._kinds))

    @property
    def normalization(self) -> NormalizationReport:
        """What the text policy did, also behind the last good record."""
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
        """Write what was gathered, if anything, and journal it."""
        if self._writer.num_entities:
            folder = self._journal.shard_folder(len(self._journal.entries))
            try:
                shape = self._writer.write(folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # on a full disk its space is wanted back
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
    """Return what the cells of each of `count` metadata columns look like in all parts together."""
    kinds = [Kinds.NONE] * count
    for part in parts:
        kinds = [old | new for old, new in zip(kinds, part, strict=True)]
    return kinds
