"""manifest.json: what a version holds, with the size and digest of every file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from retrieval.errors import IndexFormatError, IndexVersionError, InputError
from retrieval.index.layout import (
    EVIDENCE_SINCE,
    FORMAT_NAME,
    FORMAT_VERSION,
    MANIFEST_FILE,
    OLDEST_FORMAT_VERSION,
    VECTORS_SINCE,
    WEIGHT_TYPES,
    WEIGHTS_SINCE,
)
from retrieval.index.manifest_entries import (
    MAX_HISTORY,
    Bucket,
    Counts,
    EvidenceEntry,
    FileEntry,
    HistoryEntry,
    MetadataColumn,
    TokenizerEntry,
    VectorsEntry,
    extend_history,
)
from retrieval.index.small_files import parse_json
from retrieval.text import Rendering

__all__ = [
    "MAX_HISTORY",
    "Bucket",
    "Counts",
    "EvidenceEntry",
    "FileEntry",
    "HistoryEntry",
    "Manifest",
    "MetadataColumn",
    "TokenizerEntry",
    "VectorsEntry",
    "extend_history",
]

_T = TypeVar("_T")

_FLAT_TYPES: Mapping[str, type] = {"int": int, "float": float}

# Everything counted fits an int64, and Arrow takes no more.
_MAX_INTEGER = 1 << 63

# Files lie below the version directory under plain names: no `..`, no absolute path, no odd characters.
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one version.

    Attributes:
        tokenizer: The tokenizer of the rows.
        rendering: How titles stand after the prompt.
        counts: How many of everything.
        buckets: Row lengths that occur, ascending.
        stored_ids: Whether entity ids are stored; if not, an entity's id is its title.
        stored_aliases: Whether any entity has aliases.
        metadata: The metadata columns.
        files: Every data file, by name.
        history: How the version came about: a build and the updates since, the oldest first.
        built_with: Versions of the libraries that shaped the data.
        weight_column: Name of the metadata column that holds the weights of entities, or None.
        vectors: The vectors, or None where the version has none.
        evidence: What is found by words and letters, or None where the version has none.
        format_version: Of the files.
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
        if self.format_version < VECTORS_SINCE:
            del document["vectors"]
        if self.format_version < WEIGHTS_SINCE:
            del document["weight_column"]
        if self.format_version < EVIDENCE_SINCE:
            del document["evidence"]
        return (json.dumps(document, indent=1, ensure_ascii=True) + "\n").encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, where: str = MANIFEST_FILE) -> Manifest:
        """Parse what `to_bytes` wrote.

        Args:
            data: Content of the file.
            where: The file's path, for messages.

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
            raise IndexFormatError(f"{where}: {_explain(error)}") from error

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
            vectors=_vectors(document, metadata),
            evidence=_evidence(document, metadata),
            weight_column=_weight_column(document, metadata),
            format_version=_typed(document, "format_version", int),
        )


def _vectors(document: Mapping[str, Any], metadata: Sequence[MetadataColumn]) -> VectorsEntry | None:
    if document["format_version"] < VECTORS_SINCE or document["vectors"] is None:
        return None
    return _with_columns(VectorsEntry, document, "vectors", metadata)


def _evidence(document: Mapping[str, Any], metadata: Sequence[MetadataColumn]) -> EvidenceEntry | None:
    if document["format_version"] < EVIDENCE_SINCE or document["evidence"] is None:
        return None
    return _with_columns(EvidenceEntry, document, "evidence", metadata)


def _with_columns(
    record_type: type[_T], document: Mapping[str, Any], key: str, metadata: Sequence[MetadataColumn]
) -> _T:
    """Build a record that names metadata columns of strings."""
    item = _typed(document, key, dict)
    columns = _typed(item, "columns", list)
    known = [column.name for column in metadata if column.type == "string"]
    for column in columns:
        if column not in known:
            raise ValueError(f"{key}.columns: expected columns of strings, of {known}, got {column!r}")
    flat = {name: value for name, value in item.items() if name != "columns"}
    return _record(record_type, {key: flat}, key, {"columns": tuple(columns)})


def _weight_column(document: Mapping[str, Any], metadata: Sequence[MetadataColumn]) -> str | None:
    if document["format_version"] < WEIGHTS_SINCE or document["weight_column"] is None:
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
    """Build a record of numbers and strings; `nested` are fields of other types, parsed beforehand."""
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


def _explain(error: Exception) -> str:
    return f"missing field {error}" if isinstance(error, KeyError) else str(error)
