"""What a manifest is made of: the entries for files, tokenizer, buckets, counts, columns and history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from retrieval.index.layout import RESERVED_COLUMNS, MetadataType, rows_file

Operation = Literal["build", "update", "tune"]

# A manifest is read at every opening: an index that is updated every hour must not carry a book with it.
MAX_HISTORY = 1000
MAX_HISTORY_BYTES = 1 << 20

# Vectors by these are in indexes of earlier versions of the library, and nothing uses them any more.
OLD_VECTOR_METHODS = ("lexical",)
VECTOR_METHODS = ("encoder", "sentence-transformers", *OLD_VECTOR_METHODS)
VECTOR_KINDS = ("flat", "hnsw", "ivfpq", "factory")
MAX_VECTOR_DIMENSIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the version.

    Attributes:
        name: Path relative to the version directory, with forward slashes.
        bytes: Size.
        xxh3_128: Digest, 32 hexadecimal digits.
    """

    name: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The tokenizer whose ids the rows hold.

    Attributes:
        name: Last part of the path or id it was loaded from; for messages only.
        fingerprint: Hash of its serialised form.
        vocab_size: Every id it can produce is below this.
        end_token_id: Closes every row and stands nowhere else in one.
        max_token_id: Largest id in any row.

    Raises:
        ValueError: no integer type holds such a vocabulary.
    """

    name: str
    fingerprint: str
    vocab_size: int
    end_token_id: int
    max_token_id: int

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= 1 << 32:
            raise ValueError(f"tokenizer.vocab_size: expected 1 <= it <= 2**32, got {self.vocab_size}")


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows of one length, end token included."""

    length: int
    rows: int

    @property
    def file(self) -> str:
        """Name of its file."""
        return rows_file(self.length)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many of everything.

    Attributes:
        entities: Entities.
        rows: Distinct token rows.
        postings: Pairs of row and entity.
        tokens: Tokens in all rows.
        nodes: Trie nodes, root included.
        depth: Tokens of the longest row.
        max_children: Most children of one trie node.
    """

    entities: int
    rows: int
    postings: int
    tokens: int
    nodes: int
    depth: int
    max_children: int


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """One metadata column of the entities.

    Attributes:
        name: Its name.
        type: Of its values; any of them may also be missing.

    Raises:
        ValueError: the name is empty or reserved, or there is no such type.
    """

    name: str
    type: MetadataType

    def __post_init__(self) -> None:
        if not self.name or self.name in RESERVED_COLUMNS:
            raise ValueError(f"metadata: a column cannot be called {self.name!r}")
        if self.type not in get_args(MetadataType):
            raise ValueError(
                f"metadata: column {self.name!r}: expected a type of {list(get_args(MetadataType))}, "
                f"got {self.type!r}"
            )


@dataclass(frozen=True, slots=True)
class VectorsEntry:
    """The vectors of a version.

    Attributes:
        method: "encoder" or "sentence-transformers", or one of `OLD_VECTOR_METHODS`.
        source: Path or hub id of the encoder.
        fingerprint: Of the embedder.
        columns: Metadata columns whose texts have vectors too, beside titles and aliases.
        dimensions: Length of a vector.
        count: Vectors: texts that are not empty, those of one entity that are equal counted once.
        kind: "flat", "hnsw", "ivfpq" or "factory".
        factory: What faiss calls the index, such as "IDMap,Flat".
        effort: Search effort in force, measured when the vectors were made: cells visited, or candidates kept
            by hnsw; 0 where everything is looked at.
        sample: Vectors that the quantisers were trained on; 0 where nothing is trained.
        recall: Share of the known items found first with `effort`, of those found first with full effort;
            up to format version 5 the share of the 100 nearest texts that are found. 1 where everything is
            looked at.
        recall_queries: How many known items there were; 0 where nothing was measured.
        seed: Of everything random in it.

    Raises:
        ValueError: no such method or kind, a column stands there twice, or a number is out of its range.
    """

    method: str
    source: str
    fingerprint: str
    columns: tuple[str, ...]
    dimensions: int
    count: int
    kind: str
    factory: str
    effort: int
    sample: int
    recall: float
    recall_queries: int
    seed: int

    def __post_init__(self) -> None:
        for name, known in (("method", VECTOR_METHODS), ("kind", VECTOR_KINDS)):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"vectors.{name}: expected one of {list(known)}, got {value!r}")
        if len(set(self.columns)) != len(self.columns):
            raise ValueError(f"vectors.columns: a column stands there twice: {list(self.columns)}")
        if not 1 <= self.dimensions <= MAX_VECTOR_DIMENSIONS:
            raise ValueError(
                f"vectors.dimensions: expected 1 <= it <= {MAX_VECTOR_DIMENSIONS}, got {self.dimensions}"
            )
        if self.count < 1:
            raise ValueError(f"vectors.count: expected at least 1, got {self.count}")
        if not 0 <= self.recall <= 1:
            raise ValueError(f"vectors.recall: expected 0 <= it <= 1, got {self.recall}")


@dataclass(frozen=True, slots=True)
class EvidenceEntry:
    """The evidence of a version that is found by words and letters.

    Attributes:
        terms: Version of the rules by which texts are split into words and letters.
        names: Titles and aliases.
        columns: Metadata columns whose values are texts of an entity.
        texts: Entities that have any.
        queries: Past queries, the same one for the same entity counted once.

    Raises:
        ValueError: a column stands there twice, or a number is negative.
    """

    terms: int
    names: int
    columns: tuple[str, ...]
    texts: int
    queries: int

    def __post_init__(self) -> None:
        if len(set(self.columns)) != len(self.columns):
            raise ValueError(f"evidence.columns: a column stands there twice: {list(self.columns)}")
        for name in ("terms", "names", "texts", "queries"):
            if (value := getattr(self, name)) < 0:
                raise ValueError(f"evidence.{name}: expected at least 0, got {value}")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step on the way to a version: the build, an update, or a ranking fitted anew.

    Attributes:
        operation: "build", "update" or "tune".
        parent: Id of the version it started from; "" for a build.
        sources: The input files; `bytes` and `xxh3_128` are those of their content.
        options: Options that shaped the data.
        records: Records read, rejected and duplicate ones included.
        duplicates: Records that repeated an entity word for word and were dropped.
        rejected: Records refused as bad.
        added: Entities that were not there before.
        changed: Entities that were there under their id and got another content.
        removed: Entities that are no longer there.

    Raises:
        ValueError: no such operation.
    """

    operation: Operation
    parent: str
    sources: tuple[FileEntry, ...]
    options: Mapping[str, Any]
    records: int
    duplicates: int
    rejected: int
    added: int
    changed: int
    removed: int

    def __post_init__(self) -> None:
        if self.operation not in get_args(Operation):
            raise ValueError(
                f"history: expected an operation of {list(get_args(Operation))}, got {self.operation!r}"
            )


def extend_history(history: Sequence[HistoryEntry], entry: HistoryEntry) -> tuple[HistoryEntry, ...]:
    """Return the history with one more entry; the oldest ones make room for it.

    At most `MAX_HISTORY` entries of `MAX_HISTORY_BYTES` in all are kept, and the new one in any case.
    """
    kept = [entry]
    room = MAX_HISTORY_BYTES - _num_bytes(entry)
    for earlier in reversed(history):
        room -= _num_bytes(earlier)
        if room < 0 or len(kept) == MAX_HISTORY:
            break
        kept.append(earlier)
    return tuple(reversed(kept))


def _num_bytes(entry: HistoryEntry) -> int:
    return len(json.dumps(asdict(entry)))
