"""Reading ahead: a source is parsed in a thread of its own while the batch before is being tokenised."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass

from retrieval.rejects import Reject, Rejects
from retrieval.sources import SourceBatch, TitleSource

# Batches that may wait: enough to keep both threads busy, few enough to take little memory.
_AHEAD = 2
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """A batch of a source with the bad rows that were met on the way to it.

    Attributes:
        batch: None behind the last one, for the bad rows at the end.
        rejects: Bad rows since the batch before.
        bytes_read: Of the source's files so far.
    """

    batch: SourceBatch | None
    rejects: list[Reject]
    bytes_read: int


class _StoppedError(Exception):
    """Nobody wants further batches."""


class _Parser(threading.Thread):
    """Parses a source into a queue; its failure, or None, is the last thing in the queue."""

    def __init__(self, source: TitleSource, size: int, limit: int) -> None:
        super().__init__(name="parser", daemon=True)
        self._source = source
        self._size = size
        self._rejects = Rejects(source.name, limit, files=source.names)
        self._handed_over = 0
        self._halt = threading.Event()
        self.parsed: queue.Queue[ParsedBatch | BaseException | None] = queue.Queue(_AHEAD)

    def run(self) -> None:
        """Parse to the end, to a failure, or until stopped."""
        try:
            for batch in self._source.batches(self._size, self._rejects):
                self._put(self._with_rejects(batch))
            self._finish(None)
        except _StoppedError:
            return
        except BaseException as error:
            self._finish(error)

    def stop(self) -> None:
        """Let the thread end; wait for it."""
        self._halt.set()
        self.join()

    def _with_rejects(self, batch: SourceBatch | None) -> ParsedBatch:
        new = self._rejects.rows[self._handed_over :]
        self._handed_over = len(self._rejects.rows)
        return ParsedBatch(batch, new, self._source.bytes_read)

    def _finish(self, error: BaseException | None) -> None:
        try:
            self._put(self._with_rejects(None))
            self._put(error)
        except _StoppedError:
            return

    def _put(self, item: ParsedBatch | BaseException | None) -> None:
        while not self._halt.is_set():
            try:
                self.parsed.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return
        raise _StoppedError


def parse_ahead(source: TitleSource, size: int, limit: int) -> Generator[ParsedBatch, None, None]:
    """Yield the batches of a source in order, each while the next ones are being parsed.

    Close the iterator before the source, also after an error: the thread ends with it.

    Args:
        source: The source; used by nobody else meanwhile.
        size: Records per batch.
        limit: Bad rows there may be.

    Raises:
        SourceError: as `TitleSource.batches`; the bad rows up to there have been yielded.
    """
    parser = _Parser(source, size, limit)
    parser.start()
    try:
        while (item := parser.parsed.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        parser.stop()
