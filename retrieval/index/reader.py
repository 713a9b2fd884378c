"""The index reader: everything is memory-mapped, nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from genret.decoding.trie.trie_arrays import TrieArrays, check_trie
from genret.retrieval.arguments import check_keywords, check_known, check_path, check_text, documents_options
from genret.retrieval.complete_types import CompleteOptions, CompleteRequest, CompleteResult
from genret.retrieval.errors import (
    EvidenceMissingError,
    IndexChecksumError,
    IndexDirectoryError,
    IndexFormatError,
    IndexMismatchError,
    IndexNotFoundError,
    InputError,
)
from genret.retrieval.index.entities import EntityTable, Postings, filled_weights, read_title_order
from genret.retrieval.index.layout import (
    ALIASES,
    ENTITIES_FILE,
    EVIDENCE_FILES,
    MANIFEST_FILE,
    POSTINGS_FILE,
    TITLE,
    TITLE_ORDER_FILE,
    TRIE_FILE,
    VECTOR_FILES,
    MetadataType,
    as_arrow,
    as_numpy,
)
from genret.retrieval.index.manifest import EvidenceEntry, FileEntry, Manifest, VectorsEntry
from genret.retrieval.index.small_files import digest_bytes, read_small_file
from genret.retrieval.index.version_parts import (
    RowBuckets,
    expected_files,
    open_mapped,
    optional_files,
    read_bucket,
    read_entities,
    read_postings,
    read_trie,
)
from genret.retrieval.index.versions import read_version
from genret.retrieval.tables import Shown
from genret.retrieval.text import TextTokenizer
from genret.retrieval.types import Entity

if TYPE_CHECKING:  # it reads indexes
    from genret.retrieval.completion.completer import Completer

# A manifest has some hundred bytes per row length and per update: kilobytes, as a rule.
_MAX_MANIFEST_BYTES = 64 << 20


class Index(Shown):
    """One open version of an index. Immutable, safe to read from several threads and processes.

    Use `Index.open`. Its arrays and columns stay valid after `close`, which only drops the reader's own
    references.

    Attributes:
        path: The version directory.
        version: Id of the version, the digest of its manifest.
        manifest: The manifest, with the digests of all files.
        rendering: How titles stand after the prompt.
        vocab_size: Bound on the ids of the tokenizer whose ids the rows hold.
        end_token_id: Token that closes every row.
        num_rows: Distinct token rows R.
        max_row_tokens: Tokens of the longest row, end token included.
        metadata_columns: Names of the metadata columns; `metadata_types` has their types.
        vectors: Description of the vectors, or None where the version has none.
        evidence: Description of names, texts and past queries, or None where the version has none.
        evidence_problems: Faults of files of evidence found when the index was opened, by the files' names.
    """

    _told = (
        "path",
        "num_entities",
        "num_rows",
        "max_row_tokens",
        "metadata_types",
        "manifest.num_bytes",
        "version",
    )

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        digest: str,
        trie: TrieArrays,
        rows: RowBuckets,
        entities: EntityTable,
        postings: Postings | None,
        title_order: npt.NDArray[np.int32] | None,
        verify_digests: bool,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self.version = digest
        self.rendering = manifest.rendering
        self.tokenizer_fingerprint = manifest.tokenizer.fingerprint
        self.vocab_size = manifest.tokenizer.vocab_size
        self.end_token_id = manifest.tokenizer.end_token_id
        self.num_rows = manifest.counts.rows
        self.num_entities = manifest.counts.entities
        self.max_row_tokens = manifest.counts.depth
        self.metadata_columns = manifest.columns
        self.metadata_types: dict[str, MetadataType] = {c.name: c.type for c in manifest.metadata}
        self.vectors: VectorsEntry | None = manifest.vectors
        self.evidence: EvidenceEntry | None = manifest.evidence
        self._evidence_files = {file.name: file for file in manifest.files if file.name in EVIDENCE_FILES}
        self.evidence_problems: dict[str, IndexChecksumError] = {}
        for entry in self._evidence_files.values():
            self._check_evidence(entry, verify_digests)
        self._open: tuple[TrieArrays, RowBuckets, EntityTable] | None = (trie, rows, entities)
        self._is_trie_checked = False
        self._stored_postings = postings  # None: row r is the title of entity r
        self._postings: Postings | None = None
        self._title_order = title_order

    @classmethod
    @check_keywords
    def open(cls, path: str | Path, verify_digests: bool = True) -> Self:
        """Open the live version of an index directory, or a version directory.

        Sizes and structure are always checked; digests cost one pass over the files. Damaged files of
        evidence do not keep an index from opening: see `evidence_problems`.

        Raises:
            InputError: `path` is no path.
            IndexNotFoundError: there is no index at `path`.
            IndexVersionError: it has another format version.
            IndexChecksumError: a file's size or digest differs from the manifest.
            IndexFormatError: CURRENT, the manifest or a file is structurally broken.
        """
        check_path("index", path)
        return read_version(
            Path(path),
            lambda folder: cls._open_files(folder, *read_manifest(folder), verify_digests),
            sound=lambda index: not index.evidence_problems,
        )

    @classmethod
    def open_unpublished(cls, folder: Path, manifest: Manifest) -> Self:
        """Open files just written, without their manifest file and without digests; errors as of `open`."""
        return cls._open_files(folder, manifest, digest_bytes(manifest.to_bytes()), verify_digests=False)

    @classmethod
    def _open_files(cls, folder: Path, manifest: Manifest, digest: str, verify_digests: bool) -> Self:
        expected = expected_files(manifest)
        listed = {entry.name for entry in manifest.files}
        odd = sorted((expected - listed) | (listed - expected - optional_files(manifest)))
        if odd:
            raise IndexFormatError(f"{folder / MANIFEST_FILE}: files listed and needed differ: {odd}")
        files = {
            entry.name: open_mapped(folder, entry, verify_digests)
            for entry in manifest.files
            if entry.name not in EVIDENCE_FILES
        }
        counts = manifest.counts
        order = files.get(TITLE_ORDER_FILE)
        buckets = [read_bucket(files[b.file], b, manifest) for b in manifest.buckets]
        rows = RowBuckets(buckets, manifest.tokenizer.max_token_id)
        if rows.num_rows != counts.rows:
            raise IndexFormatError(f"{folder}: the buckets hold {rows.num_rows} rows, expected {counts.rows}")
        return cls(
            path=folder,
            manifest=manifest,
            digest=digest,
            trie=read_trie(files[TRIE_FILE], manifest),
            rows=rows,
            entities=read_entities(files[ENTITIES_FILE], manifest),
            postings=read_postings(files.get(POSTINGS_FILE), manifest),
            title_order=None if order is None else read_title_order(order, counts.entities),
            verify_digests=verify_digests,
        )

    def trie_arrays(self) -> TrieArrays:
        """Return the title trie as read-only, zero-copy NumPy views, checked on first use (`check_trie`).

        IndexFormatError if a walk could leave them.
        """
        arrays = self._parts()[0]
        if not self._is_trie_checked:
            try:
                check_trie(arrays, self.manifest.tokenizer.max_token_id)
            except ValueError as error:
                raise IndexFormatError(f"{TRIE_FILE}: {error}") from error
            self._is_trie_checked = True
        return arrays

    @property
    def rows(self) -> RowBuckets:
        """The rows by length."""
        return self._parts()[1]

    @property
    def entities(self) -> EntityTable:
        """The entities."""
        return self._parts()[2]

    @property
    def postings(self) -> Postings:
        """Row -> entities as arrays; made on first use, or checked then (`Postings.check`)."""
        self._parts()
        if self._postings is None:
            if self._stored_postings is None:
                self._postings = Postings.one_to_one(self.num_rows)
            else:
                self._stored_postings.check(self.num_entities, self.manifest.counts.postings)
                self._postings = self._stored_postings
        return self._postings

    @cached_property
    def is_one_to_one(self) -> bool:
        """Whether row r is the title of entity r, for every r."""
        return self.manifest.file(POSTINGS_FILE) is None

    @property
    def title_order(self) -> npt.NDArray[np.int32] | None:
        """Entity numbers in the order of their titles' UTF-8 bytes, equal titles by number.

        None in an index of format version 2. Shape: (num_entities,), int32, read-only.
        """
        self._parts()
        return self._title_order

    def evidence_path(self, name: str) -> Path:
        """Return the path of one of `EVIDENCE_FILES`, checked against the manifest.

        Raises:
            EvidenceMissingError: the version has no such file.
            IndexChecksumError: its size or digest differs from the manifest, or it is not there any more.
        """
        self._parts()
        entry = self._evidence_files.get(name)
        if entry is None:
            flags = "--vectors METHOD" if name in VECTOR_FILES else "--evidence all"
            raise EvidenceMissingError(
                f"{self.path}: this version of the index has no {name}; evidence is added with: genret "
                f"update INDEX {flags}"
            )
        if name not in self.evidence_problems:
            self._check_evidence(entry, False)  # a publication may have removed the version meanwhile
        if name in self.evidence_problems:
            raise self.evidence_problems[name]
        return self.path / name

    def evidence_file(self, name: str) -> pa.Buffer:
        """Return a file of evidence, mapped; arguments and errors are those of `evidence_path`."""
        self.evidence_path(name)
        return open_mapped(self.path, self._evidence_files[name], verify_digest=False)

    def _check_evidence(self, entry: FileEntry, verify_digest: bool) -> None:
        try:
            open_mapped(self.path, entry, verify_digest)
        except IndexChecksumError as error:
            self.evidence_problems[entry.name] = error

    @cached_property
    def forms_per_entity(self) -> npt.NDArray[np.int64]:
        """Number of forms of every entity, counted on first use. Shape: (num_entities,).

        IndexFormatError if an entity has none.
        """
        counts = np.bincount(self.postings.entity, minlength=self.num_entities)
        if not counts.all():
            raise IndexFormatError(f"{POSTINGS_FILE}: no row names entity {int(counts.argmin())}")
        return counts

    @cached_property
    def max_forms(self) -> int:
        """Largest number of forms of one entity, 0 without entities; found on first use."""
        return int(self.forms_per_entity.max(initial=0))

    @cached_property
    def weights(self) -> npt.NDArray[np.float64] | None:
        """Weight of every entity, by number: 1 where its value is missing; None in an index without weights.

        Shape: (num_entities,), float64, read-only.
        """
        column = self.manifest.weight_column
        return None if column is None else filled_weights(self.entities.stored_column(column))

    def row_token_ids(self, rank: int) -> tuple[int, ...]:
        """Return the tokens of a row, end token included; ValueError if there is no such rank."""
        return self.rows.token_ids(rank)

    def row_of(self, token_ids: Sequence[int]) -> int:
        """Return the rank of a whole row, end token included; -1 when there is none."""
        return self.rows.find(token_ids)

    def entities_of(self, rank: int) -> list[int]:
        """Return the numbers of the entities a row names, ascending; ValueError if there is no such rank."""
        return [entity for entity, _ in self._postings_of(rank)]

    def entity(self, number: int) -> Entity:
        """Return one entity; ValueError if there is no such number."""
        return self.entities.entity(number)

    def entity_by_id(self, entity_id: str) -> Entity | None:
        """Return the entity with this id, or None. Passes over all ids: for many, use `entities.numbers`."""
        check_text("entity_id", entity_id)
        number = int(self.entities.numbers([entity_id])[0])
        return None if number < 0 else self.entity(number)

    def surface(self, rank: int, entity_number: int | None = None) -> str:
        """Return the text of the form behind a row, exactly as the catalogue has it.

        A tokenizer that drops case or accents gives several texts one row; the text is then that of the given
        entity, or of the first one. ValueError if there is no such rank, or the row does not name the entity.
        """
        for entity, form in self._postings_of(rank):
            if entity_number is None or entity == entity_number:
                return self.entities.form(entity, form)
        raise ValueError(f"entity number: row {rank} does not name entity {entity_number}")

    def metadata_column(self, name: str) -> pa.ChunkedArray:
        """Return a metadata column by entity number, decoded; ValueError lists the columns there are."""
        return self.entities.column(name)

    def check_tokenizer(self, tokenizer: TextTokenizer, model_vocab_size: int | None) -> None:
        """Refuse a tokenizer, or a model of so many logits (None: any), that these rows were not made for.

        Raises:
            IndexMismatchError: the text names the index, the tokenizer and the difference.
        """
        ours = self.manifest.tokenizer
        if tokenizer.fingerprint != ours.fingerprint:
            raise IndexMismatchError(
                f"the index {self.path} was built with the tokenizer {ours.name!r} ({ours.fingerprint}, "
                f"{ours.vocab_size} tokens) but the model's tokenizer is {tokenizer.name} "
                f"({tokenizer.fingerprint}, {tokenizer.vocab_size} tokens); name the model that it was made "
                f"for (--model), or rebuild it with: build-index … --tokenizer {tokenizer.name}"
            )
        if model_vocab_size is not None and ours.max_token_id >= model_vocab_size:
            raise IndexMismatchError(
                f"the index {self.path} holds token {ours.max_token_id} but the model of the tokenizer "
                f"{tokenizer.name} can write only tokens below {model_vocab_size}"
            )

    @documents_options(CompleteRequest, skipped=("order", "prompt"))
    def complete(self, prefix: str, k: int = 10, **options: Unpack[CompleteOptions]) -> CompleteResult:
        """Return the entities that a typed prefix may go on to, best first; see docs/complete.md.

        The first call makes a table of all names, in some 4 seconds and 60 MB for a million.

        Raises:
            InputError: an option is unknown or out of range, the prefix is too long, or the filter does not
                fit the index.
        """
        check_known(options, CompleteRequest)
        return self.completer.complete(CompleteRequest(prefix, k, **options))

    @cached_property
    def completer(self) -> Completer:
        """The completer of this index, made on first use."""
        from genret.retrieval.completion.completer import Completer

        self._parts()
        return Completer(self)

    def close(self) -> None:
        """Drop the references to the files. Idempotent."""
        self._open = None
        self.__dict__.pop("completer", None)
        self._postings = self._stored_postings = None
        self._title_order = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self) -> tuple[TrieArrays, RowBuckets, EntityTable]:
        if self._open is None:
            raise IndexDirectoryError(f"{self.path}: this index was closed")
        return self._open

    def _postings_of(self, rank: int) -> list[tuple[int, int]]:
        self._parts()
        if not 0 <= rank < self.num_rows:
            raise ValueError(f"rank: expected 0 <= rank < {self.num_rows}, got {rank}")
        return [(rank, 0)] if self.is_one_to_one else self.postings.of(rank)


def read_manifest(folder: Path) -> tuple[Manifest, str]:
    """Read a version's manifest and its digest, which is the directory's name; errors as of `Index.open`."""
    file = folder / MANIFEST_FILE
    try:
        data = read_small_file(file, _MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise IndexNotFoundError(f"{file}: no such file") from None
    manifest = Manifest.from_bytes(data, where=str(file))
    digest = digest_bytes(data)
    if digest != folder.resolve().name:
        raise IndexChecksumError(
            MANIFEST_FILE, f"its digest is {digest}, but the version directory is named {folder.name}"
        )
    return manifest, digest


IntArray = npt.NDArray[np.int64]

# The column whose texts get vectors and other evidence if no column is named.
DESCRIPTION = "description"
# Entities read at once.
_BLOCK = 16_384


class TextBatch(NamedTuple):
    """Some texts as they are stored, and the numbers of their entities. Shape: (m,), int64."""

    numbers: IntArray
    texts: list[str]

    def by_entity(self) -> dict[int, list[str]]:
        """Return the texts of each entity that has some, in order."""
        found: dict[int, list[str]] = {}
        for number, text in zip(self.numbers.tolist(), self.texts, strict=True):
            found.setdefault(number, []).append(text)
        return found


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


def text_columns(asked: Sequence[str] | None, types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns asked for; by default `description` if it is a column of strings."""
    if asked is not None:
        return tuple(asked)
    return (DESCRIPTION,) if types.get(DESCRIPTION) == "string" else ()


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
