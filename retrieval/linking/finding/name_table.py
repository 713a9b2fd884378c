"""`NameTable`: the names of an index, their spellings, how likely they are, and which entities have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import marisa_trie
import numpy as np
import numpy.typing as npt

from retrieval.index.layout import ALIASES, ENTITY_BATCH_ROWS, TITLE
from retrieval.index.reader import Index
from retrieval.linking.finding.folding import fold_name
from retrieval.linking.finding.word_counts import WordCounts

# Bits of `NameTable.written`.
AS_FOLDED = 1  # some entity writes the name as it is folded
WITHOUT_CAPITALS = 2  # some entity writes the name without a capital letter
CAPITAL_BY_CUSTOM = 4  # some entity writes it with the capital alone that all names begin with


@dataclass(frozen=True, slots=True)
class NameTable:
    """The titles and aliases of an index, folded. A key is the number of a folded name.

    K keys, P pairs of a key and an entity. `word_counts.Evidence` says what the last four arrays hold; of
    several spellings, the largest value or every bit.

    Attributes:
        names: Folded name -> key.
        spellings: Names as they are written, folded but for their case, where that differs from the folded
            name.
        offsets: Entities of key k are entities[offsets[k]:offsets[k + 1]]. Shape: (K + 1,), int64.
        entities: Entity numbers, ascending within a key. Shape: (P,), int32.
        written: Bits about the spellings of a key. Shape: (K,), uint8.
        small: Words that may begin with a small letter. Shape: (K,), uint8.
        weight: Evidence for the name. Shape: (K,), float16.
        start: The same for a capital at the start of a sentence. Shape: (K,), float16.
        part: Evidence for a longer name around it. Shape: (K,), float16.
        max_chars: Length of the longest folded name.
        first_marks: Characters, neither letters nor digits, that names begin with.
    """

    names: marisa_trie.Trie
    spellings: marisa_trie.Trie
    offsets: npt.NDArray[np.int64]
    entities: npt.NDArray[np.int32]
    written: npt.NDArray[np.uint8]
    small: npt.NDArray[np.uint8]
    weight: npt.NDArray[np.float16]
    start: npt.NDArray[np.float16]
    part: npt.NDArray[np.float16]
    max_chars: int
    first_marks: str

    def key_of(self, folded: str) -> int | None:
        """Return the key of a folded name, None where nobody is called so."""
        key: int | None = self.names.get(folded)
        return key

    def num_entities(self, key: int) -> int:
        """Return how many entities have a name."""
        num: int = self.offsets.item(key + 1) - self.offsets.item(key)
        return num

    def entities_of(self, key: int) -> npt.NDArray[np.int32]:
        """Return the numbers of the entities that have a name, ascending."""
        return self.entities[self.offsets[key] : self.offsets[key + 1]]

    def is_written(self, key: int, folded: str, text: str) -> bool:
        """Whether some entity writes a name in the letter case of `text`.

        Args:
            key: Of the name.
            folded: The folded name.
            text: A text that is folded like the name.
        """
        spelling = fold_name(text, keep_case=True)
        if spelling == folded:
            return bool(self.written[key] & AS_FOLDED)
        return spelling in self.spellings


def build_table(index: Index) -> NameTable:
    """Read the index's titles and aliases and make their table.

    The names are read three times, one record batch at a time: what is held beside a batch is the table
    itself, 16 bytes per name, the counts of all words, and what the tries need while they are built.
    """
    shape = _Shape()
    names = marisa_trie.Trie(shape.watch(_names(index)))
    evidence = _EvidenceArrays(len(names))
    keys, entities = _postings(index, names, shape.words, evidence)
    offsets = np.zeros(len(names) + 1, dtype=np.int64)
    np.cumsum(np.bincount(keys, minlength=len(names)), out=offsets[1:])
    del keys  # 8 bytes per name, and the next trie is the largest thing there is
    spellings = marisa_trie.Trie(spelling for _, folded, spelling in _names(index) if spelling != folded)
    return NameTable(
        names=names,
        spellings=spellings,
        offsets=offsets,
        entities=entities,
        written=evidence.written,
        small=evidence.small,
        weight=evidence.weight,
        start=evidence.start,
        part=evidence.part,
        max_chars=shape.max_chars,
        first_marks="".join(sorted(c for c in shape.firsts if not (c.isalnum() or c == "_"))),
    )


class _Shape:
    """What has to be known of all names, seen as they pass."""

    def __init__(self) -> None:
        self.max_chars = 0
        self.firsts: set[str] = set()
        self.words = WordCounts()

    def watch(self, names: Iterator[tuple[int, str, str]]) -> Iterator[str]:
        for _, folded, spelling in names:
            self.max_chars = max(self.max_chars, len(folded))
            self.firsts.add(folded[0])
            self.words.add(spelling)
            yield folded


class _EvidenceArrays:
    """The evidence for every key, of all of its spellings."""

    def __init__(self, num_keys: int) -> None:
        self.written, self.small = (np.zeros(num_keys, dtype=np.uint8) for _ in range(2))
        self.weight, self.start, self.part = (np.full(num_keys, -np.inf, dtype=np.float16) for _ in range(3))

    def add(self, key: int, folded: str, spelling: str, words: WordCounts) -> None:
        found = words.weigh(spelling)
        self.written[key] |= (
            (AS_FOLDED if spelling == folded else 0)
            | (WITHOUT_CAPITALS if spelling == spelling.lower() else 0)
            | (CAPITAL_BY_CUSTOM if found.by_custom else 0)
        )
        self.small[key] |= found.small
        self.weight[key] = max(self.weight[key], found.weight)
        self.start[key] = max(self.start[key], found.start)
        self.part[key] = max(self.part[key], found.part)


def _names(index: Index) -> Iterator[tuple[int, str, str]]:
    """Yield entity number, folded name, and the name folded but for its case, of all titles and aliases."""
    for begin in range(0, index.num_entities, ENTITY_BATCH_ROWS):
        batch = index.entities.slice(begin, min(begin + ENTITY_BATCH_ROWS, index.num_entities))
        titles = batch.column(TITLE).to_pylist()
        aliases = batch.column(ALIASES).to_pylist() if ALIASES in batch.column_names else None
        for at, title in enumerate(titles):
            for name in (title, *aliases[at]) if aliases is not None and aliases[at] else (title,):
                spelling = fold_name(name, keep_case=True)
                folded = spelling.lower() if spelling.isascii() else fold_name(name)
                if folded:
                    yield begin + at, folded, spelling


def _postings(
    index: Index, names: marisa_trie.Trie, words: WordCounts, evidence: _EvidenceArrays
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return keys and entities, ascending by both and without repetition, and weigh every name."""
    parts: list[npt.NDArray[np.int64]] = []
    pairs: list[int] = []
    for entity, folded, spelling in _names(index):
        key = names[folded]
        evidence.add(key, folded, spelling, words)
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
    return every >> 32, (every & 0xFFFFFFFF).astype(np.int32)
