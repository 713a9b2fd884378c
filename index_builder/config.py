"""What a build is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from index_builder.evidence_wish import EvidenceWish, VectorWish
from index_builder.memory import DEFAULT_MEMORY_LIMIT, MemoryBudget
from retrieval.errors import InputError
from retrieval.index.manifest import FileEntry
from retrieval.sources import SOURCE_FORMATS, ColumnMapping, SourceFormat, digest_files
from retrieval.text import Rendering

__all__ = ["BuildOptions", "SourceFormat"]

# A shard is what an interrupted build loses at most.
_SHARD_RECORDS = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Parameters of one build.

    Attributes:
        out: The index directory.
        format: How the sources are read; "auto" looks at their content.
        mapping: What their columns mean.
        aliases: A second file of aliases, or None.
        unescape_html: Whether HTML entities in titles and aliases are resolved.
        rendering: How titles stand after the prompt.
        prompt: Template that a model is weighed with; None: its default one.
        max_bad_rows: More bad rows than this fail the build.
        max_title_tokens: Titles of more tokens, end token included, are bad rows.
        rejects: Where bad rows are written; None writes none.
        keep_versions: How many superseded versions stay on disk beside the live one.
        memory_limit: Bytes of memory the process may take.
        resume: Whether the work of an earlier run that was cut short is taken up.
        evidence: What evidence by words and letters the version gets; None for none. What an update does is
            said by its request.
        vectors: What vectors the version gets; None for none. An update leaves those that are there.
        threads: Of what makes vectors; None: all cores that the process may use.
        shard_records: Most records of one shard. The index does not depend on it.

    Raises:
        InputError: a value is out of its range.
    """

    out: Path
    format: SourceFormat = "auto"
    mapping: ColumnMapping = field(default_factory=ColumnMapping)
    aliases: Path | None = None
    unescape_html: bool = False
    rendering: Rendering = field(default_factory=Rendering)
    prompt: str | None = None
    max_bad_rows: int = 0
    max_title_tokens: int = 256
    rejects: Path | None = None
    keep_versions: int = 2
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    resume: bool = True
    evidence: EvidenceWish | None = field(default_factory=EvidenceWish)
    vectors: VectorWish | None = None
    threads: int | None = None
    shard_records: int = _SHARD_RECORDS

    def __post_init__(self) -> None:
        least = {"max_bad_rows": 0, "max_title_tokens": 2, "keep_versions": 0, "shard_records": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value < bound:
                raise InputError(name, f"must be >= {bound}, got {value}")
        if self.format not in SOURCE_FORMATS:
            raise InputError("format", f"expected {', '.join(SOURCE_FORMATS)}, got {self.format!r}")
        MemoryBudget(self.memory_limit)  # refuses what is too little

    def shaping(self) -> dict[str, Any]:
        """Return the options that decide what is read from given sources, as JSON; defaults are left out."""
        mapping, default = self.mapping, ColumnMapping()
        named = {
            name: getattr(mapping, name)
            for name in ("title", "entity_id", "aliases", "alias_separator")
            if getattr(mapping, name) != getattr(default, name)
        }
        shaping: dict[str, Any] = {
            "format": self.format,
            "max_title_tokens": self.max_title_tokens,
            "unescape_html": self.unescape_html,
            "columns": named,
            "types": {name: str(column_type) for name, column_type in sorted(mapping.types.items())},
        }
        if mapping.metadata is not None:
            shaping["metadata"] = list(mapping.metadata)
        if mapping.weight is not None:
            shaping["weight_column"] = mapping.weight
        return shaping

    def shaping_evidence(self) -> dict[str, Any]:
        """Return the options that decide which evidence is made, as JSON; defaults are left out."""
        told = None if self.evidence is None else self.evidence.shaping()
        evidence: dict[str, Any] = {"evidence": "none" if told is None else told} if told != {} else {}
        return evidence | ({} if self.vectors is None else {"vectors": self.vectors.shaping()})

    def query_sources(self) -> tuple[FileEntry, ...]:
        """Return size and digest of the files of past queries.

        Raises:
            SourceError: one cannot be read.
        """
        return () if self.evidence is None else digest_files([file.path for file in self.evidence.queries])
