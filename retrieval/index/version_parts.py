"""Reads the parts of an open version, each from its mapped file and checked against the manifest.

All readers are zero-copy and raise IndexFormatError for a file that differs from the manifest. `RowBuckets`
finds rows by rank and ranks by row. Files of evidence are checked too, but a damaged one stops nothing else.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from genret.decoding.trie.trie_arrays import TrieArrays
from genret.retrieval.errors import IndexChecksumError, IndexFormatError
from genret.retrieval.index.entities import EntityTable, Postings
from genret.retrieval.index.layout import (
    EMBEDDER_FILE,
    ENTITIES_FILE,
    MANIFEST_FILE,
    MAX_COLUMNAR_LENGTH,
    NAMES_FILE,
    POSTINGS_FILE,
    PRIOR_FILE,
    QUERIES_FILE,
    RANKING_FILE,
    ROWS_DIR,
    TEXTS_FILE,
    TITLE_ORDER_FILE,
    TITLE_ORDER_SINCE,
    TRIE_FILE,
    VECTORS_FILE,
    MetadataType,
    as_numpy,
    entities_schema,
    metadata_field,
    postings_schema,
    read_schema,
    read_table,
    rows_file,
    rows_schema,
    single_chunk,
    smallest_unsigned,
    token_type,
    trie_schema,
)
from genret.retrieval.index.manifest import OLD_VECTOR_METHODS, Bucket, FileEntry, Manifest
from genret.retrieval.index.small_files import digest_bytes, kind_of


def open_mapped(folder: Path, entry: FileEntry, verify_digest: bool) -> pa.Buffer:
    """Map a file and compare it with its manifest entry: the mapping that is checked is the one that is read.

    Raises:
        IndexChecksumError: the file is missing, or its size or digest differs.
    """
    path = folder / entry.name
    try:
        found = path.stat()
    except OSError as error:
        raise IndexChecksumError(entry.name, f"cannot be read ({error.strerror}) in {folder}") from error
    size = found.st_size
    if not stat.S_ISREG(found.st_mode):  # mapping a pipe would wait for a writer
        raise IndexChecksumError(entry.name, f"expected a file, got a {kind_of(found)}, in {folder}")
    if size != entry.bytes:
        raise IndexChecksumError(
            entry.name, f"the manifest says {entry.bytes} bytes, got {size}, in {folder}"
        )
    try:
        with pa.memory_map(str(path), "r") as mapped:
            data = mapped.read_buffer(size)
    except (pa.ArrowException, OSError) as error:
        raise IndexChecksumError(entry.name, f"cannot be mapped in {folder}: {error}") from error
    if verify_digest:
        digest = digest_bytes(data)
        if digest != entry.xxh3_128:
            raise IndexChecksumError(
                entry.name, f"the manifest says digest {entry.xxh3_128}, got {digest}, in {folder}"
            )
    return data


def expected_files(manifest: Manifest) -> set[str]:
    """Return the files that a version must have; `optional_files` it may have."""
    ordered = [TITLE_ORDER_FILE] if manifest.format_version >= TITLE_ORDER_SINCE else []
    vectors = manifest.vectors
    embedded = [] if vectors is None else [VECTORS_FILE]
    if vectors is not None and vectors.method in OLD_VECTOR_METHODS:
        embedded.append(EMBEDDER_FILE)
    if (evidence := manifest.evidence) is not None:
        embedded.append(NAMES_FILE)
        embedded += [TEXTS_FILE] if evidence.columns else []
        embedded += [QUERIES_FILE] if evidence.queries else []
    return {TRIE_FILE, ENTITIES_FILE, *ordered, *(bucket.file for bucket in manifest.buckets), *embedded}


def optional_files(manifest: Manifest) -> set[str]:
    """Return the files that a version may have or not."""
    embedder = set() if manifest.vectors is None else {EMBEDDER_FILE}
    return {POSTINGS_FILE, RANKING_FILE, PRIOR_FILE, *embedder}


def read_bucket(data: pa.Buffer, bucket: Bucket, manifest: Manifest) -> RowBucket:
    """Return the rows of one length."""
    if not 1 <= bucket.length <= manifest.counts.depth:
        raise IndexFormatError(f"{MANIFEST_FILE}: a bucket has length {bucket.length}")
    schema = rows_schema(bucket.length, token_type(manifest.tokenizer.vocab_size))
    table = read_table(data, bucket.file, [schema], bucket.rows)
    return RowBucket.from_table(bucket.length, table, bucket.file)


def read_trie(data: pa.Buffer, manifest: Manifest) -> TrieArrays:
    """Return the title trie."""
    counts = manifest.counts
    schema = trie_schema(token_type(manifest.tokenizer.vocab_size))
    table = read_table(data, TRIE_FILE, [schema], 1)
    token, child_begin, row_begin, tail_begin = (_only_list(table, name) for name in schema.names)
    sizes = (len(child_begin), len(row_begin), len(tail_begin))
    expected = (counts.nodes + 1, counts.nodes + 1, counts.rows + 1)
    if sizes != expected:
        raise IndexFormatError(
            f"{TRIE_FILE}: expected {expected} child_begin, row_begin and tail_begin, got {sizes}"
        )
    ends = (child_begin[-1], row_begin[-1], tail_begin[0], tail_begin[-1])
    expected_ends = (counts.nodes, counts.rows, counts.nodes, len(token))
    if ends != expected_ends:
        found = ", ".join(str(end) for end in ends)
        raise IndexFormatError(
            f"{TRIE_FILE}: nodes, rows and tails begin or end at {found}, expected {expected_ends}"
        )
    return TrieArrays(token, child_begin, row_begin, tail_begin, counts.depth, counts.max_children)


def _only_list(table: pa.Table, name: str) -> npt.NDArray[np.integer]:
    """Return the values of the one list of a column."""
    lists = single_chunk(table, TRIE_FILE, name)
    values = lists.values
    if lists.offsets.to_pylist() != [0, len(values)]:
        raise IndexFormatError(f"{TRIE_FILE}: column {name!r} is more than one list")
    return as_numpy(values)


def read_entities(data: pa.Buffer, manifest: Manifest) -> EntityTable:
    """Return the entities."""
    stored = read_schema(data, ENTITIES_FILE)
    fields = [_stored_field(stored, column.name, column.type) for column in manifest.metadata]
    schema = entities_schema(manifest.stored_ids, manifest.stored_aliases, fields)
    return EntityTable(
        read_table(data, ENTITIES_FILE, [schema], manifest.counts.entities), manifest.columns, ENTITIES_FILE
    )


def _stored_field(stored: pa.Schema, name: str, kind: MetadataType) -> pa.Field:
    """Return the field a metadata column must have: strings may be dictionary-encoded in the file."""
    at = stored.get_field_index(name)
    if kind == "string" and at >= 0 and pa.types.is_dictionary(stored.field(at).type):
        for size in (1 << 8, 1 << 16):
            field = metadata_field(name, kind, size)
            if field.type == stored.field(at).type:
                return field
    return metadata_field(name, kind)


def read_postings(data: pa.Buffer | None, manifest: Manifest) -> Postings | None:
    """Return the postings; None where row r is the title of entity r."""
    counts = manifest.counts
    if data is None:
        if not counts.rows == counts.entities == counts.postings:
            raise IndexFormatError(
                f"{POSTINGS_FILE}: missing, but {counts.rows} rows and {counts.entities} entities "
                "are not one to one"
            )
        return None
    schemas = [postings_schema(smallest_unsigned(largest)) for largest in (1, 1 << 8, 1 << 16)]
    return Postings.from_table(read_table(data, POSTINGS_FILE, schemas, counts.rows), POSTINGS_FILE)


IntArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class RowBucket:
    """The n rows of one length, in lexicographic order."""

    length: int  # tokens per row, end token included
    columns: tuple[IntArray, ...]  # token i of every row, for each i. Shapes: (n,), unsigned.
    ranks: IntArray  # rank of every row, ascending. Shape: (n,), int32.

    @classmethod
    def from_table(cls, length: int, table: pa.Table, name: str) -> RowBucket:
        """Wrap the table of a rows file, zero-copy; IndexFormatError if it is stored in several pieces."""
        columns: tuple[IntArray, ...]
        if length <= MAX_COLUMNAR_LENGTH:
            columns = tuple(as_numpy(single_chunk(table, name, f"t{i}")) for i in range(length))
        else:
            flat = as_numpy(single_chunk(table, name, "tokens").flatten())
            matrix = flat.reshape(-1, length)
            columns = tuple(matrix[:, i] for i in range(length))
        return cls(length, columns, as_numpy(single_chunk(table, name, "rank")))

    def find(self, token_ids: Sequence[int]) -> int:
        """Return the rank of a row of this length; -1 when there is none."""
        low, high = self._alike(token_ids)
        return int(self.ranks[low]) if low < high else -1

    def lower_bound(self, token_ids: Sequence[int]) -> int:
        """Return the number of rows of this length that sort before a row of any length."""
        low, high = self._alike(token_ids)
        return high if self.length < len(token_ids) else low  # a row sorts before its extensions

    def _alike(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Return the places of rows that equal a row as far as both go; [i, i) where it would stand."""
        low, high = 0, len(self.ranks)
        for column, token in zip(self.columns, token_ids, strict=False):
            if not 0 <= token <= np.iinfo(column.dtype).max:
                return (high, high) if token > 0 else (low, low)
            low, high = _equal_range(column, low, high, token)
            if low == high:
                break
        return low, high


def _equal_range(column: IntArray, low: int, high: int, token: int) -> tuple[int, int]:
    """Return the range of places within [low, high), sorted, that hold a token."""
    wanted = column.dtype.type(token)  # another type would copy the column at every search
    part = column[low:high]
    return low + int(np.searchsorted(part, wanted, "left")), low + int(np.searchsorted(part, wanted, "right"))


class RowBuckets:
    """All rows of an index, in one bucket per length; their tokens are at most `largest_token`.

    Every reader of rows raises IndexFormatError for what it meets in them that cannot be.
    """

    def __init__(self, buckets: Sequence[RowBucket], largest_token: int) -> None:
        self._by_length = {bucket.length: bucket for bucket in buckets}
        # The fullest bucket first: a rank is most likely there.
        self._by_size = sorted(buckets, key=lambda bucket: -len(bucket.ranks))
        self.num_rows = sum(len(bucket.ranks) for bucket in buckets)
        self._dtype = self._by_size[0].columns[0].dtype if buckets else np.dtype(np.uint8)
        self._largest_token = largest_token

    def token_ids(self, rank: int) -> tuple[int, ...]:
        """Return the row of a rank; ValueError if there is no such rank."""
        return self.token_ids_of(np.array([rank]))[0]

    def token_ids_of(self, ranks: IntArray) -> list[tuple[int, ...]]:
        """Return the rows of ranks in their order, faster than one by one; ValueError if one has none."""
        rows: list[tuple[int, ...]] = [()] * len(ranks)
        missing = np.arange(len(ranks))
        for bucket in self._by_size:
            if not len(missing):
                break
            wanted = ranks[missing]
            # Another type would copy the bucket's ranks; a number that it cannot hold has no row.
            at = np.searchsorted(bucket.ranks, np.clip(wanted, -1, self.num_rows).astype(bucket.ranks.dtype))
            here = np.flatnonzero(at < len(bucket.ranks))
            here = here[bucket.ranks[at[here]] == wanted[here]]
            tokens = np.stack([column[at[here]] for column in bucket.columns], axis=1)
            if tokens.max(initial=0) > self._largest_token:  # a model has no embedding of it
                most = f"at most {self._largest_token}, got {tokens.max()}"
                raise IndexFormatError(f"{rows_file(bucket.length)}: a token: expected {most}")
            for place, row in zip(missing[here].tolist(), tokens.tolist(), strict=True):
                rows[place] = tuple(row)
            missing = np.delete(missing, here)
        if len(missing):
            rank = int(ranks[missing[0]])
            if 0 <= rank < self.num_rows:
                raise IndexFormatError(f"{ROWS_DIR}: no row has rank {rank}")
            raise ValueError(f"rank: expected 0 <= rank < {self.num_rows}, got {rank}")
        return rows

    def find(self, token_ids: Sequence[int]) -> int:
        """Return the rank of a row; -1 when there is none."""
        bucket = self._by_length.get(len(token_ids))
        return -1 if bucket is None else bucket.find(token_ids)

    def lower_bound(self, token_ids: Sequence[int]) -> int:
        """Return the number of rows that sort before a row, which is its rank if it is there."""
        return sum(bucket.lower_bound(token_ids) for bucket in self._by_size)

    def slice(self, begin: int, end: int) -> tuple[IntArray, IntArray]:
        """Return a copy of the rows of ranks begin … end - 1, in order of rank.

        Returns:
            tokens: The rows, concatenated. Shape: (total tokens,).
            offsets: Row i is tokens[offsets[i] : offsets[i + 1]]. Shape: (end - begin + 1,), int64.

        Raises:
            IndexFormatError: a rank among them has no row.
        """
        spans: list[tuple[RowBucket, int, int]] = []
        for bucket in self._by_size:
            low, high = np.searchsorted(bucket.ranks, np.array([begin, end], dtype=bucket.ranks.dtype))
            spans.append((bucket, int(low), int(high)))
        return self._gathered(begin, end, spans)

    def flat(self) -> tuple[IntArray, IntArray]:
        """Return `slice` of all rows; IndexFormatError unless the ranks are a permutation of 0 … R - 1."""
        # As many ranks as rows, so a missing one means that another is double.
        return self._gathered(0, self.num_rows, [(b, 0, len(b.ranks)) for b in self._by_size])

    def _gathered(
        self, begin: int, end: int, spans: Sequence[tuple[RowBucket, int, int]]
    ) -> tuple[IntArray, IntArray]:
        lengths = np.zeros(end - begin, dtype=np.int64)
        for bucket, low, high in spans:
            ranks = bucket.ranks[low:high]
            if len(ranks) and (ranks.min() < begin or ranks.max() >= end):
                raise IndexFormatError(f"{rows_file(bucket.length)}: a rank is outside {begin} … {end - 1}")
            lengths[ranks - begin] = bucket.length
        if (lengths == 0).any():
            raise IndexFormatError(f"{ROWS_DIR}: no row has rank {begin + int((lengths == 0).argmax())}")
        offsets = np.zeros(end - begin + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        tokens: IntArray = np.empty(int(offsets[-1]), dtype=self._dtype)
        for bucket, low, high in spans:
            starts = offsets[bucket.ranks[low:high] - begin]
            for i, column in enumerate(bucket.columns):
                tokens[starts + i] = column[low:high]
        return tokens, offsets
