"""What a version shall be, and what was written of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from retrieval.index.manifest import (
    Bucket,
    Counts,
    FileEntry,
    HistoryEntry,
    Manifest,
    MetadataColumn,
    TokenizerEntry,
)
from retrieval.text import Rendering


@dataclass(frozen=True, slots=True)
class VersionSpec:
    """What `index_builder.merge.write_version` must know beside the runs.

    Attributes:
        vocab_size: Every token of every row is below this.
        metadata: The metadata columns, in the order in which they are stored.
        weight_column: Name of the one that holds the weights of entities, or None.
    """

    vocab_size: int
    metadata: tuple[MetadataColumn, ...] = ()
    weight_column: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenVersion:
    """The data files of a version, written and synced; its manifest is not.

    Attributes:
        spec: As asked for.
        counts: How many of everything.
        buckets: Row lengths that occur, ascending.
        files: Every data file, by name.
        stored_ids: Whether any entity's id differs from its title.
        stored_aliases: Whether any entity has aliases.
        max_token_id: Largest id in any row.
    """

    spec: VersionSpec
    counts: Counts
    buckets: tuple[Bucket, ...]
    files: tuple[FileEntry, ...]
    stored_ids: bool
    stored_aliases: bool
    max_token_id: int

    def to_manifest(
        self,
        tokenizer: TokenizerEntry,
        rendering: Rendering,
        history: tuple[HistoryEntry, ...],
        built_with: Mapping[str, str],
    ) -> Manifest:
        """Return the manifest of the version.

        Args:
            tokenizer: The tokenizer of the rows; its `max_token_id` is put right here.
            rendering: How titles stand after the prompt.
            history: How the version came about.
            built_with: Versions of the libraries that shaped the data.
        """
        return Manifest(
            tokenizer=replace(tokenizer, max_token_id=self.max_token_id),
            rendering=rendering,
            counts=self.counts,
            buckets=self.buckets,
            stored_ids=self.stored_ids,
            stored_aliases=self.stored_aliases,
            metadata=self.spec.metadata,
            files=self.files,
            history=history,
            built_with=built_with,
            weight_column=self.spec.weight_column,
        )
