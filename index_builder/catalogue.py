"""What was read, in flat arrays: entities as Arrow columns, token rows as one long array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from retrieval.sources import Record

IntArray = npt.NDArray[np.signedinteger]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """E records with F forms between them, in the order of the source.

    Attributes:
        titles: Shape: (E,), large_string.
        entity_ids: Shape: (E,), large_string; None when the source has no such column.
        aliases: Shape: (E,), large_list<large_string>.
        metadata: One large_string column per metadata column, nulls for empty cells.
        lines: Line number of each record. Shape: (E,), int64.
        form_entity: Record of each form, ascending. Shape: (F,), int32.
        form_number: 0 for the title, n for the n-th alias. Shape: (F,), int32.
        tokens: Rows of all forms, concatenated. Shape: (total tokens,), unsigned.
        offsets: Row of form f is tokens[offsets[f] : offsets[f + 1]]. Shape: (F + 1,), int64.
    """

    titles: pa.Array
    entity_ids: pa.Array | None
    aliases: pa.Array
    metadata: tuple[pa.Array, ...]
    lines: IntArray
    form_entity: IntArray
    form_number: IntArray
    tokens: IntArray
    offsets: IntArray


class CatalogueBuilder:
    """Collects batches of records and rows compactly.

    Args:
        has_ids: Whether records have ids.
        num_metadata: Metadata columns per record.
        dtype: Integer type of tokens.
    """

    def __init__(self, has_ids: bool, num_metadata: int, dtype: npt.DTypeLike) -> None:
        self._has_ids = has_ids
        self._dtype = dtype
        self._titles: list[pa.Array] = []
        self._ids: list[pa.Array] = []
        self._aliases: list[pa.Array] = []
        self._metadata: list[list[pa.Array]] = [[] for _ in range(num_metadata)]
        self._lines: list[IntArray] = []
        self._forms: list[IntArray] = []
        self._tokens: list[IntArray] = []
        self._lengths: list[IntArray] = []

    def add(self, records: Sequence[Record], rows: Sequence[Sequence[int]], forms: Sequence[int]) -> None:
        """Add records with the rows of all their forms.

        Args:
            records: Records.
            rows: Rows, for each record its title's and then its aliases'.
            forms: Number of forms of each record.
        """
        if not records:
            return
        text = pa.large_string()
        self._titles.append(pa.array([r.title for r in records], type=text))
        self._aliases.append(pa.array([r.aliases for r in records], type=pa.large_list(text)))
        if self._has_ids:
            self._ids.append(pa.array([r.entity_id for r in records], type=text))
        for i, column in enumerate(self._metadata):
            column.append(pa.array([r.metadata[i] for r in records], type=text))
        self._lines.append(np.fromiter((r.line for r in records), dtype=np.int64, count=len(records)))
        self._forms.append(np.array(forms, dtype=np.int32))
        lengths = np.fromiter(map(len, rows), dtype=np.int32, count=len(rows))
        self._lengths.append(lengths)
        flat = np.fromiter(chain.from_iterable(rows), dtype=self._dtype, count=int(lengths.sum()))
        self._tokens.append(flat)

    def finish(self) -> Catalogue:
        """Return everything collected; the builder is empty afterwards."""
        text = pa.large_string()
        forms = _concatenate(self._forms, np.int32)
        lengths = _concatenate(self._lengths, np.int32)
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        first_form = np.cumsum(forms) - forms
        return Catalogue(
            titles=_join(self._titles, text),
            entity_ids=_join(self._ids, text) if self._has_ids else None,
            aliases=_join(self._aliases, pa.large_list(text)),
            metadata=tuple(_join(column, text) for column in self._metadata),
            lines=_concatenate(self._lines, np.int64),
            form_entity=np.repeat(np.arange(len(forms), dtype=np.int32), forms),
            form_number=(np.arange(len(lengths)) - np.repeat(first_form, forms)).astype(np.int32),
            tokens=_concatenate(self._tokens, self._dtype),
            offsets=offsets,
        )


def _concatenate(parts: list[IntArray], dtype: npt.DTypeLike) -> IntArray:
    joined: IntArray = np.concatenate([np.empty(0, dtype=dtype), *parts])
    parts.clear()
    return joined


def _join(parts: list[pa.Array], arrow_type: pa.DataType) -> pa.Array:
    joined = pa.concat_arrays(parts) if parts else pa.array([], type=arrow_type)
    parts.clear()
    return joined
