"""The parts of an open version, each read from its mapped file and checked against the manifest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from decoding.trie_arrays import TrieArrays
from retrieval.errors import IndexFormatError
from retrieval.index.arrow_files import as_numpy, read_schema, read_table, single_chunk
from retrieval.index.entities import EntityTable, Postings
from retrieval.index.layout import (
    EMBEDDER_FILE,
    ENTITIES_FILE,
    MANIFEST_FILE,
    NAMES_FILE,
    POSTINGS_FILE,
    PRIOR_FILE,
    QUERIES_FILE,
    RANKING_FILE,
    TEXTS_FILE,
    TITLE_ORDER_FILE,
    TITLE_ORDER_SINCE,
    TRIE_FILE,
    VECTORS_FILE,
    MetadataType,
    entities_schema,
    metadata_field,
    postings_schema,
    rows_schema,
    smallest_unsigned,
    token_type,
    trie_schema,
)
from retrieval.index.manifest import Bucket, Manifest
from retrieval.index.manifest_entries import OLD_VECTOR_METHODS
from retrieval.index.rows import RowBucket


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
    """Return the files that a version may have or not: what it says otherwise decides."""
    embedder = set() if manifest.vectors is None else {EMBEDDER_FILE}
    return {POSTINGS_FILE, RANKING_FILE, PRIOR_FILE, *embedder}


def read_bucket(data: pa.Buffer, bucket: Bucket, manifest: Manifest) -> RowBucket:
    """Return the rows of one length.

    Raises:
        IndexFormatError: the file is not what the manifest says.
    """
    if not 1 <= bucket.length <= manifest.counts.depth:
        raise IndexFormatError(f"{MANIFEST_FILE}: a bucket has length {bucket.length}")
    schema = rows_schema(bucket.length, token_type(manifest.tokenizer.vocab_size))
    table = read_table(data, bucket.file, [schema], bucket.rows)
    return RowBucket.from_table(bucket.length, table, bucket.file)


def read_trie(data: pa.Buffer, manifest: Manifest) -> TrieArrays:
    """Return the transitions, zero-copy.

    Raises:
        IndexFormatError: the file is not what the manifest says.
    """
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
    if values.null_count:
        raise IndexFormatError(f"{TRIE_FILE}: column {name!r} has nulls")
    return as_numpy(values)


def read_entities(data: pa.Buffer, manifest: Manifest) -> EntityTable:
    """Return the entities, zero-copy.

    Raises:
        IndexFormatError: the file is not what the manifest says.
    """
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
    """Return what the rows name, zero-copy; None where row r is the title of entity r.

    Raises:
        IndexFormatError: the file is not what the manifest says, or is missing.
    """
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
