"""Rows as the formats give them, before anything is known about titles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from retrieval.rejects import Reason

# What a JSON or Parquet cell may be; text formats have str alone.
Cell: TypeAlias = object


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that could not be taken apart."""

    reason: Reason
    detail: str
    text: str | bytes


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Neighbouring rows of one file.

    Attributes:
        first_line: Line number of the first, from 1.
        rows: One per line, taken apart; no rows when there are `lines`.
        is_text: Every cell is a str.
        lines: Instead of rows: lines of text still to be split at tabs, all of whose fields are what the text
            policy makes of them.
    """

    first_line: int
    rows: Sequence[Sequence[Cell] | BadRow] = ()
    is_text: bool = True
    lines: Sequence[str] | None = None

    @property
    def num_rows(self) -> int:
        """Rows or lines."""
        return len(self.rows if self.lines is None else self.lines)

    def cut(self, begin: int, end: int) -> Sequence[Sequence[Cell] | BadRow]:
        """Return rows begin … end - 1, taken apart."""
        if self.lines is None:
            return self.rows[begin:end]
        return [line.split("\t") for line in self.lines[begin:end]]


class RowReader(Protocol):
    """Reads the rows of one file, once.

    Attributes:
        names: Names of its columns.
        header_lines: Lines above the first row.
    """

    names: tuple[str, ...]
    header_lines: int

    @property
    def bytes_read(self) -> int:
        """Bytes of the file as it lies on disk that have been consumed."""

    @property
    def digest(self) -> str:
        """xxh3_128 of what was read, of a stream that can be read only once."""

    def restrict(self, used: Sequence[int], ignore_others: bool, lists: Sequence[int]) -> None:
        """Say which columns are looked at, before reading.

        Args:
            used: Positions in `names`.
            ignore_others: Whether fields that are in no column are left out; otherwise they make a row bad.
            lists: Those among `used` whose cells may be lists.

        Raises:
            SourceError: a column is of a type no cell can have.
        """

    def chunks(self, skip: int) -> Iterator[RowChunk]:
        """Yield the rows behind the first `skip` lines, without looking into these.

        Raises:
            SourceError: the file cannot be read to its end.
        """

    def close(self) -> None:
        """Let go of the file."""
