"""Writing the files of one version. Bytes depend on the data alone: no times, no names of places."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from decoding.trie_arrays import TrieArrays
from index_builder.assembly import Assembly
from index_builder.catalogue import Catalogue
from index_builder.duplicates import Identities
from retrieval.index.digests import digest_file
from retrieval.index.layout import (
    ALIASES,
    ENTITIES_FILE,
    ENTITY_BATCH_ROWS,
    ENTITY_ID,
    MAX_COLUMNAR_LENGTH,
    POSTINGS_FILE,
    ROWS_DIR,
    TITLE,
    TRIE_FILE,
    entities_schema,
    metadata_field,
    postings_schema,
    rows_file,
    rows_schema,
    smallest_unsigned,
    token_type,
    trie_schema,
)
from retrieval.index.manifest import Bucket, FileEntry


class VersionWriter:
    """Writes data files into a staging directory and remembers their sizes and digests.

    Args:
        folder: The staging directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[FileEntry] = []

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Entries of the files written so far, by name."""
        return tuple(sorted(self._files, key=lambda file: file.name))

    def write_rows(self, assembly: Assembly, vocab_size: int) -> tuple[Bucket, ...]:
        """Write one file per row length.

        Returns:
            The buckets, by length.
        """
        (self._folder / ROWS_DIR).mkdir()
        lengths = np.diff(assembly.offsets)
        tokens = token_type(vocab_size)
        buckets: list[Bucket] = []
        for length in np.unique(lengths).tolist():
            ranks = np.flatnonzero(lengths == length)
            starts = assembly.offsets[ranks]
            columns: list[pa.Array]
            if length <= MAX_COLUMNAR_LENGTH:
                columns = [pa.array(assembly.tokens[starts + i], type=tokens) for i in range(length)]
            else:
                matrix = assembly.tokens[starts[:, None] + np.arange(length)]
                item = pa.array(matrix.reshape(-1), type=tokens)
                columns = [pa.FixedSizeListArray.from_arrays(item, type=_list_type(length, tokens))]
            columns.append(pa.array(ranks.astype(np.int32)))
            schema = rows_schema(length, tokens)
            self._write(rows_file(length), schema, [pa.record_batch(columns, schema=schema)])
            buckets.append(Bucket(length, len(ranks)))
        return tuple(buckets)

    def write_trie(self, trie: TrieArrays, vocab_size: int) -> None:
        """Write the transitions."""
        schema = trie_schema(token_type(vocab_size))
        arrays = (trie.token, trie.child_begin, trie.row_begin, trie.tail_begin)
        columns = [
            pa.LargeListArray.from_arrays(
                pa.array([0, len(array)], type=pa.int64()),
                pa.array(array, type=field.type.value_type),
                type=field.type,
            )
            for array, field in zip(arrays, schema, strict=True)
        ]
        self._write(TRIE_FILE, schema, [pa.record_batch(columns, schema=schema)])

    def write_entities(
        self, catalogue: Catalogue, identities: Identities, metadata: tuple[str, ...], assembly: Assembly
    ) -> pa.Schema:
        """Write the entities in their canonical order.

        Returns:
            The schema used: ids and aliases are stored only where they say something.
        """
        has_aliases = len(catalogue.aliases.flatten()) > 0
        columns = {TITLE: catalogue.titles, **dict(zip(metadata, catalogue.metadata, strict=True))}
        if identities.entity_ids is not None:
            columns[ENTITY_ID] = identities.entity_ids
        if has_aliases:
            columns[ALIASES] = catalogue.aliases
        fields = [metadata_field(name, "string") for name in metadata]
        schema = entities_schema(identities.entity_ids is not None, has_aliases, fields)
        self._write(ENTITIES_FILE, schema, _entity_batches(columns, schema, assembly.entity_order))
        return schema

    def write_postings(self, assembly: Assembly) -> None:
        """Write rank -> entities, unless row r is entity r throughout."""
        if assembly.one_to_one:
            return
        form_type = smallest_unsigned(int(assembly.posting_form.max()))
        schema = postings_schema(form_type)
        offsets = np.searchsorted(assembly.posting_rank, np.arange(assembly.num_rows + 1))
        list_type = schema.field("postings").type
        values = pa.StructArray.from_arrays(
            [
                pa.array(assembly.posting_entity),
                pa.array(assembly.posting_form.astype(form_type.to_pandas_dtype())),
            ],
            fields=list(list_type.value_type),
        )
        lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=list_type)
        self._write(POSTINGS_FILE, schema, [pa.record_batch([lists], schema=schema)])

    def _write(self, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        path = self._folder / name
        with path.open("wb") as file:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        self._files.append(FileEntry(name, path.stat().st_size, digest_file(path)))


def _entity_batches(
    columns: dict[str, pa.Array], schema: pa.Schema, order: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Iterator[pa.RecordBatch]:
    for begin in range(0, len(order), ENTITY_BATCH_ROWS):
        wanted = pa.array(order[begin : begin + ENTITY_BATCH_ROWS])
        arrays = [columns[field.name].take(wanted).cast(field.type) for field in schema]
        yield pa.record_batch(arrays, schema=schema)


def _list_type(length: int, tokens: pa.DataType) -> pa.DataType:
    return rows_schema(length, tokens).field("tokens").type
