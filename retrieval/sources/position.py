"""How far a source has been read, so that reading can go on there later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of a source.

    Attributes:
        file: Number of the file, from 0.
        lines: Lines of that file that have been consumed, header included; rows of a Parquet file.
        records_read: Rows consumed in all files, bad ones included, headers not.
    """

    file: int = 0
    lines: int = 0
    records_read: int = 0

    def to_json(self) -> dict[str, int]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Position:
        """Read what `to_json` gave.

        Raises:
            KeyError: a field is missing.
        """
        return cls(int(value["file"]), int(value["lines"]), int(value["records_read"]))
