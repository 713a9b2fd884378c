"""manifest.json: the contents of a version, with the size and digest of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from genret.retrieval.errors import IndexFormatError, IndexVersionError, InputError
from genret.retrieval.index.layout import (
    EVIDENCE_SINCE,
    FORMAT_NAME,
    FORMAT_VERSION,
    MANIFEST_FILE,
    OLDEST_FORMAT_VERSION,
    RESERVED_COLUMNS,
    VECTORS_SINCE,
    WEIGHT_TYPES,
    WEIGHTS_SINCE,
    MetadataType,
    rows_file,
)
from genret.retrieval.index.small_files import parse_json
from genret.retrieval.text import Rendering

Operation = Literal["build", "update", "tune"]

# A manifest is read at every opening, so its history is bounded.
MAX_HISTORY = 1000
MAX_HISTORY_BYTES = 1 << 20

# Methods in indexes of earlier versions of the library, whose vectors nothing uses any more.
OLD_VECTOR_METHODS = ("lexical",)
VECTOR_METHODS = ("encoder", "sentence-transformers", *OLD_VECTOR_METHODS)
VECTOR_KINDS = ("flat", "hnsw", "ivfpq", "factory")
MAX_VECTOR_DIMENSIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file: path in the version directory with forward slashes, size, XXH3-128 in hexadecimal digits."""

    name: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The tokenizer whose ids, below `vocab_size`, the rows hold; ValueError if no integer type holds it."""

    name: str  # last part of the path or id it was loaded from; for messages only
    fingerprint: str  # hash of its serialised form
    vocab_size: int
    end_token_id: int  # token that closes every row and stands nowhere else in one
    max_token_id: int  # largest id in any row

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= 1 << 32:
            raise ValueError(f"tokenizer.vocab_size: expected 1 <= it <= 2**32, got {self.vocab_size}")
        if not self.end_token_id <= self.max_token_id < self.vocab_size:
            raise ValueError(
                "tokenizer: expected end_token_id <= max_token_id < vocab_size, got "
                f"{self.end_token_id}, {self.max_token_id}, {self.vocab_size}"
            )


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
    """The counts of a version. `nodes` are trie nodes with the root; `depth` is the longest row's tokens."""

    entities: int
    rows: int
    postings: int
    tokens: int
    nodes: int
    depth: int
    max_children: int


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """A metadata column of one type; ValueError for a reserved name or an unknown type."""

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
    """The vectors of a version; ValueError for an unknown method or kind, or a number out of its range."""

    method: str  # "encoder" or "sentence-transformers", or one of `OLD_VECTOR_METHODS`
    source: str  # path or hub id of the encoder
    fingerprint: str  # fingerprint of the embedder
    columns: tuple[str, ...]  # metadata columns whose texts have vectors too, beside titles and aliases
    dimensions: int
    count: int  # number of vectors: texts that are not empty, equal ones of an entity counted once
    kind: str  # "flat", "hnsw", "ivfpq" or "factory"
    factory: str  # name of the index in faiss, such as "IDMap,Flat"
    # Search effort in force: cells visited, or candidates kept by hnsw; 0 where all vectors are compared
    effort: int
    sample: int  # number of vectors that the quantisers were trained on; 0 where nothing is trained
    # Share of the known items found first with `effort`, of those found first with full effort; up to format
    # version 5 the share of the 100 nearest texts that are found. 1 where all are compared.
    recall: float
    recall_queries: int  # number of known items; 0 where nothing was measured
    seed: int  # seed of everything random

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
    """Names, texts and past queries of a version; ValueError for a repeated column or a negative number."""

    terms: int  # version of the rules by which texts are split into words and letters
    names: int  # number of titles and aliases
    columns: tuple[str, ...]  # metadata columns whose values are texts of an entity
    texts: int  # number of entities with texts
    queries: int  # number of past queries, the same one for the same entity counted once

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
        parent: Id of the version it started from; "" for a build.
        sources: The input files, with size and digest of their content.
        options: Options that shaped the data.
        records: Records read, rejected and duplicate ones included.
        duplicates: Records that repeated an entity word for word and were dropped.
        added, changed, removed: Entities by what became of them.
    """

    operation: Operation
    parent: str
    sources: tuple[FileEntry, ...]
    options: Mapping[str, Any]
    records: int
    duplicates: int = 0
    rejected: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0

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


_T = TypeVar("_T")

# Fields that manifests of earlier format versions lack.
_SINCE = {"vectors": VECTORS_SINCE, "weight_column": WEIGHTS_SINCE, "evidence": EVIDENCE_SINCE}
_FLAT_TYPES: Mapping[str, type] = {"int": int, "float": float}

# Everything counted fits an int64, and Arrow takes no more.
_MAX_INTEGER = 1 << 63

# Files lie below the version directory under plain names: no `..`, no absolute path, no odd characters.
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one version.

    Attributes:
        buckets: Row lengths that occur, ascending.
        stored_ids: Whether entity ids are stored; if not, an entity's id is its title.
        stored_aliases: Whether any entity has aliases.
        files: Every data file, by name.
        history: The build and the updates since, the oldest first.
        built_with: Versions of the libraries that shaped the data.
        weight_column: Name of the metadata column that holds the weights of entities, or None.
        evidence: Names, texts and past queries, or None where the version has none.
    """

    tokenizer: TokenizerEntry
    rendering: Rendering
    counts: Counts
    buckets: tuple[Bucket, ...]
    stored_ids: bool
    stored_aliases: bool
    metadata: tuple[MetadataColumn, ...]
    files: tuple[FileEntry, ...]
    history: tuple[HistoryEntry, ...]
    built_with: Mapping[str, str]
    weight_column: str | None = None
    vectors: VectorsEntry | None = None
    evidence: EvidenceEntry | None = None
    format_version: int = FORMAT_VERSION

    @property
    def num_bytes(self) -> int:
        """Size of all data files."""
        return sum(file.bytes for file in self.files)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metadata columns."""
        return tuple(column.name for column in self.metadata)

    def file(self, name: str) -> FileEntry | None:
        """Return the entry called `name`, or None."""
        return next((file for file in self.files if file.name == name), None)

    def to_bytes(self) -> bytes:
        """Serialise; equal manifests give equal bytes."""
        document = {"format": FORMAT_NAME, "format_version": self.format_version, **asdict(self)}
        for name, since in _SINCE.items():
            if self.format_version < since:
                del document[name]
        return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST_FILE) -> Manifest:
        """Parse the bytes of `to_bytes`, read from the file `where`.

        Raises:
            IndexFormatError: not a manifest; the text names the field.
            IndexVersionError: a manifest of another format version.
        """
        document = parse_json(data, where)
        if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
            raise IndexFormatError(f'{where}: not a manifest: expected "format": "{FORMAT_NAME}"')
        version = document.get("format_version")
        known = range(OLDEST_FORMAT_VERSION, FORMAT_VERSION + 1)
        if type(version) is not int or version not in known:  # true and 1.0 equal 1
            raise IndexVersionError(
                f"{where}: format version {version!r}; this library reads versions {known[0]} to "
                f"{known[-1]}: rebuild the index with build-index, or install the matching library"
            )
        try:
            return cls._from_document(document)
        except (KeyError, TypeError, ValueError, InputError) as error:
            told = f"missing field {error}" if isinstance(error, KeyError) else str(error)
            raise IndexFormatError(f"{where}: {told}") from error

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> Manifest:
        metadata = _records(MetadataColumn, document, "metadata")
        names = [column.name for column in metadata]
        if len(set(names)) != len(names):
            raise ValueError(f"metadata: a column stands there twice: {names}")
        return cls(
            tokenizer=_record(TokenizerEntry, document, "tokenizer"),
            rendering=Rendering.from_json(_typed(document, "rendering", dict)),
            counts=_record(Counts, document, "counts"),
            buckets=_buckets(document),
            stored_ids=_typed(document, "stored_ids", bool),
            stored_aliases=_typed(document, "stored_aliases", bool),
            metadata=metadata,
            files=_version_files(document),
            history=_history(document),
            built_with=_typed(document, "built_with", dict),
            vectors=_with_columns(VectorsEntry, document, "vectors", metadata),
            evidence=_with_columns(EvidenceEntry, document, "evidence", metadata),
            weight_column=_weight_column(document, metadata),
            format_version=_typed(document, "format_version", int),
        )


def _with_columns(
    record_type: type[_T], document: Mapping[str, Any], key: str, metadata: Sequence[MetadataColumn]
) -> _T | None:
    """Build a record that names metadata columns of strings; None where a version has none."""
    if document["format_version"] < _SINCE[key] or document[key] is None:
        return None
    item = _typed(document, key, dict)
    columns = _typed(item, "columns", list)
    known = [column.name for column in metadata if column.type == "string"]
    for column in columns:
        if column not in known:
            raise ValueError(f"{key}.columns: expected columns of strings, of {known}, got {column!r}")
    flat = {name: value for name, value in item.items() if name != "columns"}
    return _record(record_type, {key: flat}, key, {"columns": tuple(columns)})


def _weight_column(document: Mapping[str, Any], metadata: Sequence[MetadataColumn]) -> str | None:
    if document["format_version"] < _SINCE["weight_column"] or document["weight_column"] is None:
        return None
    name: str = _typed(document, "weight_column", str)
    known = [column.name for column in metadata if column.type in WEIGHT_TYPES]
    if name not in known:
        raise ValueError(f"weight_column: expected a metadata column of numbers, of {known}, got {name!r}")
    return name


def _history(document: Mapping[str, Any]) -> tuple[HistoryEntry, ...]:
    entries = []
    for item in _typed(document, "history", list):
        if type(item) is not dict:
            raise TypeError(f"history: expected dict, got {item!r}")
        nested = {
            "sources": _records(FileEntry, item, "sources"),
            "options": _typed(item, "options", dict),
        }
        flat = {name: value for name, value in item.items() if name not in nested}
        entries.append(_record(HistoryEntry, {"history": flat}, "history", nested))
    if not 1 <= len(entries) <= MAX_HISTORY:
        raise ValueError(f"history: expected 1 to {MAX_HISTORY} entries, got {len(entries)}")
    return tuple(entries)


def _typed(document: Mapping[str, Any], key: str, expected: type) -> Any:
    value = document[key]
    if type(value) is not expected:  # a bool is no count
        raise TypeError(f"{key}: expected {expected.__name__}, got {value!r}")
    return value


def _record(
    record_type: type[_T], document: Mapping[str, Any], key: str, nested: Mapping[str, Any] | None = None
) -> _T:
    """Build a record of numbers and strings; `nested` are fields of other types, parsed before."""
    value = _typed(document, key, dict)
    nested = nested or {}
    names = {
        field.name: _FLAT_TYPES.get(str(field.type), str)  # literals and strings are both JSON strings
        for field in fields(record_type)  # type: ignore[arg-type]
        if field.name not in nested
    }
    if set(value) != set(names):
        raise ValueError(f"{key}: expected the fields {sorted(names)}, got {sorted(value)}")
    for name, expected in names.items():
        _typed(value, name, expected)
        if expected is int and not 0 <= value[name] < _MAX_INTEGER:
            raise ValueError(f"{key}.{name}: expected 0 <= it < 2**63, got {value[name]}")
    return record_type(**value, **nested)


def _records(record_type: type[_T], document: Mapping[str, Any], key: str) -> tuple[_T, ...]:
    return tuple(_record(record_type, {key: item}, key) for item in _typed(document, key, list))


def _version_files(document: Mapping[str, Any]) -> tuple[FileEntry, ...]:
    files = _records(FileEntry, document, "files")
    for file in files:
        if _FILE_NAME.fullmatch(file.name) is None:
            raise ValueError(f"files: expected the name of a file of this version, got {file.name[:200]!r}")
    if len({file.name for file in files}) != len(files):
        raise ValueError("files: a name stands there twice")
    return files


def _buckets(document: Mapping[str, Any]) -> tuple[Bucket, ...]:
    buckets = _records(Bucket, document, "buckets")
    lengths = [bucket.length for bucket in buckets]
    if lengths != sorted(set(lengths)) or not 1 <= min(lengths, default=1) <= max(lengths, default=1) < 2**31:
        raise ValueError("buckets: expected ascending lengths from 1 to 2**31 - 1")
    return buckets
