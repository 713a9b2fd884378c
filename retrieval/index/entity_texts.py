"""The texts of entities that get vectors: titles, aliases and the columns asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.errors import InputError
from genret.retrieval.index.arrow_files import as_arrow, as_numpy
from genret.retrieval.index.layout import ALIASES, TITLE
from genret.retrieval.index.reader import Index

IntArray = npt.NDArray[np.int64]

# Entities read at once.
_BLOCK = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class TextBatch:
    """Some texts as they are stored, and the numbers of their entities. Shape: (m,), int64."""

    numbers: IntArray
    texts: list[str]


class EntityTexts:
    """The texts of the entities of an index: title, aliases, values of some metadata columns.

    Blank texts are left out, and repeated texts of one entity.

    Args:
        index: An open index.
        columns: Names of metadata columns of strings.
        has_names: Whether titles and aliases are among the texts.

    Raises:
        InputError: a column is missing or holds no strings; names those that do.
    """

    def __init__(self, index: Index, columns: Sequence[str] = (), has_names: bool = True) -> None:
        strings = [name for name in index.metadata_columns if index.metadata_types[name] == "string"]
        for name in columns:
            if name not in strings:
                known = f"expected one of {strings}" if strings else "the index has no columns of strings"
                raise InputError("vector_columns", f"{known}, got {name!r}")
        self._entities = index.entities
        self.columns = tuple(dict.fromkeys(columns))
        self._has_names = has_names

    @cached_property
    def count(self) -> int:
        """Number of texts; the first time they are all read."""
        return sum(len(numbers) for numbers, _ in self._blocks())

    def batches(self, size: int = 16_384) -> Iterator[TextBatch]:
        """Yield all texts in the order of their entities, at most `size` at a time."""
        for numbers, texts in self._blocks():
            for begin in range(0, len(numbers), size):
                part = slice(begin, begin + size)
                yield TextBatch(numbers[part], texts[part].to_pylist())

    def of(self, entities: Sequence[int] | npt.NDArray[np.integer]) -> TextBatch:
        """Return the texts of some entities, in the order given; ValueError if there is no such entity."""
        wanted = np.asarray(entities, dtype=np.int64)
        if not len(wanted):
            return TextBatch(wanted, [])
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= len(self._entities):
            got = low if low < 0 else high
            raise ValueError(f"entity number: expected 0 <= number < {len(self._entities)}, got {got}")
        places, texts = self._texts(self._entities.take(wanted))
        return TextBatch(wanted[places], texts.to_pylist())

    def sample(self, size: int) -> TextBatch:
        """Return at most `size` texts, of entities spread evenly over the index; always the same ones."""
        chosen = self.of(_spread(len(self._entities), size))
        kept = _spread(len(chosen.texts), size)
        return TextBatch(chosen.numbers[kept], [chosen.texts[i] for i in kept])

    def _blocks(self) -> Iterator[tuple[IntArray, pa.Array]]:
        for begin in range(0, len(self._entities), _BLOCK):
            end = min(begin + _BLOCK, len(self._entities))
            places, texts = self._texts(self._entities.slice(begin, end))
            yield begin + places, texts

    def _texts(self, table: pa.Table) -> tuple[IntArray, pa.Array]:
        """Return the row of the table of each text, and the texts: ordered by row, titles first."""
        every: IntArray = np.arange(table.num_rows, dtype=np.int64)
        rows, texts = ([every], [_plain(table.column(TITLE))]) if self._has_names else ([], [])
        if self._has_names and ALIASES in table.column_names:
            aliases = table.column(ALIASES).combine_chunks()
            rows.append(as_numpy(pc.list_parent_indices(aliases)).astype(np.int64))
            texts.append(_plain(pc.list_flatten(aliases)))
        for name in self.columns:
            rows.append(every)
            texts.append(_plain(table.column(name)))
        if not texts:
            return every[:0], pa.array([], pa.string())
        row, text = np.concatenate(rows), pa.concat_arrays(texts)
        letters = pc.utf8_length(pc.utf8_trim_whitespace(text))
        kept = as_numpy(pc.indices_nonzero(letters)).astype(np.int64)  # without the nulls
        if len(texts) > 1:
            codes = as_numpy(text.dictionary_encode("encode").indices).astype(np.int64)
            pairs = row[kept] * (len(text) + 1) + codes[kept]
            _, first = np.unique(pairs, return_index=True)  # the first of each, for unique sorts stably
            kept = kept[np.sort(first)]
            kept = kept[np.argsort(row[kept], kind="stable")]
        if len(texts) > 1 or len(kept) < len(text):
            text = text.take(as_arrow(kept))
        return row[kept], text


def _plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column of strings in one piece, without a dictionary."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _spread(total: int, size: int) -> IntArray:
    """Return `size` of the numbers 0 … total - 1, evenly spread; all of them where there are no more."""
    if size >= total:
        return np.arange(total, dtype=np.int64)
    return np.arange(size, dtype=np.int64) * total // size
