"""A field: texts with their owners, the entities of an index, found by words and by letter trigrams.

A field is one Arrow file with a record batch per block of 65,536 texts, in the order of their owners, written
block by block and mapped for reading. `make_fields` makes those of an index: names, texts, past queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.retrieval.durable import writing
from genret.retrieval.errors import IndexFormatError
from genret.retrieval.evidence.postings import (
    ALL_HASHES,
    BLOCK_TEXTS,
    MAX_TEXT,
    TERMS_VERSION,
    Block,
    Characters,
    FloatArray,
    IntArray,
    Lookup,
    Mask,
    Span,
    TermLists,
    Terms,
    fold_all,
)
from genret.retrieval.index.layout import FIELD_FILES, as_arrow, as_numpy
from genret.retrieval.index.manifest import EvidenceEntry
from genret.retrieval.index.reader import EntityTexts, Index
from genret.retrieval.progress import StepProgress

NAMES, TEXTS, QUERIES = "names", "texts", "queries"
WORDS, LETTERS = "words", "letters"
_LISTS = {"term": pa.uint32(), "begin": pa.uint32(), "text": pa.uint16(), "length": pa.uint8()}
_OWNER, _QUERIES, _COUNTS = "owner", "queries", "counts"

# Characters whose terms are found at once.
_CHARACTERS = 1 << 19
# Memory per word or trigram of a block while its lists are made; a text has at most one per character.
_TERM_BYTES = 44
# Default memory for a block.
DEFAULT_BLOCK_BYTES = 1 << 30
# Entities read at once.
_READ = 16_384

# A past query, and how often it was asked.
Counted = tuple[str, int]


def field_schema(has_queries: bool) -> pa.Schema:
    """Return the schema of a field's file; past queries are also stored themselves."""
    columns = [
        pa.field(f"{kind}_{name}", _lists_of(item), nullable=False)
        for kind in (WORDS, LETTERS)
        for name, item in _LISTS.items()
    ]
    columns.append(pa.field(_OWNER, _lists_of(pa.int32())))
    if has_queries:
        columns.append(pa.field(_QUERIES, _lists_of(pa.list_(pa.field("item", pa.string(), nullable=False)))))
        columns.append(pa.field(_COUNTS, _lists_of(pa.list_(pa.field("item", pa.int32(), nullable=False)))))
    return pa.schema(columns)


def _lists_of(item: pa.DataType) -> pa.DataType:
    return pa.large_list(pa.field("item", item, nullable=False))


def text_blocks(
    batches: Iterable[tuple[IntArray, Sequence[str]]], memory_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of a field of texts with their owners, which ascend and may repeat.

    `memory_bytes` bounds the memory for making the lists of a block, beside the texts; less takes longer.
    """
    schema, done = field_schema(False), 0
    for owner, texts in _blocks(batches):
        yield pa.record_batch(_block_row(owner, texts, done, memory_bytes), schema=schema)
        done += len(texts)


def query_blocks(
    batches: Iterable[tuple[IntArray, Sequence[Sequence[Counted]]]], memory_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of past queries by their ascending owners; the text of an owner is all its queries."""
    schema, done = field_schema(True), 0
    for owner, asked in _blocks(batches):
        texts = ["\n".join(query for query, _ in mine) for mine in asked]
        row = _block_row(owner, texts, done, memory_bytes)
        for at, item in ((0, pa.string()), (1, pa.int32())):
            row.append(_one_list(pa.array([[one[at] for one in mine] for mine in asked], pa.list_(item))))
        yield pa.record_batch(row, schema=pa.schema([*schema])).cast(schema)
        done += len(asked)


def write_blocks(path: Path, blocks: Iterable[pa.RecordBatch], has_queries: bool) -> Iterator[int]:
    """Write the blocks of `text_blocks` or `query_blocks`; yield the number of written texts after each.

    Raises:
        SourceError: the file cannot be written.
    """
    schema, done = field_schema(has_queries), 0
    with writing(path), pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for block in blocks:
            writer.write_batch(block)
            done += len(block.column(f"{WORDS}_length")[0].values)
            yield done


def _block_row(owner: IntArray, texts: Sequence[str], done: int, memory_bytes: int) -> list[pa.Array]:
    """Return the columns of a block that has `done` texts before it."""
    row: list[pa.Array] = []
    for block in _lists_of_texts(texts, memory_bytes):
        row += [_one_list(pa.array(getattr(block, name))) for name in _LISTS]
    # If text n belongs to entity n throughout the block, owners are left out.
    is_plain = np.array_equal(owner, np.arange(done, done + len(owner)))
    owners = _one_list(pa.array(owner.astype(np.int32)))
    row.append(pa.nulls(1, owners.type) if is_plain else owners)
    return row


def _lists_of_texts(texts: Sequence[str], memory_bytes: int) -> list[Block]:
    """Return the lists of words and of letters, made in as many passes over the hashes as memory requires."""
    ends = np.cumsum([min(len(text), MAX_TEXT) + 1 for text in texts])
    passes = -(-_TERM_BYTES * int(ends[-1]) // memory_bytes)
    parts: list[list[Block]] = [[], []]
    for number in range(passes):
        hashes = tuple(ALL_HASHES[1] * n // passes for n in (number, number + 1))
        for kind, terms in zip(parts, _terms_of(texts, ends, (hashes[0], hashes[1])), strict=True):
            kind.append(Block.of(terms, len(texts)))
    return [Block.joined(blocks) for blocks in parts]


def _terms_of(texts: Sequence[str], ends: IntArray, hashes: Span) -> Iterator[Terms]:
    """Yield the words, then the letters of texts, made for a limited number of characters at a time."""
    found: list[list[Terms]] = [[], []]
    begin = 0
    while begin < len(texts):
        done = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, done + _CHARACTERS, side="right")), begin + 1)
        characters = Characters(fold_all(texts[begin:end]))
        for kind, terms in zip(found, (characters.words(hashes), characters.letters(hashes)), strict=True):
            kind.append(Terms(terms.term, terms.text + begin))
        begin = end
    for kind in found:
        joined = [np.concatenate([getattr(terms, name) for terms in kind]) for name in ("term", "text")]
        kind.clear()
        yield Terms(*joined)


_Text = TypeVar("_Text")


def _blocks(batches: Iterable[tuple[IntArray, Sequence[_Text]]]) -> Iterator[tuple[IntArray, list[_Text]]]:
    owners: list[IntArray] = []
    texts: list[_Text] = []
    for owner, some in batches:
        owners.append(owner)
        texts += some
        while len(texts) >= BLOCK_TEXTS:
            every = np.concatenate(owners)
            yield every[:BLOCK_TEXTS], texts[:BLOCK_TEXTS]
            owners, texts = [every[BLOCK_TEXTS:]], texts[BLOCK_TEXTS:]
    if texts:
        yield np.concatenate(owners), texts


def _coarse(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Return weights on a logarithmic scale from 0 to 255."""
    logs = np.log(np.maximum(weights, weights[weights > 0].min()))
    logs -= logs.min()
    coarse: npt.NDArray[np.uint8] = np.round(255 / max(float(logs.max()), 1e-9) * logs).astype(np.uint8)
    return coarse


def _one_list(items: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(
        pa.array([0, len(items)], pa.int64()), items, type=_lists_of(items.type)
    )


class Field:
    """An open field. Safe to use from several threads.

    The owner is the entity of every text, ascending; None: text n belongs to entity n. `queries` are the past
    queries of each text and their counts, if it is made of some. `weights` of entities, at least 0, serve
    `propose`; None: equal.
    """

    def __init__(
        self,
        words: TermLists,
        letters: TermLists,
        owner: npt.NDArray[np.int32] | None,
        queries: tuple[pa.ChunkedArray, pa.ChunkedArray] | None = None,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self.words = words
        self.letters = letters
        self.owner = owner
        self._queries = queries
        self.num_texts = words.num_texts
        self._weight = None
        if weights is not None and (weights > 0).any():
            coarse = _coarse(weights)
            self._weight = coarse[: self.num_texts] if owner is None else coarse[owner]

    @classmethod
    def read(
        cls,
        data: pa.Buffer,
        name: str,
        num_entities: int,
        has_queries: bool = False,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> Self:
        """Open a mapped file of a field, or of past queries; `name` is for messages.

        Raises:
            IndexFormatError: the file is malformed, or its parts do not fit together. The lists themselves
                are not checked: a wrong place in one finds a wrong text, or none.
        """
        batches = stored_blocks(data, name, has_queries)
        words, letters = ([_block_of(batch, kind, name) for batch in batches] for kind in (WORDS, LETTERS))
        for i, (one, other) in enumerate(zip(words, letters, strict=True)):
            is_last = i == len(words) - 1
            if len(one.length) != len(other.length) or not (is_last or len(one.length) == BLOCK_TEXTS):
                raise IndexFormatError(f"{name}: block {i} has another number of texts than it must have")
        sizes = [len(block.length) for block in words]
        owner = _owners(batches, sizes, num_entities, name)
        queries = _queries_of(batches, sizes, name) if has_queries else None
        return cls(TermLists(words), TermLists(letters), owner, queries, weights)

    def look_up(
        self, words: npt.NDArray[np.uint32], letters: npt.NDArray[np.uint32]
    ) -> tuple[Lookup, Lookup]:
        """Return the places of the lists of a query's words and trigrams."""
        return self.words.look_up(words), self.letters.look_up(letters)

    def propose(self, lookups: tuple[Lookup, Lookup], size: int, allowed: Mask | None) -> IntArray:
        """Return the entities of the best texts by words and by trigrams (`TermLists.search`)."""
        found = [
            postings.search(lookup, size, self.owner, allowed, self._weight)[0]
            for postings, lookup in zip((self.words, self.letters), lookups, strict=True)
        ]
        texts = np.concatenate(found)
        return np.unique(texts if self.owner is None else self.owner[texts]).astype(np.int64)

    def scores_of(self, lookups: tuple[Lookup, Lookup], entities: IntArray) -> FloatArray:
        """Return the BM25 scores of entities' texts by words and by trigrams; 0 for entities without text.

        For fields with at most one text per entity. Shape: (len(entities), 2).
        """
        scores = np.zeros((len(entities), 2), np.float32)
        at, has_one = self._texts_of(entities)
        for column, postings, lookup in zip((0, 1), (self.words, self.letters), lookups, strict=True):
            scores[has_one, column] = postings.scores_of(lookup, at[has_one])
        return scores

    def _texts_of(self, entities: IntArray) -> tuple[IntArray, Mask]:
        """Return the number of every entity's text, and whether it has one."""
        if self.owner is None or not self.num_texts:
            return entities, entities < self.num_texts
        at = np.minimum(np.searchsorted(self.owner, entities), self.num_texts - 1)
        return at, self.owner[at] == entities

    def queries_of(self, entities: IntArray) -> list[list[Counted]]:
        """Return the past queries of each entity."""
        at, has_some = self._texts_of(entities)
        if self._queries is None or not has_some.any():
            return [[] for _ in entities]
        places = as_arrow(np.where(has_some, at, 0))
        asked, counts = (column.take(places).to_pylist() for column in self._queries)
        return [
            list(zip(mine, times, strict=True)) if there else []
            for mine, times, there in zip(asked, counts, has_some.tolist(), strict=True)
        ]

    def sample_queries(self, count: int, random: Random) -> list[tuple[int, list[Counted]]]:
        """Draw entities that have past queries; return them in order, with these."""
        places = np.array(sorted(random.sample(range(self.num_texts), min(count, self.num_texts))), np.int64)
        mine = places if self.owner is None else self.owner[places].astype(np.int64)
        return list(zip(mine.tolist(), self.queries_of(mine), strict=True))

    def all_queries(self) -> Iterator[tuple[int, list[Counted]]]:
        """Yield all entities that have past queries, in order, with these."""
        for begin in range(0, self.num_texts, _READ):
            end = min(begin + _READ, self.num_texts)
            mine = np.arange(begin, end) if self.owner is None else self.owner[begin:end]
            yield from zip(mine.tolist(), self.queries_of(mine.astype(np.int64)), strict=True)


def stored_blocks(data: pa.Buffer, name: str, has_queries: bool) -> list[pa.RecordBatch]:
    """Return the blocks of a mapped file; arguments and errors as for `Field.read`."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
        if not reader.schema.equals(field_schema(has_queries)):
            raise IndexFormatError(f"{name}: expected the columns of a field of evidence")
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=has_queries)
        return batches
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise IndexFormatError(f"{name}: not a readable Arrow file: {error}") from error


def _queries_of(
    batches: Sequence[pa.RecordBatch], sizes: Sequence[int], name: str
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    columns = []
    for column in (_QUERIES, _COUNTS):
        item = field_schema(True).field(column).type.value_type
        parts = [_items(batch, column, name) for batch in batches]
        columns.append(pa.chunked_array(parts, item))
        if [len(part) for part in parts] != list(sizes):
            raise IndexFormatError(f"{name}: the {column} of a block are not one list per entity")
    lengths = [pc.list_value_length(column) for column in columns]
    if not lengths[0].equals(lengths[1]) or pc.any(pc.equal(lengths[0], 0)).as_py():
        raise IndexFormatError(f"{name}: an entity has no queries, or not one count for each")
    queries, counts = map(pc.list_flatten, columns)
    if queries.null_count or counts.null_count or pc.any(pc.less(counts, 1)).as_py():
        raise IndexFormatError(f"{name}: a query is missing, or was asked less than once")
    return columns[0], columns[1]


def _items(batch: pa.RecordBatch, column: str, name: str) -> pa.Array:
    """Return the items of the one list in a block's column."""
    lists = batch.column(column)
    if len(lists) != 1 or lists.null_count or lists[0].values.null_count:
        raise IndexFormatError(f"{name}: expected one list of {column} per block, without nulls")
    return lists[0].values


def _block_of(batch: pa.RecordBatch, kind: str, name: str) -> Block:
    parts: list[npt.NDArray[Any]] = [as_numpy(_items(batch, f"{kind}_{part}", name)) for part in _LISTS]
    term, begin, text, length = parts
    is_sound = (
        len(begin) == len(term) + 1
        and 0 < len(length) <= BLOCK_TEXTS
        and int(begin[0]) == 0
        and int(begin[-1]) == len(text)
        and bool((begin[1:] >= begin[:-1]).all())
        and bool((term[1:] > term[:-1]).all())
    )
    if not is_sound:
        raise IndexFormatError(f"{name}: the {kind} of a block do not fit its lists")
    return Block(term, begin, text, length)


def _owners(
    batches: Sequence[pa.RecordBatch], sizes: Sequence[int], num_entities: int, name: str
) -> npt.NDArray[np.int32] | None:
    total = sum(sizes)
    parts, done = [], 0
    for batch, size in zip(batches, sizes, strict=True):
        column = batch.column(_OWNER)
        mine = np.arange(done, done + size, dtype=np.int32)
        if not column.null_count:
            mine = as_numpy(_items(batch, _OWNER, name))
            if len(mine) != size:
                raise IndexFormatError(f"{name}: expected {size} owners in a block, got {len(mine)}")
        parts.append(mine)
        done += size
    if all(batch.column(_OWNER).null_count for batch in batches):
        if total > num_entities:
            raise IndexFormatError(f"{name}: {total} texts of {num_entities} entities, without owners")
        return None
    owner = np.concatenate(parts)
    if int(owner.min()) < 0 or int(owner.max()) >= num_entities or (owner[1:] < owner[:-1]).any():
        raise IndexFormatError(f"{name}: owners are not in order, or not entities of the index")
    return owner


def open_field(index: Index, kind: str) -> Field:
    """Open one field.

    Raises:
        IndexChecksumError: its file differs from the manifest.
        IndexFormatError: the file is malformed, or was made by other rules.
        EvidenceMissingError: the index has no such field.
    """
    file = FIELD_FILES[kind]
    if index.evidence is not None and index.evidence.terms != TERMS_VERSION:
        raise IndexFormatError(
            f"{file}: made by version {index.evidence.terms} of the rules for words and letters, this "
            f"library has version {TERMS_VERSION}; make it anew with: genret update INDEX --evidence all"
        )
    return Field.read(
        index.evidence_file(file),
        file,
        index.num_entities,
        has_queries=kind == QUERIES,
        weights=index.weights if kind == NAMES else None,
    )


# Past queries kept per entity, the most frequent ones.
MAX_QUERIES_PER_ENTITY = 64


def make_fields(
    index: Index,
    columns: Sequence[str],
    queries: Iterable[tuple[int, Sequence[Counted]]] | None,
    folder: Path,
    progress: StepProgress,
    memory_bytes: int = DEFAULT_BLOCK_BYTES,
) -> tuple[EvidenceEntry, tuple[str, ...]]:
    """Make the fields of an index; return the manifest's entry and the names of the files written.

    The same entities and queries give the same bytes. Memory: the texts of two blocks, of 65,536 texts each,
    and `memory_bytes` for making the lists of one; less takes longer. `columns` are metadata columns of
    strings whose values are texts of the entity; `queries` are entities, ascending, with their past queries.

    Raises:
        InputError: a column is unknown or not of strings.
        SourceError: a file cannot be written.
    """
    num_queries = 0

    def kept() -> Iterator[tuple[int, list[Counted]]]:
        nonlocal num_queries
        for entity, mine in queries or ():
            few = most_frequent(mine)
            num_queries += len(few)
            yield entity, few

    fields = {NAMES: _name_blocks(index, memory_bytes)}
    if columns:
        fields[TEXTS] = _column_blocks(index, columns, memory_bytes)
    if queries is not None:
        fields[QUERIES] = query_blocks(_batches(kept()), memory_bytes)
    made = dict.fromkeys(FIELD_FILES, 0)
    for kind, blocks in fields.items():
        progress.phase(f"words and letters of {kind}")
        for done in write_blocks(folder / FIELD_FILES[kind], blocks, kind == QUERIES):
            progress.advance(done, f"{kind} of {done:,} entities" if kind == QUERIES else f"{done:,} {kind}")
            made[kind] = done
    entry = EvidenceEntry(TERMS_VERSION, made[NAMES], tuple(columns), made[TEXTS], num_queries)
    return entry, tuple(FIELD_FILES[kind] for kind in fields)


def wrong_block(index: Index, kind: str) -> int | None:
    """Return the number of a field's first block that differs from the entities or past queries, if any.

    The field ("names", "texts" or "queries") was made by the rules of this version of the library.

    Raises:
        IndexChecksumError, IndexFormatError: the file cannot be read.
    """
    stored = stored_blocks(index.evidence_file(FIELD_FILES[kind]), FIELD_FILES[kind], kind == QUERIES)
    if kind == QUERIES:
        queries = open_field(index, kind).all_queries()
        blocks = query_blocks(_batches((entity, most_frequent(mine)) for entity, mine in queries))
    else:
        columns = () if index.evidence is None else index.evidence.columns
        blocks = _name_blocks(index) if kind == NAMES else _column_blocks(index, columns)
    for number, (one, other) in enumerate(zip_longest(stored, blocks)):
        if one is None or other is None or not one.equals(other):
            return number
    return None


def _name_blocks(index: Index, memory_bytes: int = DEFAULT_BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
    return text_blocks(EntityTexts(index).batches(_READ), memory_bytes)


def _column_blocks(
    index: Index, columns: Sequence[str], memory_bytes: int = DEFAULT_BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    texts = EntityTexts(index, columns, has_names=False).batches(_READ)
    return text_blocks(_batches(_one_per_entity(texts)), memory_bytes)


def most_frequent(queries: Sequence[Counted]) -> list[Counted]:
    """Return the queries to keep for one entity: the most frequent first, ties by text."""
    return sorted(queries, key=lambda one: (-one[1], one[0]))[:MAX_QUERIES_PER_ENTITY]


def _batches(owned: Iterable[tuple[int, _Text]]) -> Iterator[tuple[IntArray, list[_Text]]]:
    every = iter(owned)
    while some := list(islice(every, _READ)):
        yield np.array([entity for entity, _ in some]), [mine for _, mine in some]


def _one_per_entity(batches: Iterable[tuple[IntArray, Sequence[str]]]) -> Iterator[tuple[int, str]]:
    """Join the texts of every entity, which are neighbours."""
    pairs = (pair for owner, texts in batches for pair in zip(owner.tolist(), texts, strict=True))
    for entity, mine in groupby(pairs, key=itemgetter(0)):
        yield entity, "\n".join(text for _, text in mine)
