"""Making the table of names of an index, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import marisa_trie
import numpy as np
import numpy.typing as npt

from retrieval.index.layout import ALIASES, ENTITY_BATCH_ROWS, TITLE
from retrieval.index.reader import Index
from retrieval.linking.finding.folding import fold_name
from retrieval.linking.finding.name_table import AS_FOLDED, WITHOUT_CAPITALS, NameTable


def build_table(index: Index) -> NameTable:
    """Read the index's titles and aliases and make their table.

    The names are read three times, one record batch at a time: what is held beside a batch is the table
    itself, 16 bytes per name, and what the tries need while they are built.
    """
    shape = _Shape()
    names = marisa_trie.Trie(shape.watch(folded for _, folded, _ in _names(index)))
    keys, entities, written = _postings(index, names)
    offsets = np.zeros(len(names) + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=len(names)), out=offsets[1:])
    del keys  # 8 bytes per name, and the next trie is the largest thing there is
    spellings = marisa_trie.Trie(spelling for _, folded, spelling in _names(index) if spelling != folded)
    return NameTable(
        names=names,
        spellings=spellings,
        offsets=offsets,
        entities=entities,
        written=written,
        max_chars=shape.max_chars,
        first_marks="".join(sorted(c for c in shape.firsts if not (c.isalnum() or c == "_"))),
    )


class _Shape:
    """What the finder needs to know of all names, seen as they pass."""

    def __init__(self) -> None:
        self.max_chars = 0
        self.firsts: set[str] = set()

    def watch(self, names: Iterator[str]) -> Iterator[str]:
        for name in names:
            self.max_chars = max(self.max_chars, len(name))
            self.firsts.add(name[0])
            yield name


def _names(index: Index) -> Iterator[tuple[int, str, str]]:
    """Yield entity number, folded name, and the name folded but for its case, of all titles and aliases."""
    for begin in range(0, index.num_entities, ENTITY_BATCH_ROWS):
        batch = index.entities.slice(begin, min(begin + ENTITY_BATCH_ROWS, index.num_entities))
        titles = batch.column(TITLE).to_pylist()
        aliases = batch.column(ALIASES).to_pylist() if ALIASES in batch.column_names else None
        for at, title in enumerate(titles):
            for name in (title, *aliases[at]) if aliases is not None and aliases[at] else (title,):
                if folded := fold_name(name):
                    yield begin + at, folded, fold_name(name, keep_case=True)


def _postings(
    index: Index, names: marisa_trie.Trie
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return keys and entities, ascending by both and without repetition, and the bits about spellings."""
    written = np.zeros(len(names), dtype=np.uint8)
    parts: list[npt.NDArray[np.int64]] = []
    pairs: list[int] = []
    for entity, folded, spelling in _names(index):
        key = names[folded]
        written[key] |= (AS_FOLDED if spelling == folded else 0) | (
            WITHOUT_CAPITALS if spelling == spelling.lower() else 0
        )
        pairs.append(key << 32 | entity)
        if len(pairs) == ENTITY_BATCH_ROWS:
            parts.append(np.array(pairs, dtype=np.int64))
            pairs.clear()
    parts.append(np.array(pairs, dtype=np.int64))
    every = np.concatenate(parts)
    parts.clear()
    every.sort()
    if len(every):
        every = every[np.concatenate(([True], every[1:] != every[:-1]))]
    return every >> 32, (every & 0xFFFFFFFF).astype(np.int32), written
