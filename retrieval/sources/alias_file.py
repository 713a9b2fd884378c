"""Joins a second file of aliases to records: pairs of an entity and a further form, many to many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from genret.retrieval.errors import SourceError
from genret.retrieval.index.layout import ENTITY_ID, TITLE
from genret.retrieval.index.manifest import FileEntry
from genret.retrieval.normalize import normalize
from genret.retrieval.sources.columns import find_entity_columns
from genret.retrieval.sources.records import (
    Cell,
    Record,
    Refusal,
    RejectReason,
    Rejects,
    RowChunk,
    name_text,
    parsed_rows,
    refuse_wrong_width,
    resolved_text,
)
from genret.retrieval.sources.row_readers import open_rows
from genret.retrieval.sources.source_files import FileState, digest_file, display_name, is_read_once

ALIAS = "alias"
_PAIRS_AT_ONCE = 1 << 16


def key_hash(key: str) -> int:
    """Return the 64-bit hash by which aliases find their entities: xxh3_64 of the UTF-8 text."""
    return int(xxhash.xxh3_64_intdigest(key.encode()))


class AliasFile:
    """Aliases of a second file, in memory: some 32 bytes beside the two texts for each alias.

    The file is regular: CSV or TSV, JSON Lines or Parquet, plain or compressed, with the columns `alias` and
    `entity_id` or `title` (in any case). The text policy is that of catalogues. Far more than `max_bad_rows`
    bad rows end reading at once.

    Attributes:
        name: Name of the file in messages.
        by_id: Whether it names entities by id; else by title.
        entry: Size and digest of the file.

    Raises:
        SourceError: the file cannot be used.
    """

    def __init__(self, path: str | Path, max_bad_rows: int = 0, unescape_html: bool = False) -> None:
        self.name = display_name(path)
        if is_read_once(path):
            raise SourceError(f"{self.name}: a file of aliases must be a regular file")
        state = FileState.of(path)
        self._rejects = Rejects(self.name, max_bad_rows)
        self._unescape_html = unescape_html
        reader = open_rows(path, "auto", (ENTITY_ID, TITLE, ALIAS))
        try:
            alias, key, self.by_id = find_entity_columns(reader.names, ALIAS, "aliases", self.name)
            reader.restrict(sorted((key, alias)), ignore_others=True, lists=(alias,))
            self._collect(self._pairs(reader.chunks(0), len(reader.names), key, alias))
        finally:
            reader.close()
        if state is not None:
            state.check(path)
        self.entry: FileEntry = digest_file(path)

    def check_join(self, has_ids: bool) -> None:
        """Raise a `SourceError` if the file names ids and the source has none."""
        if self.by_id and not has_ids:
            raise SourceError(
                f"{self.name}: the aliases name entities by entity_id, but the source has no ids; "
                "name them by title"
            )

    def join(self, records: Sequence[Record]) -> list[Record]:
        """Return the records with their aliases from this file behind their own, in the order of the file."""
        keys = [r.entity_id if self.by_id and r.entity_id is not None else r.title for r in records]
        hashes = np.fromiter(map(key_hash, keys), dtype=np.uint64, count=len(keys))
        begin, end = (np.searchsorted(self._hashes, hashes, side) for side in ("left", "right"))
        counts = end - begin
        if not counts.any():
            return list(records)
        owners = np.repeat(np.arange(len(records)), counts)
        numbers = np.arange(len(owners)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        found_keys, found = (
            array.take(pa.array(numbers)).to_pylist() for array in (self._keys, self._aliases)
        )
        more: dict[int, list[str]] = {}
        for owner, key, alias in zip(owners.tolist(), found_keys, found, strict=True):
            if key == keys[owner]:  # else another key of the same hash
                more.setdefault(owner, []).append(alias)
        joined = list(records)
        for owner, aliases in more.items():
            record = records[owner]
            forms = dict.fromkeys((*record.aliases, *aliases))
            forms.pop(record.title, None)
            joined[owner] = record._replace(aliases=tuple(forms))
        return joined

    def reject_unknown(self, key_hashes: npt.NDArray[np.uint64], rejects: Rejects, file: int) -> None:
        """Note this file's bad rows, and the aliases without an entity, under the number `file`.

        `key_hashes` are the `key_hash` of all known keys, ascending. Shape: (N,).
        """
        for row in self._rejects.rows:
            rejects.append(replace(row, file=file))
        begin, end = (np.searchsorted(key_hashes, self._hashes, side) for side in ("left", "right"))
        unknown = np.flatnonzero(begin == end)
        for number in unknown[np.argsort(self._lines[unknown], kind="stable")].tolist():
            detail = f"{ENTITY_ID if self.by_id else TITLE} {self._keys[number].as_py()!r}"
            alias = self._aliases[number].as_py()
            rejects.add(int(self._lines[number]), RejectReason.UNKNOWN_ENTITY, alias, detail, file)

    def _pairs(
        self, chunks: Iterator[RowChunk], count: int, key: int, alias: int
    ) -> Iterator[tuple[int, str, str]]:
        """Yield line, key and alias of every good row."""

        def parse(line: int, row: Sequence[Cell]) -> tuple[int, str, list[str]]:
            refuse_wrong_width(row, count)
            return line, self._key_of(row[key]), self._forms_of(row[alias])

        for chunk in chunks:
            for line, entity, forms in parsed_rows(chunk, parse, self._rejects):
                for form in forms:
                    yield line, entity, form

    def _key_of(self, cell: Cell) -> str:
        key = normalize(name_text(cell, ENTITY_ID)) if self.by_id else self._name(cell, TITLE)
        if not key:
            raise Refusal(RejectReason.NO_ENTITY_ID if self.by_id else RejectReason.NO_TITLE)
        return key

    def _forms_of(self, cell: Cell) -> list[str]:
        cells = cell if isinstance(cell, list) else [cell]
        forms = [self._name(item, ALIAS) for item in cells]
        if not all(forms) or not forms:
            raise Refusal(RejectReason.NO_ALIAS)
        return forms

    def _name(self, cell: Cell, field: str) -> str:
        text = name_text(cell, field)
        return normalize(resolved_text(text) if self._unescape_html else text)

    def _collect(self, pairs: Iterator[tuple[int, str, str]]) -> None:
        text = pa.large_string()
        keys, aliases = [pa.array([], type=text)], [pa.array([], type=text)]
        hashes, lines = [np.empty(0, dtype=np.uint64)], [np.empty(0, dtype=np.int64)]
        while some := list(islice(pairs, _PAIRS_AT_ONCE)):
            keys.append(pa.array([key for _, key, _ in some], type=text))
            aliases.append(pa.array([alias for _, _, alias in some], type=text))
            hashes.append(np.array([key_hash(key) for _, key, _ in some], dtype=np.uint64))
            lines.append(np.array([line for line, _, _ in some], dtype=np.int64))
        self._hashes = np.concatenate(hashes)
        order = np.argsort(self._hashes, kind="stable")
        self._hashes = self._hashes[order]
        self._lines = np.concatenate(lines)[order]
        self._keys = pa.concat_arrays(keys).take(pa.array(order))
        self._aliases = pa.concat_arrays(aliases).take(pa.array(order))
