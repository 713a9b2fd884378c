"""Collects bad rows: counted per reason, with their files and line numbers, written to a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from genret.retrieval.errors import SourceError

SHOWN = 5

# Beyond the limit the build fails anyway. Reading on for a while reports more bad rows at once; reading on
# to the end would keep a file of the wrong kind in memory.
_READ_ON = 10_000


class RejectReason(StrEnum):
    """Reason that a row was refused for."""

    NO_TITLE = "no title"
    NO_ENTITY_ID = "no entity_id"
    BAD_UTF8 = "not valid UTF-8"
    CONTROL_CHARACTER = "control character"
    TOO_MANY_FIELDS = "too many tabs"
    TOO_FEW_FIELDS = "too few fields"
    NO_TOKENS = "title with no tokens"
    OVER_LONG = "over-long title"
    UNSTABLE_BOUNDARY = "title merges with the prompt"
    END_TOKEN_INSIDE = "title holds the end token"
    UNKNOWN_TOKEN = "unknown token"
    DUPLICATE_ID = "entity_id used twice"
    BAD_VALUE = "bad value"
    BAD_JSON = "bad JSON"
    NOT_AN_OBJECT = "not a JSON object"
    UNKNOWN_FIELD = "unknown field"
    NO_ALIAS = "no alias"
    UNKNOWN_ENTITY = "alias of an unknown entity"
    UNKNOWN_ID = "unknown entity_id"
    NO_QUERY = "no query"
    UNKNOWN_ENTITY_ASKED_FOR = "query for an unknown entity"


@dataclass(frozen=True, slots=True)
class Reject:
    """One bad row."""

    line: int  # line number, or row number in a Parquet file, from 1
    reason: RejectReason  # reason of the refusal
    detail: str  # details, or ""
    text: str  # the row or the title, shortened
    file: int = 0  # number of the file, from 0

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"line {self.line}: {self.reason}{detail}: {self.text}"

    def to_json(self) -> list[Any]:
        """Return file, line, reason, detail and text."""
        return [self.file, self.line, str(self.reason), self.detail, self.text]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Reject:
        """Read the list of `to_json`.

        Raises:
            ValueError: it is something else.
        """
        file, line, reason, detail, text = value
        return cls(int(line), RejectReason(reason), str(detail), str(text), int(file))


@dataclass(slots=True)
class Rejects:
    """All bad rows of a source.

    Args:
        source: Name of the source, for messages.
        limit: Most bad rows that are allowed.
        files: Names of its files by number; bad rows name theirs if there are several.
    """

    source: str
    limit: int
    rows: list[Reject] = field(default_factory=list)
    files: tuple[str, ...] = ()

    def add(
        self, line: int, reason: RejectReason, text: str | bytes, detail: str = "", file: int = 0
    ) -> None:
        """Note a bad row.

        Raises:
            SourceError: there are so many beyond the limit that reading on is pointless.
        """
        shown = ascii(text[:200]) if isinstance(text, bytes) else repr(text[:200])
        self.append(Reject(line, reason, detail, shown.removeprefix("b"), file))

    def append(self, row: Reject) -> None:
        """Note a bad row as `add` does."""
        self.rows.append(row)
        if len(self.rows) > self.limit + _READ_ON:
            raise SourceError(self.report() + "\nreading stopped here: is this a file of titles?")

    def counts(self) -> dict[str, int]:
        """Return the number of bad rows per reason, most frequent first."""
        return dict(Counter(str(row.reason) for row in self.rows).most_common())

    def check(self, outcome: str = "nothing was built") -> None:
        """Fail if there are too many.

        Args:
            outcome: Consequence, for the message.

        Raises:
            SourceError: the text says how many of what, where, and how to allow them.
        """
        if len(self.rows) > self.limit:
            raise SourceError(
                self.report() + f"\n{outcome}; correct them, or allow them with "
                f"--max-bad-rows {len(self.rows)} (they are then left out)"
            )

    def report(self) -> str:
        """Return a few lines: counts per reason and the first bad rows."""
        ordered = self._ordered()
        counts = ", ".join(f"{count} × {reason}" for reason, count in self.counts().items())
        noun = "bad row" if len(ordered) == 1 else "bad rows"
        lines = [f"{self.source}: {len(ordered)} {noun} (allowed: {self.limit}): {counts}"]
        lines += [f"  {self._place(row)}{row}" for row in ordered[:SHOWN]]
        if len(ordered) > SHOWN:
            lines.append(f"  … and {len(ordered) - SHOWN} more")
        return "\n".join(lines)

    def write(self, file: Path) -> None:
        """Write all bad rows as TSV, or remove the file of an earlier build if there are none.

        Raises:
            SourceError: the file cannot be written.
        """
        try:
            if not self.rows:
                file.unlink(missing_ok=True)
                return
            several = len(self.files) > 1
            lines = [("file\t" if several else "") + "line\treason\tdetail\ttext"]
            for row in self._ordered():
                file_cell = f"{self.files[row.file]}\t" if several else ""
                detail = " ".join(row.detail.split())
                lines.append(f"{file_cell}{row.line}\t{row.reason}\t{detail}\t{row.text}")
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        except OSError as error:
            raise SourceError(f"{file}: cannot write the rejects: {error.strerror}") from error

    def _ordered(self) -> list[Reject]:
        return sorted(self.rows, key=lambda row: (row.file, row.line))

    def _place(self, row: Reject) -> str:
        return f"{self.files[row.file]}, " if len(self.files) > 1 else ""
