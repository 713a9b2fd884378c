"""What a build is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from retrieval.errors import InputError
from retrieval.sources import SourceFormat
from retrieval.text import Rendering

__all__ = ["BuildOptions", "SourceFormat"]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Parameters of one build.

    Attributes:
        out: The index directory.
        format: How the source is read; "auto" takes a first line with a `title` column for a header.
        rendering: How titles stand after the prompt.
        max_bad_rows: More bad rows than this fail the build.
        max_title_tokens: Titles of more tokens, end token included, are bad rows.
        rejects: Where bad rows are written; None writes none.
        keep_versions: How many superseded versions stay on disk beside the live one.
    """

    out: Path
    format: SourceFormat = "auto"
    rendering: Rendering = field(default_factory=Rendering)
    max_bad_rows: int = 0
    max_title_tokens: int = 256
    rejects: Path | None = None
    keep_versions: int = 2

    def __post_init__(self) -> None:
        for name, least in (("max_bad_rows", 0), ("max_title_tokens", 2), ("keep_versions", 0)):
            value = getattr(self, name)
            if value < least:
                raise InputError(name, f"must be >= {least}, got {value}")
        if self.format not in ("auto", "tsv", "lines"):
            raise InputError("format", f"expected auto, tsv or lines, got {self.format!r}")
